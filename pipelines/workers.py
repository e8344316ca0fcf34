"""The processes of a local run: started from one process that has imported torch already, watched, and ended together."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from components.allocator import for_children

LOG_LINES = 3
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """This process is killed when the one that started it ends, however that ended."""
    with contextlib.suppress(OSError, AttributeError):  # another system has no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def granted_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole cores that this process may use at once: a container has the affinity of its node, and a limit that is less."""
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroup v2, v1
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in names).split()
            return cores() if quota in ("max", "-1") else max(1, min(cores(), int(quota) // int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return cores()


@dataclass
class Job:
    worker: str
    action: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """From a worker: `progress`, `done`, `failed` (with an exception), or `died` (with the reason and its last log lines)."""

    worker: str  # the role that it played
    kind: str
    job: Job | None
    content: Any


@dataclass
class Worker:
    process: Any
    connection: Connection
    job: Job | None = None
    since: float = 0.0
    computes: bool = False  # not while it waits for the store


@dataclass
class Workers:
    """One process per role, or a few that play many roles in turn. A process that died is replaced with its next job."""

    logs: Path
    preload: Sequence[str] = ()  # modules that every worker will need
    running: dict[str, Worker] = field(default_factory=dict)  # by the name of the process
    pool: Sequence[str] = ()  # processes that play whatever is in `pooled`
    pooled: Container[str] = ()  # roles without a process of their own

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pipelines.nursery", *self.preload])
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker then asks for its own number; no pool of idle threads before

    @property
    def working(self) -> list[Worker]:
        return [worker for worker in self.running.values() if worker.job is not None]

    def free(self, role: str) -> str | None:
        """The process that can take this role's next job now. A role never has two jobs at once, whoever plays it."""
        if any(worker.job is not None and worker.job.worker == role for worker in self.working):
            return None
        candidates = self.pool if role in self.pooled else [role]
        return next((name for name in candidates if name not in self.running or self.running[name].job is None), None)

    def give(self, job: Job, federation: dict[str, Any] | None, threads: int) -> bool:
        """False if nobody can take it now."""
        name = self.free(job.worker)
        if name is None:
            return False
        if name not in self.running:
            self._start(name, federation, threads)
        worker = self.running[name]
        worker.job, worker.since, worker.computes = job, time.monotonic(), True
        try:
            worker.connection.send((job.worker, job.action, job.arguments))
        except OSError:
            pass  # it died this instant: `messages` reports it
        return True

    def _start(self, name: str, federation: dict[str, Any] | None, threads: int) -> None:
        _start_nursery()
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        log = str(self.logs / f"{name}.log")
        trains = name in self.pool or (federation is not None and name in federation["silos"])
        arguments = (theirs, log, threads, federation, trains)
        process = context.Process(target=_become, args=arguments, name=f"siloflow-{name}", daemon=True)
        process.start()
        theirs.close()
        self.running[name] = Worker(process, ours)

    def messages(self, timeout: float) -> Iterator[Message]:
        """What arrived within `timeout` seconds; a death is noticed as soon as the kernel closes the pipe."""
        names = {worker.connection: name for name, worker in self.running.items()}
        for connection in wait(list(names), timeout):
            name = names[connection]  # type: ignore[index]
            worker = self.running[name]
            job = worker.job
            try:
                kind, content = worker.connection.recv()
            except (EOFError, OSError):
                yield Message(job.worker if job else name, "died", job, self.bury(name))
                continue
            if kind != "progress":
                worker.job, worker.computes = None, False
            elif content["stage"] == "upload":
                worker.computes = False
            yield Message(job.worker if job else name, kind, job, content)

    def bury(self, name: str) -> str:
        """End the process for good; says how it ended and what it logged last."""
        worker = self.running.pop(name)
        worker.process.join(0.5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        code = worker.process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return f"its process ended ({how}); last lines of {self.logs / f'{name}.log'}: {self.last_lines(name)}"

    def last_lines(self, name: str) -> str:
        try:
            lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            lines = []
        return " | ".join(line.strip() for line in lines if line.strip()) or "(empty)"

    def stop(self) -> None:
        """SIGKILL for all: whatever is half done is done again on resume."""
        for worker in self.running.values():
            worker.process.kill()
        for worker in self.running.values():
            worker.process.join()
            worker.connection.close()
        self.running.clear()


def _start_nursery() -> None:
    """With SIGINT blocked for good: a Ctrl-C while it still imports torch must not make it print a trace."""
    resource_tracker.ensure_running()  # first, since it unblocks the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with for_children():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _become(connection: Connection, log: str, threads: int, federation: dict[str, Any] | None, trains: bool) -> None:
    # imported in the child: the process that starts workers must not load torch
    from components.worker import serve

    serve(connection, log, threads, federation, trains)
