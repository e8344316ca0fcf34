"""results.jsonl: one row per cell, appended when it is done, and the figures that are made of the rows."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from components import VERSION
from components.digest import digest_of
from components.errors import InputError, SiloflowError
from components.report.bench_scores import Row, Scores, rounds_of
from components.store.file import write_file
from pipelines.bench_file import Cell, Work

RULES = ("last", "best_validation", "oracle")
SETTING = ("backbone", "rounds", "silos_per_domain")  # of the spec; with image size, weights and LOCAL what a published value depends on
SPEED = "CPU seconds a round"
LOCAL = ("optimizer", "lr", "batch_size", "epochs", "steps_per_epoch")


# ---- making


def row_of(bench: str, work: Work, result: Row, plan: Row, stored: Row, seconds: float, cpu: float) -> dict[str, Any]:
    """`plan` as the engine has it, `stored` as in the run folder's plan.json."""
    spec, last = plan["spec"], result["history"][-1]
    hyper, weights = spec["hyper"], spec["weights"]
    return {
        **_head(bench, work, "done"),
        "dataset": spec["dataset"]["name"],
        "setting": {
            **{name: spec["dataset"][name] for name in ("image_size", "protocol", "target_subset")},
            "weights": Path(weights).name if weights else None,
            **{name: spec[name] for name in SETTING},
            **{name: hyper[name] for name in LOCAL if name in hyper},
            "hyper": work.values.get("hyper") or {},
        },
        "silos": len(plan["silos"]),
        "accuracy": result["accuracy"],
        "validation": last["validation_accuracy"],
        "digest": result["digest"],
        "spec_digest": result["spec_digest"],
        "data": digest_of([json.dumps(stored["images"], sort_keys=True).encode()]),
        "weights": plan["weights"],
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "bytes": result["bytes"],
        "commit": stored["environment"].get("commit", ""),
        "system": {name: value for name, value in stored["environment"].items() if name not in ("commit", "siloflow")},
    }


def failed_row(bench: str, work: Work, error: str, code: int, seconds: float) -> dict[str, Any]:
    return {**_head(bench, work, "failed"), "error": error, "exit_code": code, "seconds": round(seconds, 2)}


def _head(bench: str, work: Work, status: str) -> dict[str, Any]:
    cell = work.cell
    return {
        "bench": bench, "algorithm": cell.algorithm, "target": cell.target, "seed": cell.seed, "exact": cell.exact, "status": status,
        "error": None, "exit_code": 0, "asked": work.digest, "version": VERSION, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def cell_of(row: Row) -> Cell:
    return Cell(row["algorithm"], row["target"], row["seed"], bool(row.get("exact")))


# ---- the file


def append(path: Path, row: Row) -> None:
    """Whole or not at all, also after a kill: what `read_rows` finds behind the last newline is no row."""
    with path.open("ab") as file:
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The newest row of every cell."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"results {path}: cannot be read ({why}); expected the results.jsonl of `siloflow bench`") from None
    newest: dict[Cell, dict[str, Any]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            newest[cell_of(row)] = row
            _ = row["status"], row["asked"]
        except (ValueError, KeyError, TypeError, RecursionError):
            if line.strip() and number < len(lines):  # the last one may be cut off by a kill
                raise InputError(f"results {path}: line {number} is no row of `siloflow bench`; remove it, its cell runs again") from None
    return list(newest.values())


def mend(path: Path) -> None:
    """Take off what a kill left of a row, so that the next one starts on a line of its own."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        write_file(path, [content[: content.rfind(b"\n") + 1]])


def still_to_do(work: Sequence[Work], rows: Iterable[Row], path: Path) -> list[Work]:
    """What no row of the same request is there for. Failed cells are tried again."""
    known = {cell_of(row): row for row in rows}
    for item in work:
        row = known.get(item.cell)
        if row is not None and row["asked"] != item.digest and row["status"] == "done":
            raise InputError(f"results {path}: cell {item.cell} is there with another spec; choose another --out, or remove its row")
    return [item for item in work if item.cell not in known or known[item.cell]["status"] != "done"]


# ---- figures


def perf(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """In the customSmallerIsBetter format of public benchmark actions."""
    entries, scores = [], Scores(rows)
    for algorithm in sorted(scores.algorithms):
        own = scores.of(algorithm)
        for what, unit, values in (
            (SPEED, "s", [row["cpu_seconds"] / rounds_of(row) for row in own]),
            ("uploaded a round", "bytes", [row["bytes"]["up"] / rounds_of(row) for row in own]),
        ):
            half = (max(values) - min(values)) / 2
            about = f"median of {len(own)} runs; {own[0]['system'].get('processor', 'unknown processor')}"
            value, around = (round(number, 4 if unit == "s" else 0) for number in (statistics.median(values), half))
            entries.append({"name": f"{algorithm}: {what}", "unit": unit, "value": value, "range": f"± {around:g}", "extra": about})
    return entries


def exact_digest(rows: Iterable[Row]) -> tuple[str, str] | None:
    """What the tiny run's digest may depend on, and the digest."""
    for row in rows:
        if row.get("exact") and row["status"] == "done":
            return f"{row['system']['system']}, torch {row['system']['torch']}", row["digest"]
    return None


def first_failure(rows: Iterable[Row]) -> SiloflowError | None:
    failed = [row for row in rows if row["status"] == "failed"]
    if not failed:
        return None
    first = failed[0]
    error = SiloflowError(f"{len(failed)} cell{'s' * (len(failed) > 1)} failed; {cell_of(first)}: {first['error']}")
    error.exit_code = int(first["exit_code"]) or 1
    return error
