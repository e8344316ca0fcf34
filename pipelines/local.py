"""The `local` engine: one server, one evaluator and a resident process per silo, all on this machine.

A federation of very many silos has as many processes as can work at once, each of which plays one silo after another.
The engine decides only who runs the next step. This process imports no torch and touches no tensor; what a step does is
the business of `components`. The processes meet in the store, exactly as they would in a cluster.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from components.errors import DeadlineError, ExpiredError, Interrupted, SiloflowError
from pipelines.lock import only_engine
from pipelines.workers import Job, Message, Workers, cores

PLANNER, SERVER, EVALUATOR = "planner", "server", "evaluator"
COUNTING_LAG = 2  # rounds
MOST_RESIDENT = 32  # silos that have a process each; a process costs some 100 MB beside its model
URGENCY = {"plan": 0, "server": 0, "finish": 0, "silo": 1, "evaluate": 2, "validate": 3}


class View(Protocol):
    """Who watches a run."""

    def planned(self, plan: Mapping[str, Any]) -> None: ...

    def began(self, round: int, exchange: str, participants: Sequence[str]) -> None: ...

    def progress(self, worker: str, stage: str, done: int, total: int, rate: float, loss: float | None) -> None: ...

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None: ...

    def warn(self, message: str) -> None: ...

    def finished(self, result: Mapping[str, Any]) -> None: ...


class LocalEngine:
    """Runs a federation, or the rest of it: steps that were done before return at once."""

    def __init__(self, values: Mapping[str, Any], folder: Path, view: View, at_once: int | None = None) -> None:
        self._values, self._folder, self._view, self._at_once = dict(values), folder.absolute(), view, at_once
        preload = [] if values.get("backbone", "small-cnn") == "small-cnn" else ["torchvision.models"]
        self._workers = Workers(self._folder / "logs", preload)
        self._plan: dict[str, Any] = {}
        self._waiting: list[Job] = []
        self._outcomes: dict[tuple[str, str], Any] = {}
        self._lost: dict[str, str] = {}  # silo -> what became of it, in the open exchange
        self._threads, self._slots = 1, 1

    def run(self) -> dict[str, Any]:
        """The result, as written to result.json. Ends every process it started, whatever happens."""
        try:
            self.plan()
            self._threads, self._slots = self._share_cores(len(self._plan["silos"]))
            if len(self._plan["silos"]) > MOST_RESIDENT:
                self._workers.pool = [f"silos.{number}" for number in range(1, self._slots + 1)]  # no silo has a dot in its name
                self._workers.pooled = frozenset(self._plan["silos"])
            with only_engine(self._folder):
                self._view.planned(self._plan)
                self._rounds()
                self._pump(lambda: not self._waiting and not self._workers.working)
                result: dict[str, Any] = self._call(SERVER, "finish")
            self._view.finished(result)
            return result
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; continue with: siloflow resume {self._folder}") from None
        finally:
            self._workers.stop()

    def plan(self) -> dict[str, Any]:
        """Check the input and lay out the run folder; `run` does so itself when nobody asked before.

        In a process of its own that logs elsewhere: when the input is wrong, nothing must be in the run folder.
        """
        if self._plan:
            return self._plan
        elsewhere, defect = Path(tempfile.mkdtemp(prefix="siloflow-")), False
        logs, self._workers.logs = self._workers.logs, elsewhere
        try:
            self._plan = self._call(PLANNER, "plan", values=self._values, folder=str(self._folder))
            logs.mkdir(exist_ok=True)
            with (logs / f"{PLANNER}.log").open("ab") as kept:  # what it warned of, and that of an earlier call
                kept.write((elsewhere / f"{PLANNER}.log").read_bytes())
        except SiloflowError as error:
            defect = error.exit_code == SiloflowError.exit_code
            raise
        finally:
            self._workers.stop()
            self._workers.logs = logs
            if not defect:  # the message of a defect names the log
                shutil.rmtree(elsewhere, ignore_errors=True)
        return self._plan

    def _share_cores(self, silos: int) -> tuple[int, int]:
        """Threads of a worker and how many work at once: never more threads than cores.

        Threads follow from the machine and the spec alone, since sums in another order differ in the last bits; how many
        work at once changes no digit.
        """
        threads = self._plan["spec"]["threads"] or max(1, cores() // min(silos, cores()))
        return threads, max(1, min(cores() // threads, self._at_once or cores()))

    # ---- the order of steps

    def _rounds(self) -> None:
        step, participants = tuple(self._plan["first"]), list(self._plan["silos"])
        while step:
            round, exchange = step
            self._catch_up(round - COUNTING_LAG)
            self._view.began(round, exchange, participants)
            self._exchange(round, exchange, participants)
            broadcast = self._call(SERVER, "server", round=round, exchange=exchange)
            following = broadcast["following"]
            if following is None or (following[0] > round > 0 and round % self._plan["spec"]["evaluate_every"] == 0):
                self._count(round, broadcast["roster"])
            step, participants = following, broadcast["participants"]

    def _exchange(self, round: int, exchange: str, participants: Sequence[str]) -> None:
        """Every participant's step. Returns when each has published or is lost, as long as a quorum is left."""
        self._lost.clear()
        for silo in participants:
            self._outcomes.pop((silo, "silo"), None)
            self._waiting.append(Job(silo, "silo", {"round": round, "exchange": exchange}))
        needed = math.ceil(self._plan["spec"]["quorum"] * len(participants) - 1e-9)

        def settled() -> bool:
            if len(participants) - len(self._lost) < needed:
                raise DeadlineError(f"round {round} {exchange}: " + "; ".join(f"silo {s}: {why}" for s, why in self._lost.items()))
            return all(silo in self._lost or (silo, "silo") in self._outcomes for silo in participants)

        self._pump(settled)

    def _count(self, round: int, silos: Mapping[str, int]) -> None:
        """Nothing waits for the counting of right answers: it fills the gaps of the next round."""
        self._waiting.append(Job(EVALUATOR, "evaluate", {"round": round}))
        self._waiting += [Job(silo, "validate", {"round": round}) for silo in silos]

    def _catch_up(self, round: int) -> None:
        """Counting has the lowest urgency: with few cores it would fall behind for good, and old models expire."""
        self._pump(lambda: all(job.arguments["round"] >= round for job in self._waiting))

    # ---- work given and taken

    def _call(self, name: str, action: str, **arguments: Any) -> Any:
        self._outcomes.pop((name, action), None)
        self._waiting.append(Job(name, action, arguments))
        self._pump(lambda: (name, action) in self._outcomes)
        return self._outcomes[name, action]

    def _pump(self, until: Callable[[], bool]) -> None:
        while not until():
            self._give_work()
            for message in self._workers.messages(timeout=0.25):
                self._take(message)
            self._enforce_deadline()

    def _give_work(self) -> None:
        """Most urgent first. The server's own steps are short and everybody waits for them, so they take no slot."""
        federation = {**{key: self._plan[key] for key in ("spec", "run", "silos")}, "folder": str(self._folder)} if self._plan else None
        for job in sorted(self._waiting, key=lambda job: URGENCY[job.action]):
            at_work = sum(worker.computes for name, worker in self._workers.running.items() if name != SERVER)
            if job.worker != SERVER and at_work >= self._slots:
                continue
            if self._workers.give(job, federation, self._threads):
                self._waiting.remove(job)

    def _take(self, message: Message) -> None:
        if message.kind == "progress":
            self._view.progress(message.worker, **message.content)
        elif message.kind == "done" and message.job is not None:
            self._outcomes[message.worker, message.job.action] = message.content
            self._view.done(message.worker, message.job.action, message.content)
        elif message.kind == "failed" and not isinstance(message.content, ExpiredError):
            raise message.content
        else:
            self._lose(message.worker, message.job, str(message.content))

    def _lose(self, worker: str, job: Job | None, why: str) -> None:
        """A silo may be lost for an exchange, if a quorum is left; the server and the evaluator may not."""
        if job is None:
            return  # it died idle; its next job starts a new process
        if job.action == "silo":
            self._lost[worker] = why
            self._view.warn(f"silo {worker} lost in round {job.arguments['round']}: {why}")
        elif job.action == "validate":
            self._view.warn(f"silo {worker} could not validate round {job.arguments['round']}: {why}")
        else:
            raise SiloflowError(f"{worker}: {why}") if job.action == "plan" else DeadlineError(f"{worker}: {why}")

    def _enforce_deadline(self) -> None:
        if not self._plan:
            return
        limit, now = self._plan["spec"]["deadline"], time.monotonic()
        for name, worker in list(self._workers.running.items()):
            if worker.job is not None and worker.job.action in ("silo", "validate") and now - worker.since > limit:
                job = worker.job
                worker.process.kill()
                self._workers.bury(name)
                self._lose(job.worker, job, f"missed its deadline of {limit:g} s; see {self._workers.logs / name}.log, or raise `deadline`")
