"""The page in docs, from what was measured."""

from __future__ import annotations

from typing import Any

from bench.algorithms.layout import PASSES
from bench.sections import machines

HEAD = """# Cost of a step

Made by `make bench-algorithms ARGS=--write`, which also writes the JSON beside it. One thread, process CPU time, ms per image;
product and reference of a row take turns in one run, the best turn counts. The references (`bench/reference`) are straightforward loops
in the manner of the papers' code. Rows need not be of one day: a ratio compares within its row, but milliseconds of two rows do not
compare, since a shared machine is not as fast every day. What is dear depends on the CPU, so each kind has a section of its own; the
reaches were set on the first.
"""

MACHINE = """
## {name}

Pictures: {pictures}. Rows: {machines}.

| step | reference | siloflow | ratio | reach |
|---|---|---|---|---|
"""

STACKED = """
FEMNIST clients without dropout, with the product's layers where they can be had: {in_turn_ms} ms an image in turn, {stacked_ms} all
at once with `torch.func.vmap`, {grouped_ms} with grouped convolutions. The product trains them in turn, so that its contract knows
nothing of stacks.
"""

WALL = """
The clock on the wall for {title}, workers and all: {reference_wall_ms} -> {product_wall_ms} ms an image, {wall_ratio}x.
"""

FEDSR = """
With a ResNet-18, FedSR's step is mostly convolutions, which no loader can save (below: how little would be left without anything else);
what its released code wastes is in getting the batch.
"""
TIMED = {"fedsr": "FedSR's step with a ResNet-18", "fedsr-batch": "its batch", "fedsr-digits": "its step with the MNIST CNN"}

CONVOLUTIONS = """
The convolutions of a ResNet-18 alone, each with its input ready and nothing in between, take {direct_forwards_ms} ms an image forwards
and {direct_both_ms} forwards and backwards when they are done directly, forwards at {direct_speed} times the speed of a large matrix
product. The product does most of them with fewer multiplications (`fl_algorithms/models/winograd.py`): {forwards_ms} and {both_ms} ms.
If all else cost it nothing, its ratios would be: {floors}.
"""

LAYOUT = """
channels_last alone, {network} with torch's own convolutions, forwards and backwards: {contiguous_ms} -> {channels_last_ms} ms an image.
"""

SILOS = """
Two silos at once on {cores} cores against one alone: {ratio}x, the median of {pairs} neighbouring pairs ({least} to {most}x;
reach: {reach}x). Two bare training loops, with nothing of siloflow around the same network, against one: {bare_ratio}x, likewise.
This is wall time of some {one_silo_seconds:.0f} s: it means something only on a machine that has nothing else to do ({machine}).
"""

FIRST = """First batch from a warm, verified cache: {seconds} s (reach: {reach:g} s).
"""


def document(known: dict[str, Any]) -> str:
    """The whole page, of all kinds of CPU."""
    return HEAD + "".join(section(name, found) for name, found in known.items())


def section(name: str, found: dict[str, Any]) -> str:
    text = MACHINE.format(name=name, machines=machines(found), **found)
    for row in found["rows"]:
        mark = "" if row["reached"] else ", not reached"
        text += f"| {row['step']} | {row['reference_ms']} | {row['product_ms']} | {row['ratio']} | {row['reach']}{mark} |\n"
    for row in found["rows"]:
        if row["row"] == "fedsr-batch":
            text += FEDSR
        if row["row"] in TIMED and "product_wall_ms" in row:
            title = TIMED[row["row"]]
            text += WALL.format(title=title, wall_ratio=round(row["product_wall_ms"] / row["reference_wall_ms"], 3), **row)
        if "grouped_ms" in row:
            text += STACKED.format(**row)
    if "convolutions" in found:
        text += CONVOLUTIONS.format(floors=", ".join(_floors(found)), **found["convolutions"])
    text += "".join(LAYOUT.format(**entry) for entry in found.get("layout", []) if entry["network"] == "resnet-18")
    if "together" in found:
        ratios = found["together"]["ratios"]
        text += SILOS.format(pairs=len(ratios), least=min(ratios), most=max(ratios), **found["together"])
        text += FIRST.format(**found["first_batch"])
    return text


def _floors(found: dict[str, Any]) -> list[str]:
    """What would be left of each ResNet-18 row if everything but its convolutions cost nothing."""
    alone = found["convolutions"]
    costs = {row: trained * alone["both_ms"] + shown * alone["forwards_ms"] for row, (trained, shown) in PASSES.items()}
    return [f"{row['row']} {costs[row['row']] / row['reference_ms']:.2f}" for row in found["rows"] if row["row"] in costs]
