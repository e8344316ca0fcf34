"""What a person sees of a benchmark: a bar over all cells with the time left, a line per lane, and at the end the table and the gates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from components.report.bench_scores import Row, Scores
from pipelines.bench_file import Work
from pipelines.bench_lanes import Event
from pipelines.bench_rows import cell_of
from pipelines.bench_table import TITLES
from pipelines.console import REFRESH, bar
from pipelines.gates import Gate
from pipelines.summary import clock, percent

VERDICTS = {"failed": "bold red", "no baseline": "yellow", "passed": "green"}  # in the order in which they are shown
MOST_GATES = 12  # that passed, by name; of more only their number


class Progress:
    """Live on a terminal, a line per cell elsewhere. The screen is its own inside the `with` block."""

    def __init__(self, console: Console, name: str, total: int, left: Sequence[Work], lanes: int) -> None:
        self._console, self._name, self._total, self._lanes = console, name, total, lanes
        self._left = {item.cell: item for item in left}
        self._now: dict[int, tuple[Work, int, int, float]] = {}
        self._took: dict[str, list[float]] = {}  # seconds of finished cells by algorithm
        self._failed = 0
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, transient=True, refresh_per_second=REFRESH)
            self._live.start()
        else:
            there = self._total - len(self._left)
            self._say(f"{self._name}: {len(self._left)} cells to run" + (f", {there} are there already" if there else ""))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def take(self, event: Event) -> None:
        if event.kind == "round":
            number, rounds = event.content
            since = self._now[event.lane][3] if number and event.lane in self._now else time.monotonic()
            self._now[event.lane] = (event.work, number, rounds, since)
            return
        self._now.pop(event.lane, None)
        self._left.pop(event.work.cell, None)
        row = event.content
        if row["status"] == "failed":
            self._failed += 1
            self._say(f"{event.work.cell}: failed, exit code {row['exit_code']}: {row['error']}", "red")
            return
        self._took.setdefault(row["algorithm"], []).append(row["seconds"])
        done = self._total - len(self._left)
        left = self.seconds_left()
        about = "" if self._live is not None or left is None else f"  {clock(left)} left"
        self._say(f"{done}/{self._total}  {event.work.cell}: {percent(row['accuracy']['last'])} in {row['seconds']:.0f} s{about}")

    def seconds_left(self) -> float | None:
        """From what cells of the same algorithm took, else of any; less what the running ones have behind them."""
        known = [value for values in self._took.values() for value in values]
        if not known:
            return None
        usual = sum(known) / len(known)
        means = {name: sum(values) / len(values) for name, values in self._took.items()}
        ahead = sum(means.get(cell.algorithm, usual) for cell in self._left)
        behind = sum(min(time.monotonic() - since, usual) for _, _, _, since in self._now.values())
        return max(0.0, ahead - behind) / max(1, min(self._lanes, len(self._left) or 1))

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _render(self) -> RenderableType:
        done, left = self._total - len(self._left), self.seconds_left()
        head = Table.grid(padding=(0, 2))
        failed = Text(f"{self._failed} failed" if self._failed else "", style="red")
        note = Text(f"{clock(left)} left" if left is not None else "first cells", style="dim")
        head.add_row(Text(self._name, style="bold cyan"), f"{done}/{self._total} cells", bar(done, self._total, 40), note, failed)
        lanes = Table.grid(padding=(0, 2))
        for _, (item, number, rounds, since) in sorted(self._now.items()):
            past = Text(clock(time.monotonic() - since), style="dim")
            lanes.add_row(Text(f"  {item.cell}"), f"round {number}/{rounds}", bar(number, rounds, 20), past)
        return Group(head, lanes)


# ---- at the end


def print_table(console: Console, name: str, rows: Sequence[Row]) -> None:
    scores = Scores(rows)
    title = f"{name}: accuracy on the unseen domain in %. {TITLES['last']}, mean ± standard error"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("algorithm", no_wrap=True)
    for column in [*scores.targets, "average"]:
        table.add_column(column, justify="right")
    for place, algorithm in enumerate(scores.algorithms):
        values = [scores.cell(algorithm, target) for target in scores.targets] + [scores.average(algorithm)]
        table.add_row(algorithm, *(value.points() if value is not None else "-" for value in values), style="bold" if place == 0 else "")
    console.print()
    console.print(table)
    for row in scores.failed:
        console.print(Text(f"failed  {cell_of(row)}: {row['error']}", style="red"), soft_wrap=True)


def print_gates(console: Console, found: Sequence[Gate]) -> None:
    """One screen: all that is not green, and of the rest as much as fits."""
    passed = [gate for gate in found if gate.verdict == "passed"]
    shown = [gate for gate in found if gate.verdict != "passed"] + (passed if len(passed) <= MOST_GATES else [])
    table = Table(box=SIMPLE_HEAD, title="Gates", title_justify="left")
    for name, justify in (("gate", "left"), ("of", "left"), ("verdict", "left"), ("found", "right"), ("expected", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for gate in sorted(shown, key=lambda gate: list(VERDICTS).index(gate.verdict)):
        table.add_row(gate.gate, gate.name, Text(gate.verdict, style=VERDICTS[gate.verdict]), gate.found, gate.expected)
    console.print(table)
    if len(passed) > MOST_GATES:
        console.print(Text(f"  {len(passed)} more have passed", style="green"))
