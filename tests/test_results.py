"""The tables under docs/results are what their rows say, and the rows are those of the benchmark's file in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.bench_file import read_bench, work_of
from pipelines.bench_rows import cell_of, read_rows
from pipelines.bench_table import markdown

ROOT = Path(__file__).parents[1]
RESULTS = sorted(path.parent for path in (ROOT / "docs/results").glob("*/results.jsonl"))


def test_there_are_results() -> None:
    assert {folder.name for folder in RESULTS} >= {"rotated-mnist", "pacs", "digits"}


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_a_table_is_what_its_rows_say(folder: Path) -> None:
    spec = f"bench/reproduce/{folder.name}.yaml"
    work = work_of(read_bench(ROOT / spec))
    rows = {cell_of(row): row for row in read_rows(folder / "results.jsonl")}
    assert [str(item.cell) for item in work if item.cell not in rows] == [], "cells of the file without a row"
    assert {cell: rows[cell]["asked"] for cell in rows} == {item.cell: item.digest for item in work}, "rows of another file"
    assert not any(row["commit"].endswith("-dirty") for row in rows.values()), "rows of code that nobody can check out"
    command = f"siloflow bench {spec} --out docs/results/{folder.name}"
    assert (folder / "table.md").read_text() == markdown([rows[item.cell] for item in work], command)


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_the_overview_says_how_many_runs_and_how_long(folder: Path) -> None:
    rows = list(read_rows(folder / "results.jsonl"))
    cpu, wall = (round(sum(row[field] for row in rows) / 60) for field in ("cpu_seconds", "seconds"))
    line = next(line for line in (ROOT / "docs/results/README.md").read_text().splitlines() if f"]({folder.name}/table.md) |" in line)
    assert f"| {len(rows)} | {cpu} min | {wall} min |" in line
