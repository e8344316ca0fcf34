"""Cells side by side. A lane is a process with its own cores that runs one cell after another, so torch is imported once a lane."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from components.errors import SiloflowError
from pipelines.bench_file import Work
from pipelines.bench_rows import failed_row, row_of
from pipelines.local import LocalEngine
from pipelines.workers import cores, end_with_parent

# Kernels that do not depend on what the CPU has beyond x86-64: a golden digest must not change with the machine. What is left is
# MKL's square root, so an exact run does without Adam.
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "SILOFLOW_PORTABLE": "1"}


class Rounds:
    """The view of a cell: tells the rounds that are over, and adds up the CPU time of its processes."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._total = connection, 0
        self._cpu: dict[int, float] = {}  # by process: one may play many silos

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values())

    def planned(self, plan: Mapping[str, Any]) -> None:
        self._total = plan["spec"]["rounds"]

    def began(self, round: int, exchange: str, participants: Sequence[str]) -> None:
        self._connection.send(("round", (round, self._total)))

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None:
        self._cpu.update(outcome.get("cpu", {}))

    def progress(self, worker: str, stage: str, done: int, total: int, rate: float, loss: float | None) -> None: ...

    def warn(self, message: str) -> None: ...

    def finished(self, result: Mapping[str, Any]) -> None: ...


@dataclass
class Lane:
    process: Any
    connection: Connection
    number: int
    portable: bool
    work: Work | None = None
    since: float = 0.0


@dataclass(frozen=True)
class Event:
    """`round`: (round, rounds) of the cell that the lane is at; `row`: the cell is over."""

    lane: int
    kind: str
    work: Work
    content: Any


class Lanes:
    """Use it in a `with` block: leaving it ends every process, and what was half done goes on with the next call."""

    def __init__(self, bench: str, folder: Path, count: int, keep: bool) -> None:
        self._bench, self._folder, self._keep = bench, folder, keep
        self._lanes: dict[int, Lane] = {}
        self._cores = divided(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores())), count)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._lanes):
            self._end(number)

    def run(self, work: Sequence[Work]) -> Iterator[Event]:
        """Exact cells first, then the rest in its order."""
        waiting = sorted(work, key=lambda item: not item.cell.exact)
        while waiting or any(lane.work for lane in self._lanes.values()):
            for number in range(len(self._cores)):
                if waiting and (number not in self._lanes or self._lanes[number].work is None):
                    item = waiting.pop(0)
                    self._give(number, item)
                    yield Event(number, "round", item, (0, item.values.get("rounds", 10)))
            yield from self._events()

    def _give(self, number: int, item: Work) -> None:
        lane = self._lanes.get(number)
        if lane is not None and lane.portable != item.cell.exact:
            self._end(number)
            lane = None
        lane = lane or self._start(number, item.cell.exact)
        lane.work, lane.since = item, time.monotonic()
        lane.connection.send(item)

    def _start(self, number: int, portable: bool) -> Lane:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self._bench, str(self._folder), self._cores[number], PORTABLE if portable else {}, self._keep)
        # not a daemon, which could have no processes of its own
        process = context.Process(target=serve, args=arguments, name=f"siloflow-lane-{number}")
        process.start()
        theirs.close()
        self._lanes[number] = Lane(process, ours, number, portable)
        return self._lanes[number]

    def _events(self) -> Iterator[Event]:
        busy = {lane.connection: lane for lane in self._lanes.values() if lane.work is not None}
        for connection in wait(list(busy), timeout=0.5):
            lane = busy[connection]  # type: ignore[index]
            assert lane.work is not None
            item = lane.work
            try:
                kind, content = lane.connection.recv()
            except (EOFError, OSError):
                code = self._end(lane.number)
                why = f"its process was ended ({signal.Signals(-code).name if code < 0 else f'exit code {code}'}); run the command again"
                kind, content = "row", failed_row(self._bench, item, why, SiloflowError.exit_code, time.monotonic() - lane.since)
            if kind == "row":
                lane.work = None
            yield Event(lane.number, kind, item, content)

    def _end(self, number: int) -> int:
        """Its own processes notice: their pipes close."""
        lane = self._lanes.pop(number)
        lane.process.join(0.2 if lane.work is None else 0.5)
        lane.process.kill()
        lane.process.join()
        lane.connection.close()
        return int(lane.process.exitcode or 0)


def divided(numbers: Sequence[int], parts: int) -> list[list[int]]:
    """Cores in equal groups; what is left over stays free."""
    each = max(1, len(numbers) // parts)
    return [list(numbers[place * each : (place + 1) * each]) for place in range(max(1, min(parts, len(numbers))))]


# ---- inside a lane


def serve(connection: Connection, bench: str, folder: str, own_cores: list[int], environment: dict[str, str], keep: bool) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C of the terminal is the parent's business
    os.environ.update(environment)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, own_cores)
    while True:
        try:
            work: Work = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(("row", run_cell(bench, work, Path(folder), len(own_cores), connection, keep)))


def run_cell(bench: str, work: Work, folder: Path, at_once: int, connection: Connection, keep: bool) -> dict[str, Any]:
    """The row. Whatever ends the cell is in it; the others go on."""
    view, run, started = Rounds(connection), folder / "runs" / work.run_name(folder.name), time.monotonic()
    try:
        engine = LocalEngine(work.values, run, view, at_once)
        plan = engine.plan()
        result = engine.run()
        seconds = time.monotonic() - started
        stored = json.loads((run / "plan.json").read_bytes())
        row = row_of(bench, work, result, plan, stored, seconds, view.cpu_seconds)
    except SiloflowError as error:
        return failed_row(bench, work, " ".join(str(error).split()), error.exit_code, time.monotonic() - started)
    except Exception as error:  # a defect of ours or a full disk: one line in the table, the rest goes on
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return failed_row(bench, work, why, SiloflowError.exit_code, time.monotonic() - started)
    if not keep:
        shutil.rmtree(run, ignore_errors=True)
    return row
