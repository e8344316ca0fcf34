"""The kill campaign: SIGKILL for any process at exact places and at random times, then resume, then the same bits as undisturbed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.chaos.processes import Bed, Ended, Run, Undisturbed, difference, outcome
from tests.chaos.rows import Row
from tests.federations import DOMAINS
from tests.minio_server import MinioServer, running_minio

ALGORITHMS = ("csac", "fedadg", "fedavg", "fedccrl")
SEED = 6
AT_ONCE = 2
TOO_LATE = "never came to"
GRACE = 10.0  # seconds between SIGTERM and the end: less than Kubernetes grants
STORE_DOWN = 1.0  # seconds until a killed store is started again
PLACES = {
    ("before", "payload"): "before a payload is written",
    ("inside", "payload"): "inside the write of a payload",
    ("after", "payload"): "between payload and manifest",
    ("inside", "manifest"): "inside the write of a manifest",
    ("after", "manifest"): "after its manifest is published",
    ("before", "private"): "before private state is written",
    ("inside", "private"): "inside the write of private state",
    ("after", "private"): "between private state and payload",
    ("after", "reading"): "between the server's read and its publish",
    ("inside", "evaluation"): "during evaluation",
    ("inside", "counts"): "inside the write of evaluation counts",
    ("inside", "plan"): "inside the writes of the plan",
    ("inside", "result"): "inside the write of the result",
}


@dataclass(frozen=True)
class Kill:
    """`victim` dies when `role` comes to the place for the count-th time; with no place, after that share of the run's time.

    Victims: self (the role's process), all (every process of the run), engine, store. `stop` is SIGTERM for the engine.
    """

    victim: str
    role: str
    place: tuple[str, str] | None = None
    count: int = 1
    share: float = 0.0

    @property
    def label(self) -> str:
        who = "a silo" if self.role in DOMAINS else f"the {self.role}"
        if self.victim == "stop":
            return "SIGTERM to the engine at a random time"
        dead = {"self": who, "all": "all processes", "engine": "the engine", "store": "the MinIO server"}[self.victim]
        if self.place is None:
            return f"{dead} killed at a random time"
        if self.victim in ("all", "engine"):
            return f"{dead} killed while {who} was at one of these places"
        return f"{dead} killed {PLACES[self.place]}"

    @property
    def order(self) -> str:
        """For hook/sitecustomize.py."""
        return " ".join([self.role, *self.place, str(self.count), self.victim]) if self.place else ""


class Trial:
    """One run that is killed, perhaps several times, and has to end like the undisturbed one."""

    def __init__(self, bed: Bed, algorithm: str, server: MinioServer | None = None) -> None:
        self._bed, self._algorithm, self._server, self._kills = bed, algorithm, server, 0
        folder = bed.new_folder()
        store = {"store": f"s3://{server.endpoint}/{folder.parent.name}"} if server else {}
        self.run = Run(bed, folder, bed.spec(algorithm, **store), server.environment if server else None)

    def suffer(self, kill: Kill) -> str:
        """What went otherwise than promised; empty: all as it should."""
        self._kills += 1
        sign = self.run.folder.with_name(f"sign-{self._kills}")
        for _ in range(6):
            self.run.start(kill.order, sign)
            if kill.place:
                self.run.at_place(sign, self._kill_store if kill.victim == "store" else None)
            else:
                self._strike_later(kill, sign)
            if kill.victim == "store" and self._server is not None and sign.exists():
                time.sleep(STORE_DOWN)
                self._server.start()
            ended = self.run.end()
            if sign.exists() or kill.place:
                break
            kill = replace(kill, share=kill.share / 2)  # the run was over before
        if not sign.exists():
            return f"{TOO_LATE} {kill.order or kill.label}: {ended.line}"
        return _broken_promise(kill, ended)

    def recover(self) -> tuple[float, str]:
        """Seconds that the last start took to the end of the run, and what is wrong with that end."""
        self.run.start()
        ended = self.run.end()
        if ended.result is None:
            return ended.seconds, f"not resumed: {ended.line}"
        wrong = difference(ended.result, self._bed.undisturbed(self._algorithm).result)
        return ended.seconds, wrong or (f"{ended.left} processes left" if ended.left else "")

    def _strike_later(self, kill: Kill, sign: Path) -> None:
        """A real `kill` from outside."""
        victim: psutil.Process | None = psutil.Process(self.run.process.pid) if kill.victim != "self" else None
        while victim is None and self.run.process.poll() is None:
            victim = self.run.worker(kill.role)
            time.sleep(0.02)
        time.sleep(kill.share * self._bed.undisturbed(self._algorithm).seconds)
        if victim is None or self.run.process.poll() is not None or not victim.is_running():
            return
        sign.touch()
        if kill.victim == "store":
            self._kill_store()
        elif kill.victim == "all":
            self.run.kill_all()
        elif kill.victim == "stop":
            victim.send_signal(signal.SIGTERM)
            try:
                self.run.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.run.kill_all()  # as Kubernetes would; the exit code tells
        else:
            victim.send_signal(signal.SIGKILL)

    def _kill_store(self) -> None:
        assert self._server is not None, "only a run on s3 has a store to kill"
        self._server.kill()


def _broken_promise(kill: Kill, ended: Ended) -> str:
    """Each way to die has its exit code and its line; a silo that dies while it only counts right answers stops nobody."""
    counting = kill.role in DOMAINS and kill.place is not None and kill.place[1] in ("evaluation", "counts")
    lost = {1} if kill.role == "planner" else {0} if counting else {3} if kill.place else {0, 3}
    allowed = {"self": lost, "all": {-9}, "engine": {-9}, "store": {0, 4}, "stop": {130}}[kill.victim]
    if ended.code not in allowed or "Traceback" in ended.said:
        return f"{kill.label}: {ended.line}"
    if ended.code in (1, 3) and kill.role not in ended.said:
        return f"{kill.label}: {kill.role} is not named: {ended.line}"
    return f"{kill.label}: {ended.left} processes left" if ended.left else ""


# ---- which kills


def named(undisturbed: Undisturbed, victims: Sequence[str] = ("self",)) -> list[Kill]:
    """Every place that a process of the undisturbed run passed, in a fixed order."""
    kinds = sorted(undisturbed.passages.items())
    return [
        Kill(victim, role, (moment, kind), count)
        for (role, kind), times in kinds
        for moment, watched in PLACES
        if watched == kind
        for count in range(1, times + 1)
        for victim in victims
    ]


def spread(kills: Sequence[Kill], number: int, draw: random.Random) -> list[Kill]:
    """So many of them at random, but of every label one before a second of any."""
    by_label: dict[str, list[Kill]] = {}
    for kill in kills:
        by_label.setdefault(kill.label, []).append(kill)
    for alike in by_label.values():
        draw.shuffle(alike)
    labels = sorted(by_label)
    draw.shuffle(labels)
    chosen: list[Kill] = []
    while len(chosen) < min(number, len(kills)):
        chosen += [by_label[label].pop() for label in labels if by_label[label]]
    return chosen[:number]


def choose(undisturbed: Undisturbed, on_s3: bool, draw: random.Random) -> list[Kill]:
    """About 26 kills for one algorithm on one store."""
    roles = [draw.choice(DOMAINS), "server", "evaluator"]
    chosen = spread(named(undisturbed), 15, draw)
    chosen += spread(named(undisturbed, ["all"]), 3, draw) + spread(named(undisturbed, ["engine"]), 2, draw)
    chosen += [Kill("self", role, share=draw.uniform(0, 0.3)) for role in roles]
    chosen += [Kill(victim, "server", share=draw.uniform(0.1, 0.9)) for victim in ("all", "engine", "stop")]
    if on_s3:
        writes = [kill for kill in named(undisturbed, ["store"]) if kill.place in (("inside", "payload"), ("after", "payload"))]
        chosen += [*spread(writes, 2, draw), Kill("store", "server", share=draw.uniform(0.3, 0.9))]
    return chosen


def campaign(full: bool) -> Iterator[Row]:
    """One kill, one resume, for every algorithm on both stores; a short one takes a few of them."""
    with tempfile.TemporaryDirectory(prefix="siloflow-chaos-") as folder, running_minio() as server:
        bed, jobs = Bed(Path(folder)), []
        for algorithm in ALGORITHMS:
            for on_s3 in (False, True):
                kills = choose(bed.undisturbed(algorithm), on_s3, random.Random(f"{SEED} {algorithm} {on_s3}"))
                jobs += [(kill, algorithm, server if on_s3 else None) for kill in (kills if full else kills[::9])]
        rows: dict[str, Row] = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            outcomes = pool.map(lambda job: outcome(lambda: _attempt(bed, *job)), jobs)
            for number, ((kill, algorithm, on), (seconds, wrong)) in enumerate(zip(jobs, outcomes, strict=True), 1):
                print(f"kill {number} of {len(jobs)}: {algorithm}, {kill.label}: {wrong or 'survived'}", file=sys.stderr)
                row = rows.setdefault(kill.label, Row("kill", kill.label))
                what = f"{algorithm} on {'s3' if on else 'file'}, {kill}: {wrong}"
                if wrong.startswith(TOO_LATE) and not kill.place:
                    row.missed.append(what)
                else:
                    row.attempt(not wrong, seconds, what)
        yield from sorted(rows.values(), key=lambda row: row.fault)


def _attempt(bed: Bed, kill: Kill, algorithm: str, server: MinioServer | None) -> tuple[float, str]:
    with ExitStack() as own:
        if kill.victim == "store":  # nobody else's store may die with it
            server = own.enter_context(running_minio())
        trial = Trial(bed, algorithm, server)
        trouble = trial.suffer(kill)
        seconds, wrong = trial.recover()
        return seconds, trouble or wrong
