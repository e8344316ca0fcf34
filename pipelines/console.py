"""What a person sees while a run goes on: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pipelines.local import EVALUATOR, PLANNER, SERVER, View
from pipelines.summary import clock, decimal, describe, ending, percent, sparkline, weights_of
from pipelines.track import Track

REFRESH = 4  # times a second: the silos need the cores more than the view does
MOST_SHOWN = 40  # rows of silos; of more, only those at work


def screen(stderr: bool) -> Console:
    """Console of one stream: colours only on a terminal, and no guessing of markup or links inside what is printed."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


class Watching(View, Protocol):
    """A view of one run. The screen is its own inside the `with` block."""

    seconds: float  # from the plan to the result

    def __enter__(self) -> Watching: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def watch(console: Console, title: str) -> Watching:
    return LiveView(console, title) if console.is_terminal and not console.is_dumb_terminal else PlainView(console, title)


# ---- the two views


class PlainView:
    """For logs and pipes: a line per round, no control codes."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._track = console, title, Track()
        self._shown, self._since, self.seconds = 0, time.monotonic(), 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def planned(self, plan: Mapping[str, Any]) -> None:
        self._track.plan, self._since = plan, time.monotonic()
        self._line(f"{self._title}: {describe(plan)}, {weights_of(plan)}")

    def began(self, round: int, exchange: str, participants: Sequence[str]) -> None:
        self._track.began(round)

    def progress(self, worker: str, stage: str, done: int, total: int, rate: float, loss: float | None) -> None:
        pass

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None:
        self._track.done(worker, action, outcome)
        settled = [number for number, entry in self._track.rounds.items() if entry.settled]
        self._show(max(settled, default=0))  # a silo that could not count must not hold back the rounds after it

    def warn(self, message: str) -> None:
        self._line(f"warning: {message}")

    def finished(self, result: Mapping[str, Any]) -> None:
        self.seconds = time.monotonic() - self._since
        self._show(max(self._track.rounds, default=0))
        self._line(ending(result, self.seconds))

    def _show(self, last: int) -> None:
        for number in range(self._shown + 1, last + 1):
            entry, spec = self._track.rounds[number], self._track.plan["spec"]
            accuracy = f"validation {percent(entry.validation)}  {spec['target']} {percent(entry.target)}"
            self._line(f"round {number}/{spec['rounds']}  {accuracy}  loss {decimal(entry.loss)}  {entry.seconds or 0.0:.1f} s")
        self._shown = max(self._shown, last)

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


@dataclass(frozen=True)
class Worker:
    stage: str = ""
    done: int = 0
    total: int = 0
    rate: float = 0.0
    loss: float | None = None


class LiveView:
    """For a terminal: rounds and the time left, a line per silo, accuracy so far. Leaves one line when it is done."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._track = console, title, Track()
        self._workers: dict[str, Worker] = {}
        self._since, self.seconds = time.monotonic(), 0.0
        self._spinner = Spinner("dots", Text("preparing", style="dim"))
        self._live: Live | None = None
        self._lock = threading.Lock()  # rich draws from a thread of its own

    def __enter__(self) -> LiveView:
        self._live = Live(
            console=self._console, get_renderable=self.render, transient=True, refresh_per_second=REFRESH, redirect_stdout=False
        )
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def planned(self, plan: Mapping[str, Any]) -> None:
        with self._lock:
            self._workers = {name: Worker() for name in [*plan["silos"], SERVER, EVALUATOR]}
            self._track.plan, self._since = plan, time.monotonic()

    def began(self, round: int, exchange: str, participants: Sequence[str]) -> None:
        with self._lock:
            self._track.began(round)

    def progress(self, worker: str, stage: str, done: int, total: int, rate: float, loss: float | None) -> None:
        if worker == PLANNER:
            self._spinner.update(text=Text(f"{stage} {done}/{total}", style="dim"))
            return
        with self._lock:
            known = loss if loss is not None and math.isfinite(loss) else self._workers[worker].loss
            self._workers[worker] = Worker(stage, done, total, rate, known)

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None:
        with self._lock:
            self._track.done(worker, action, outcome)
            if worker in self._workers:
                self._workers[worker] = Worker(loss=outcome.get("metrics", {}).get("loss", self._workers[worker].loss))

    def warn(self, message: str) -> None:
        self._console.print(Text(f"warning: {message}", style="yellow"), soft_wrap=True)

    def finished(self, result: Mapping[str, Any]) -> None:
        self.seconds = time.monotonic() - self._since
        self._console.print(Text(ending(result, self.seconds)), soft_wrap=True)

    # ---- drawing

    def render(self) -> RenderableType:
        with self._lock:
            plan = self._track.plan
            if not plan:
                return self._spinner
            heading = Text.assemble((f"{self._title}  ", "bold cyan"), describe(plan), no_wrap=True, overflow="ellipsis")
            # the silos come last: of what does not fit on the screen, rich cuts off the end
            return Group(heading, self._rounds(), self._accuracy(), self._silos())

    def _rounds(self) -> RenderableType:
        total, closed = self._track.plan["spec"]["rounds"], sum(entry.seconds is not None for entry in self._track.rounds.values())
        left = self._track.remaining()
        row = Table.grid(padding=(0, 2))
        note = Text(f"{clock(left)} left" if left is not None else "first round", style="dim")
        row.add_row(f"round {min(len(self._track.rounds), total)}/{total}", bar(closed, total, 40), note)
        return row

    def _accuracy(self) -> RenderableType:
        plan, rounds = self._track.plan, self._track.rounds.values()
        validation = [entry.validation for entry in rounds if entry.validated]
        target = [entry.target for entry in rounds]
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(justify="right", min_width=7)
        for label, style, values in (("validation", "green", validation), (f"{plan['spec']['target']} (unseen)", "cyan", target)):
            known = [value for value in values if value is not None]
            table.add_row(label, percent(known[-1] if known else None), Text(sparkline(known), style=style))
        return Group(table, Text(f"chance {percent(1 / plan['classes'])}, {weights_of(plan)}", style="dim"))

    def _silos(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for justify, width in (("left", 0), ("left", 10), ("left", 16), ("right", 12), ("left", 10)):
            table.add_column(justify=justify, min_width=width)  # type: ignore[arg-type]
        crowded = len(self._workers) > MOST_SHOWN
        for name, now in self._workers.items():
            if crowded and not now.stage:
                continue
            training = name in self._track.plan["silos"] and bool(now.stage)
            table.add_row(
                Text(f"  {name}", style="" if now.stage else "dim"),
                Text(now.stage or "waiting", style="" if now.stage else "dim"),
                bar(now.done, now.total, 16) if training else "",
                f"{now.rate:,.0f} img/s" if training and now.rate else "",
                Text(f"loss {decimal(now.loss)}" if now.loss is not None else "", style="dim"),
            )
        return table


def bar(done: int, total: int, width: int) -> ProgressBar:
    return ProgressBar(max(total, 1), done, width=width, complete_style="cyan", finished_style="green")
