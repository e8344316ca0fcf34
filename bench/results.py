"""All algorithms on one data set under one budget: a row per algorithm, target and seed, then a table.

    python -m bench.results bench/settings/rotated-mnist.yaml docs/results/rotated-mnist        # runs what is missing
    python -m bench.results bench/settings/rotated-mnist.yaml docs/results/rotated-mnist --table

Rows are appended to <out>.jsonl as they are done, so a second call continues; `--shard 0/2` and `--shard 1/2` share the work
between two processes (pin each to a core with taskset). The table goes to <out>.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Cell = tuple[str, str, int]


class Quiet:
    """A view that shows nothing."""

    began = done = finished = planned = progress = warn = lambda *_, **__: None


def cells(settings: dict[str, Any]) -> Iterator[Cell]:
    """Seeds outermost: after a third of the work there is a whole table with one seed."""
    for seed in settings["seeds"]:
        for algorithm in settings["algorithms"]:
            for target in settings["targets"]:
                yield algorithm, target, seed


def spec_of(settings: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """The common settings, less what this algorithm does not have, plus its own."""
    from fl_algorithms.registry import ALGORITHMS

    algorithm, target, seed = cell
    known = {field.name for field in dataclasses.fields(ALGORITHMS[algorithm].load().Hyper)}
    hyper = {name: value for name, value in settings["spec"]["hyper"].items() if name in known}
    hyper |= settings.get("per_algorithm", {}).get(algorithm, {})
    own = settings.get("spec_of", {}).get(algorithm, {})
    return {**settings["spec"], **own, "algorithm": algorithm, "target": target, "seed": seed, "hyper": hyper}


def run_cell(settings: dict[str, Any], cell: Cell) -> dict[str, Any]:
    from pipelines.local import LocalEngine

    with tempfile.TemporaryDirectory(prefix="siloflow-results-") as folder:
        started = time.monotonic()
        result = LocalEngine(spec_of(settings, cell), Path(folder) / "run", Quiet()).run()
        seconds = time.monotonic() - started
    last = result["history"][-1]
    return {
        "algorithm": cell[0], "target": cell[1], "seed": cell[2], "accuracy": result["accuracy"], "validation": last["validation_accuracy"],
        "digest": result["digest"], "spec_digest": result["spec_digest"], "seconds": round(seconds, 1), "commit": commit(),
    }  # fmt: skip


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, row: dict[str, Any]) -> None:
    with file.open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.write(json.dumps(row) + "\n")


def table(settings: dict[str, Any], found: list[dict[str, Any]], command: str) -> str:
    """Target accuracy of the last round: mean and standard error over the seeds, the mean over targets, seconds per run."""
    targets = settings["targets"]
    lines = [
        f"Made by `{command}` from the rows beside it ({len(found)} runs). Target accuracy in % after the last round,",
        "mean ± standard error over the seeds; `validation` is the source validation of the same model; `s`: seconds of the fastest run.",
        "",
        "| algorithm | " + " | ".join(targets) + " | mean | validation | seeds | s |",
        "|---|" + "---|" * (len(targets) + 4),
    ]
    by_name = {name: [row for row in found if row["algorithm"] == name] for name in settings["algorithms"]}
    order = sorted((name for name in by_name if by_name[name]), key=lambda name: -_mean(by_name[name]))
    for name in order:
        own = by_name[name]
        values = [[100 * row["accuracy"]["last"] for row in own if row["target"] == target] for target in targets]
        validation = statistics.mean(100 * row["validation"] for row in own)
        seconds = min(row["seconds"] for row in own)  # the machine is shared: what others do only adds
        cells_ = " | ".join(map(_spread, values))
        lines.append(f"| {name} | {cells_} | {100 * _mean(own):.1f} | {validation:.1f} | {min(map(len, values))} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def _mean(own: list[dict[str, Any]]) -> float:
    return statistics.mean(row["accuracy"]["last"] for row in own)


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {error:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only", help="comma-separated algorithms; default: all of the settings")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    settings, file = yaml.safe_load(arguments.settings.read_text()), arguments.out.with_suffix(".jsonl")
    if arguments.table:
        text = table(settings, rows(file), f"python -m bench.results {arguments.settings} {arguments.out}")
        arguments.out.with_suffix(".md").write_text(text)
        return
    if arguments.only:
        settings["algorithms"] = arguments.only.split(",")
    number, count = map(int, arguments.shard.split("/"))
    for position, cell in enumerate(cells(settings)):
        done = {(row["algorithm"], row["target"], row["seed"]) for row in rows(file)}
        if position % count == number and cell not in done:
            append(file, run_cell(settings, cell))


if __name__ == "__main__":
    main()
