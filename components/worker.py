"""A resident process that plays one role, or many silos in turn: it waits for commands on a pipe, runs the step, answers, waits again.

It is forked from a process that has already imported torch, so a silo starts in milliseconds and shares those pages. When
the other end of the pipe goes away, so does it: nothing is left behind, however its parent ended.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from components import plan
from components.errors import SiloflowError
from components.federation import Federation
from components.manifest import Manifest
from components.process import compute_with, keep_freed_memory, log_to_stderr
from components.server import server_step
from components.silo import Role, evaluate_step, silo_step, validate_step
from components.spec import FederationSpec

REPORT_EVERY = 0.1  # seconds between two progress messages
KEPT_ROLES = 8  # silos of one process whose memory of earlier steps is kept; the others read again what they need

Command = tuple[str, str, dict[str, Any]]


def serve(connection: Connection, log: str, threads: int, federation: dict[str, Any] | None, trains: bool) -> None:
    """Main function of the process. Commands: (role, action, arguments); answers: (kind, content) as in pipelines.workers.Message."""
    _settle(log, threads)
    if trains:
        keep_freed_memory()
    commands: queue.Queue[Command] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, commands), daemon=True).start()
    player = Player(connection, federation)
    while True:
        role, action, arguments = commands.get()
        what = " ".join([role, action, *(f"{name}={value}" for name, value in arguments.items() if action != "plan")])
        started = time.monotonic()
        logging.info("%s: begins", what)
        try:
            player.become(role)
            answer: tuple[str, Any] = "done", getattr(player, action)(**arguments)
        except SiloflowError as error:
            logging.error("%s", error)
            answer = "failed", error
        except Exception as error:  # a defect of ours or of a library: the whole trace goes to the log, one line to the user
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            answer = "crashed", f"{type(error).__name__}: {first}; the trace is in {log}"
        logging.info("%s: %s after %.2f s", what, answer[0], time.monotonic() - started)
        connection.send(answer)


def _settle(log: str, threads: int) -> None:
    """Own log file for everything that is printed here; signals of the terminal are the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    log_to_stderr()
    faulthandler.enable()
    compute_with(threads)


def _listen(connection: Connection, commands: queue.Queue[Command]) -> None:
    try:
        while True:
            commands.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


class Player:
    """The actions of every role. A worker is told to do only those of its own."""

    def __init__(self, connection: Connection, federation: dict[str, Any] | None) -> None:
        self._connection, self._federation = connection, federation
        self._stage, self._done, self._begun, self._last = "", 0, 0.0, 0.0
        self._role: Role | None = None
        self._roles: dict[str, Role] = {}  # the one played last is the last

    def become(self, name: str) -> None:
        """Take that role from now on. Silos played in one process share the data they read, never what an algorithm remembers."""
        if self._federation is None:
            return
        role = self._roles.pop(name, None)
        if role is None and self._role is not None:
            role = Role(self._role.federation.beside(name), name, self._report)
        elif role is None:
            spec = FederationSpec.model_validate(self._federation["spec"])
            role = Role(Federation(spec, self._federation["run"], Path(self._federation["folder"]), name), name, self._report)
        self._role = self._roles[name] = role
        while len(self._roles) > KEPT_ROLES:
            del self._roles[next(iter(self._roles))]

    @property
    def role(self) -> Role:
        assert self._role is not None, "a worker must know its federation before it can take a step"
        return self._role

    def plan(self, values: dict[str, Any], folder: str) -> dict[str, Any]:
        return plan.plan(values, Path(folder), self._report)

    def silo(self, round: int, exchange: str) -> dict[str, Any]:
        return self._told(silo_step(self.role, round, exchange))

    def server(self, round: int, exchange: str) -> dict[str, Any]:
        manifest = server_step(self.role, round, exchange)
        following = self.role.federation.step_after(round, exchange)
        return {**self._told(manifest), "following": following}

    def validate(self, round: int) -> dict[str, Any]:
        return self._told(validate_step(self.role, round))

    def evaluate(self, round: int) -> dict[str, Any]:
        return self._told(evaluate_step(self.role, round))

    def _told(self, manifest: Manifest) -> dict[str, Any]:
        """What the engine needs to know of a step: never a list of tensors, but how often the store had to be asked again,
        and what this process has cost so far."""
        told = manifest.model_dump(exclude={"tensors", "parts", "personal"})
        return {**told, "retries": self.role.federation.store.retries, "cpu": {os.getpid(): time.process_time()}}

    def finish(self) -> dict[str, Any]:
        return plan.finish(self.role)

    def report(self, folders: list[str], out: str) -> list[str]:
        from components.report import write_comparison, write_report

        paths = [Path(folder) for folder in folders]
        return write_report(paths[0], Path(out)) if len(paths) == 1 else write_comparison(paths, Path(out))

    def _report(self, stage: str, done: int, total: int, loss: float | None = None) -> None:
        """Progress for the live view, at most every REPORT_EVERY seconds and at each change of stage."""
        now, before = time.monotonic(), self._done
        self._done = done
        if stage != self._stage or done < before:
            self._stage, self._begun = stage, now
        elif now - self._last < REPORT_EVERY and done < total:
            return
        self._last = now
        rate = done / (now - self._begun) if now > self._begun else 0.0
        self._connection.send(("progress", {"stage": stage, "done": done, "total": total, "rate": rate, "loss": loss}))
