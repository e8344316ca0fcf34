"""A run on Kubeflow Pipelines while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from components.errors import DeadlineError
from pipelines.kfp_client import Api, KfpError, one_line
from pipelines.kfp_logs import Logs, failure, rounds_in
from pipelines.kfp_runs import ENDED, get_run, state_of
from pipelines.kfp_tasks import DONE, FAILED, RUNNING, WAITING, Task, read_tasks, when
from pipelines.summary import clock, percent

POLL = 2.0  # seconds between two looks at the run
LOG_EVERY = 5.0  # ... and at the log of a server that still runs
MODESTY = 5  # times as long as a look takes: a workflow of hundreds of steps is a megabyte
SILENCE = 120.0  # a KFP server that restarts is back by then
NEVER = float("inf")
SERVER = "server"
SHOWN_NAMES = 3
_USES = ("accepted", "missing", "rejected")
_STYLES = {DONE: "green", FAILED: "bold red", RUNNING: "cyan", WAITING: "dim"}


class RunFailed(DeadlineError):
    """A run on the cluster did not succeed; the message names the task."""


@dataclass
class Picture:
    """All that is known of a run at one moment."""

    name: str
    id: str
    state: str = "PENDING"
    since: float = field(default_factory=time.time)
    tasks: list[Task] = field(default_factory=list)
    told: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)  # by series, round, exchange; in the order of the log
    places: dict[tuple[Any, ...], tuple[int, ...]] = field(default_factory=dict)  # iteration of the loop that told it
    silent: float = 0.0  # seconds since the last answer
    ended: float | None = None

    @property
    def age(self) -> str:
        return clock((self.ended or time.time()) - self.since)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return list(self.told.values())

    def states(self, iteration: tuple[int, ...]) -> dict[str, str]:
        """Of the silos' tasks there, by silo."""
        return {task.name: task.state for task in self.tasks if task.silo and task.iteration == iteration}

    def took(self, key: tuple[Any, ...]) -> float | None:
        """Seconds of a step: in a loop from its first pod to its last, as the clock on the wall; else what the server told."""
        place = self.places[key]
        around = [task for task in self.tasks if place and task.iteration == place]
        ends = [task.ended for task in around if task.name == SERVER and task.ended is not None]
        return ends[0] - min(task.started for task in around) if ends else self.told[key]["seconds"]

    def held_up(self) -> dict[str, str]:
        """Why pods do not start, as Kubernetes says it, by task."""
        return {task.name: pod.message for task in self.tasks for pod in task.pods if pod.state == WAITING and pod.message}

    def current(self) -> tuple[int, ...] | None:
        """Where silos are at work, and of which the server has told nothing yet."""
        places = [task.iteration for task in self.tasks if task.silo]
        latest = max(places, default=None)
        return latest if latest is not None and (latest == () or latest not in self.places.values()) else None


class Watch:
    """Looks at a run until it ends."""

    def __init__(self, api: Api, run: Mapping[str, Any], spec: Mapping[str, Any], console: Console) -> None:
        self._api, self._spec, self._console = api, spec, console
        self.picture = Picture(
            one_line(str(run.get("display_name") or ""), 60), str(run["run_id"]), since=when(run.get("created_at")) or time.time()
        )
        self._logs = Logs(api, self.picture.id)
        self._log_due: dict[str, float] = {}
        self._run: Mapping[str, Any] = run

    def to_the_end(self) -> Picture:
        """Raises when the run does not succeed, or when KFP is silent for long."""
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        with LiveScreen(self._console) if live else PlainScreen(self._console) as screen:
            heard = time.monotonic()
            while True:
                began = time.monotonic()
                try:
                    self._look()
                    heard = time.monotonic()
                except KfpError as error:
                    if time.monotonic() - heard > SILENCE:
                        raise KfpError(f"{error} (run {self.picture.id} may go on: `siloflow watch {self.picture.id}`)") from None
                self.picture.silent = time.monotonic() - heard
                screen.show(self.picture)
                if self.picture.state in ENDED:
                    break
                time.sleep(max(POLL, MODESTY * (time.monotonic() - began)))
        if self.picture.state != "SUCCEEDED":
            raise RunFailed(self._why())
        return self.picture

    def _look(self) -> None:
        run = get_run(self._api, self.picture.id)
        state = state_of(run)
        self.picture.tasks = read_tasks(self._api, self.picture.id, self._spec)
        for task in self.picture.tasks:
            if task.name == SERVER:
                self._listen(task, state in ENDED)
        self._run, self.picture.state = run, state
        self.picture.ended = when(run.get("finished_at")) if state in ENDED else None

    def _listen(self, task: Task, ended: bool) -> None:
        for pod in task.pods:
            over = ended or pod.state in (DONE, FAILED)
            due = self._log_due.get(pod.name, 0.0)
            if pod.driver or pod.state == WAITING or due == NEVER or (time.monotonic() < due and not over):
                continue
            text = self._logs.read(pod)
            self._log_due[pod.name] = NEVER if over and text is not None else time.monotonic() + LOG_EVERY
            for told in rounds_in(text or ""):
                key = (told["series"], told["round"], told["exchange"])
                self.picture.told[key], self.picture.places[key] = told, task.iteration

    def _why(self) -> str:
        run = f"run {self.picture.name} ({self.picture.id})"
        found = failure(self.picture.tasks, self._logs)
        if self.picture.state == "CANCELED":
            return f"{run}: was cancelled before its end"
        if found is None:
            said = one_line(str((self._run.get("error") or {}).get("message") or "the server gives no reason"))
            return f"{run}: {self.picture.state}: {said}; `siloflow logs {self.picture.id}` shows its logs"
        return f"{run}: {self.picture.state} at {found[0]}: {found[1]}"


