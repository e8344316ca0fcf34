"""The page in docs, from what was measured."""

from __future__ import annotations

from typing import Any

HEAD = """# Cost of a step

Made by `make bench-algorithms ARGS=--write`, which also writes the JSON beside it. One thread, process CPU time, ms per image;
product and reference of a row take turns in one run, the best turn counts. Pictures: {pictures}. {machine}.
The references (`bench/reference`) are straightforward loops in the manner of the papers' code.

| step | reference | siloflow | ratio | reach |
|---|---|---|---|---|
"""

STACKED = """
FEMNIST clients without dropout, with the product's layers on both sides: {in_turn_ms} ms an image in turn, {at_once_ms} all at once with
`torch.func.vmap`. The product trains them in turn, so that its contract knows nothing of stacks.
"""

FEDSR = """
FedSR's step is mostly convolutions, which no loader can save; what its released code wastes is in getting the batch.
"""

LAYOUT = """
channels_last alone, {network}, forwards and backwards: {contiguous_ms} -> {channels_last_ms} ms an image. Where this CPU gains nothing from
it, neither do the steps that are mostly such convolutions.
"""

SILOS = """
Two silos at once on {cores} cores: {two_silos_seconds} s, one alone {one_silo_seconds} s: {ratio}x (reach: {reach}x).
This is wall time: it means something only on a machine that has nothing else to do (its load is above).
"""

FIRST = """First batch from a warm, verified cache: {seconds} s (reach: {reach:g} s).
"""


def table(found: dict[str, Any]) -> str:
    text = HEAD.format(**found)
    for row in found["rows"]:
        mark = "" if row["reached"] else ", not reached"
        text += f"| {row['step']} | {row['reference_ms']} | {row['product_ms']} | {row['ratio']} | {row['reach']}{mark} |\n"
    for row in found["rows"]:
        if row["row"] == "fedsr-batch":
            text += FEDSR
        if "at_once_ms" in row:
            text += STACKED.format(**row)
    text += "".join(LAYOUT.format(**entry) for entry in found.get("layout", []) if entry["network"] == "resnet-18")
    if "together" in found:
        text += SILOS.format(**found["together"]) + FIRST.format(**found["first_batch"])
    return text
