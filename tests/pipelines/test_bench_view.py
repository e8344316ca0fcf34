"""What a person sees of a benchmark: the bar, the time left, the lanes; the table and the gates at the end."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from pipelines import bench_view
from pipelines.bench_file import Cell, Work
from pipelines.bench_lanes import Event
from pipelines.bench_view import Progress, print_gates, print_table
from pipelines.gates import Gate
from tests.pipelines.bench_rows import failed, row, small

WORK = [Work(Cell(algorithm, "yew", seed), {"rounds": 4}) for seed in (0, 1) for algorithm in ("fedavg", "fedprox")]


def told(item: Work, seconds: float = 10.0, lane: int = 0) -> Event:
    return Event(lane, "row", item, row(item.cell.algorithm, item.cell.target, item.cell.seed, seconds=seconds))


def printed(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=120, highlight=False, color_system=None), out


def test_elsewhere_than_on_a_terminal_a_line_a_cell() -> None:
    console, out = printed(terminal=False)
    with Progress(console, "small", 5, WORK, 1) as progress:
        progress.take(Event(0, "round", WORK[0], (0, 4)))
        progress.take(told(WORK[0]))
        progress.take(Event(0, "row", WORK[1], failed("fedprox")))
    assert out.getvalue().splitlines() == [
        "small: 4 cells to run, 1 are there already",
        "2/5  fedavg/yew/0: 50.0 % in 10 s  0:30 left",
        "fedprox/yew/0: failed, exit code 3: silo ash: late",
    ]


def test_the_time_left_is_that_of_cells_like_these(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(bench_view.time, "monotonic", lambda: now[0])
    progress = Progress(printed(False)[0], "small", 4, WORK, 2)
    assert progress.seconds_left() is None, "nothing is known yet"
    progress.take(told(WORK[0], seconds=10))
    progress.take(told(WORK[1], seconds=50))
    assert progress.seconds_left() == pytest.approx((10 + 50) / 2), "one fedavg and one fedprox, side by side"
    progress.take(Event(0, "round", WORK[2], (0, 4)))
    now[0] += 8
    assert progress.seconds_left() == pytest.approx((10 + 50 - 8) / 2)
    progress.take(told(WORK[2]))
    assert progress.seconds_left() == pytest.approx(50), "the last one has a lane to itself"


def test_on_a_terminal_there_is_a_bar_and_a_line_a_lane() -> None:
    console, out = printed(terminal=True)
    with Progress(console, "small", 4, WORK, 2) as progress:
        progress.take(told(WORK[0]))
        progress.take(Event(0, "round", WORK[1], (0, 4)))
        progress.take(Event(0, "round", WORK[1], (3, 4)))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "1/4 cells" in text and "left" in text
    assert "fedprox/yew/0  round 3/4" in text


def test_the_table_has_the_best_first_and_names_what_failed() -> None:
    console, out = printed(terminal=False)
    print_table(console, "small", [*small(), failed("ga")])
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  fed")] == ["fedprox", "fedavg"]
    assert lines[-1] == "failed  ga/yew/0: silo ash: late"


def gate(verdict: Any, number: int = 0) -> Gate:
    return Gate("accuracy", f"place-{number}", verdict, "1.0", "at least 2.0")


def test_gates_fit_on_a_screen_and_what_is_red_comes_first() -> None:
    console, out = printed(terminal=False)
    print_gates(console, [gate("passed", 1), gate("no baseline", 2), gate("failed", 3)])
    order = [line.split()[1] for line in out.getvalue().splitlines() if "place" in line]
    assert order == ["place-3", "place-2", "place-1"]
    console, out = printed(terminal=False)
    print_gates(console, [*(gate("passed", number) for number in range(40)), gate("failed", 99)])
    text = out.getvalue()
    assert "place-99" in text and "40 more have passed" in text and len(text.splitlines()) < 24