# ---- the two screens


class PlainScreen:
    """For logs and pipes: a line when something has changed."""

    def __init__(self, console: Console) -> None:
        self._console, self._state, self._told, self._held_up = console, "", 0, dict[str, str]()

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *ended: object) -> None:
        pass

    def show(self, picture: Picture) -> None:
        for key in list(picture.told)[self._told :]:
            number, exchange, accuracy, validation, seconds = _cells(picture, key)
            numbers = f"accuracy {accuracy}  validation {validation}  {seconds}  {_took_part(picture.told[key], *_USES)}"
            self._console.print(f"round {number} {exchange}  {numbers}".rstrip(), soft_wrap=True)
        self._told = len(picture.told)
        for name, message in picture.held_up().items():
            if self._held_up.get(name) != message:
                self._console.print(f"{name} waits: {message}", soft_wrap=True)
        self._held_up |= picture.held_up()
        if picture.state != self._state:
            self._console.print(f"{picture.name} {picture.state} after {picture.age}", soft_wrap=True)
            self._state = picture.state


class LiveScreen:
    """For a terminal. The table stays when the run is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._live.stop()

    def show(self, picture: Picture) -> None:
        self._live.update(draw(picture, max(3, self._console.height - 9)), refresh=True)


def draw(picture: Picture, rows: int) -> RenderableType:
    """The last rounds in a table, above it the run, below it the tasks at work."""
    style = {"SUCCEEDED": "green", "FAILED": "bold red", "CANCELED": "yellow"}.get(picture.state, "cyan")
    head = Text.assemble((picture.name, "bold"), "  ", (picture.state, style), f"  {picture.age}", (f"  {picture.id}", "dim"))
    if picture.silent > 2 * POLL:
        head.append(f"  no answer for {picture.silent:.0f} s", style="yellow")
    table = Table(box=SIMPLE_HEAD)
    for name in ("round", "exchange", "silos", "accuracy", "validation", "seconds"):
        table.add_column(name, justify="left" if name in ("exchange", "silos") else "right", overflow="ellipsis", no_wrap=name != "silos")
    for key, told in list(picture.told.items())[-rows:]:
        number, exchange, accuracy, validation, seconds = _cells(picture, key)
        states = picture.states(picture.places[key]) if picture.places[key] else {}
        silos = summary(states) if states else Text(_took_part(told, _USES[0]))
        lost = _took_part(told, *_USES[1:])
        silos.append(", " if silos and lost else "").append(lost, style=_STYLES[FAILED])
        table.add_row(number, exchange, silos, accuracy, validation, seconds)
    current = picture.current()
    if current is not None and picture.state not in ENDED:
        table.add_row("...", "", summary(picture.states(current)), "", "", "", style="")
    parts: list[RenderableType] = [head, table]
    others = [task for task in picture.tasks if not task.silo and task.state in (RUNNING, WAITING, FAILED)]
    if others:
        parts.append(Text("  ").append_text(summary({task.name: task.state for task in others})))
    parts.extend(Text(f"  {name} waits: {message}", style="yellow") for name, message in list(picture.held_up().items())[:SHOWN_NAMES])
    return Group(*parts)


def summary(states: Mapping[str, str]) -> Text:
    """`3 done`, or `2 done, 1 running (hospital-b)`: names only where not all are alike."""
    text = Text()
    counts = Counter(states.values())
    for state in (FAILED, RUNNING, WAITING, DONE):
        if not counts[state]:
            continue
        names = sorted(name for name, one in states.items() if one == state)
        named = f" ({_names(names)})" if state == FAILED or (len(counts) > 1 and state != DONE) or len(states) == 1 else ""
        text.append(", " if text else "").append(f"{counts[state]} {state}{named}", style=_STYLES[state])
    return text


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else "")


def _cells(picture: Picture, key: tuple[Any, ...]) -> tuple[str, str, str, str, str]:
    """Round, exchange, accuracy, validation, seconds. An accuracy of an earlier round says so."""
    told, took = picture.told[key], picture.took(key)
    number = f"{told['round']:g}" + (f"/{told['rounds']:g}" if told["rounds"] is not None else "")
    late = told["evaluated_round"] is not None and told["evaluated_round"] != told["round"]
    accuracy = percent(told["accuracy"]) + (f" (round {told['evaluated_round']:g})" if late and told["accuracy"] is not None else "")
    seconds = f"{took:.1f} s" if took is not None else "-"
    exchange = f"{told['exchange']} ({told['series']})" if told["series"] > 1 else told["exchange"]
    return number, exchange, accuracy, percent(told["validation"]), seconds


def _took_part(told: Mapping[str, Any], *uses: str) -> str:
    """How many updates were used, or were not."""
    return ", ".join(f"{told[name]:g} {name}" for name in uses if told[name])
