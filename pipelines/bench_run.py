"""A benchmark from its file to its table: what is left to do is done, the gates are asked, the night is kept, everything is written."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from components.errors import InputError, Interrupted
from components.gateway import push_night
from components.report.bench_page import bench_page
from components.report.bench_scores import Row, Scores
from components.store.file import write_file
from pipelines.bench_file import BenchFile, Work
from pipelines.bench_lanes import Lanes
from pipelines.bench_rows import RULES, append, cell_of, mend, perf, read_rows, still_to_do
from pipelines.bench_table import for_page, markdown
from pipelines.bench_view import Progress, print_gates, print_table
from pipelines.gates import Baseline, Gate, gates, overall
from pipelines.history import History, night
from pipelines.lock import only_engine
from pipelines.workers import granted_cores

RESULTS, PERF, TABLE, PAGE = "results.jsonl", "perf.json", "table.md", "report.html"


@dataclass(frozen=True)
class Outcome:
    rows: Sequence[Row]
    gates: Sequence[Gate]
    verdict: str

    def as_json(self, name: str, folder: Path) -> dict[str, Any]:
        scores = Scores(self.rows)
        averages = {rule: {one: found.mean for one in scores.ranked(rule) if (found := scores.average(one, rule))} for rule in RULES}
        failed = [{"cell": str(cell_of(row)), "error": row["error"]} for row in scores.failed]
        return {
            "bench": name, "out": str(folder), "cells": len(self.rows), "failed": failed, "average": averages, "verdict": self.verdict,
            "gates": list(map(asdict, self.gates)),
        }  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What was asked for: of the `work` of a file only what is `wanted`, in this folder."""

    file: BenchFile
    path: Path  # of the file
    work: Sequence[Work]
    wanted: Sequence[Work]
    folder: Path
    workers: int | None = None
    keep: bool = False


def run_bench(asked: Request, history: History | None, baseline: Baseline | None, console: Console, progress: Console) -> Outcome:
    """Run what is wanted and missing, and tell of all that is there. Cells that failed and gates that did not pass are in the
    outcome, not raised."""
    folder = asked.folder
    nights = history.nights() if history is not None else []  # before hours of work: a store that cannot be reached is known now
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be made ({error.strerror}); choose another") from None
    results = folder / RESULTS
    with only_engine(folder):
        if results.exists():
            mend(results)
        left = still_to_do(asked.wanted, read_rows(results) if results.exists() else [], results)
        if left:
            _run(asked, left, progress)
        known = {cell_of(row): row for row in read_rows(results)}
        rows = [known[item.cell] for item in asked.work if item.cell in known]
        found = gates(rows, baseline, _before(nights, rows)) if baseline is not None else []
        outcome = Outcome(rows, found, overall(found) if baseline is not None else "not gated")
        tonight = [night(rows, outcome.verdict)]
        _write(folder, outcome, asked.path, [*_before(nights, rows), *tonight] if history is not None else [])
        if history is not None:
            history.add(rows, outcome.verdict)
    print_table(console, asked.file.name, rows)
    if found:
        print_gates(console, found)
    for name in (RESULTS, TABLE, PAGE):
        console.print(f"  {folder / name}", soft_wrap=True)
    return outcome


def _before(nights: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """Not this night itself, which is there when its command is called again."""
    last = max(row["when"] for row in rows)
    return [one for one in nights if one["when"] < last]


def check(rows: Sequence[Row], baseline: Baseline, history: History | None) -> list[Gate]:
    """The gates alone, of results that are there."""
    return gates(rows, baseline, _before(history.nights(), rows) if history is not None else [])


def _run(asked: Request, left: Sequence[Work], console: Console) -> None:
    name, folder, count = asked.file.name, asked.folder, min(asked.workers or _lanes(asked.file), len(left))
    try:
        with (
            Lanes(name, folder.absolute(), count, asked.keep) as lanes,
            Progress(console, name, len(asked.wanted), left, count) as progress,
        ):
            for event in lanes.run(left):
                if event.kind == "row":
                    append(folder / RESULTS, event.content)
                progress.take(event)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on where it stopped") from None


def _lanes(file: BenchFile) -> int:
    """One a core; cells that share a GPU would only wait for each other."""
    device = file.spec.get("device", "auto")
    return 1 if device == "cuda" or (device == "auto" and Path("/dev/nvidia0").exists()) else granted_cores()


def _write(folder: Path, outcome: Outcome, spec: Path, nights: Sequence[Mapping[str, Any]]) -> None:
    command = shlex.join(["siloflow", "bench", str(spec), "--out", str(folder)])
    page = bench_page(str(outcome.rows[0]["bench"]), outcome.rows, for_page(outcome.rows), nights, list(map(asdict, outcome.gates)))
    texts = {PERF: json.dumps(perf(outcome.rows), indent=1), TABLE: markdown(outcome.rows, command), PAGE: page}
    for name, text in texts.items():
        write_file(folder / name, [text.encode()])


def tell(gateway: str, night: str, outcome: Outcome, code: int, console: Console) -> None:
    """A Pushgateway that cannot be reached takes nothing from the results."""
    passed: dict[str, bool] = {}
    for gate in outcome.gates:
        if gate.verdict != "no baseline":  # a gate that had nothing to look at has not failed
            passed[gate.gate] = passed.get(gate.gate, True) and gate.verdict == "passed"
    for problem in push_night(gateway, os.environ.get("SILOFLOW_PIPELINE") or "local", night, outcome.rows, passed, code):
        console.print(f"warning: {problem}", soft_wrap=True)
