"""A resident process that plays one role: it waits for commands on a pipe, runs the step, answers, and waits again.

It is forked from a process that has already imported torch, so a silo starts in milliseconds and shares those pages. When
the other end of the pipe goes away, so does it: nothing is left behind, however its parent ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from components import plan
from components.errors import SiloflowError
from components.federation import Federation
from components.server import server_step
from components.silo import Role, evaluate_step, silo_step, validate_step
from components.spec import FederationSpec

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
REPORT_EVERY = 0.1  # seconds between two progress messages


def serve(connection: Connection, name: str, log: str, threads: int, federation: dict[str, Any] | None) -> None:
    """Main function of the process. Commands: (action, arguments); answers: (kind, content) as in pipelines.workers.Message."""
    _settle(log, threads)
    if federation is not None and name in federation["silos"]:
        _keep_freed_memory()
    commands: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, commands), daemon=True).start()
    player = Player(connection, name, federation)
    while True:
        action, arguments = commands.get()
        what = " ".join([action, *(f"{name}={value}" for name, value in arguments.items() if action != "plan")])
        started = time.monotonic()
        logging.info("%s: begins", what)
        try:
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
    level = logging.DEBUG if os.environ.get("SILOFLOW_DEBUG") else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    faulthandler.enable()
    torch.set_num_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only then
    if torch.cuda.is_available():  # on the CPU a fixed number of threads is enough, and the call costs seconds of imports
        torch.use_deterministic_algorithms(True, warn_only=True)


def _keep_freed_memory() -> None:
    """glibc gives freed activations back to the kernel after every batch and faults them in again for the next (specs: 1.13x)."""
    with contextlib.suppress(OSError, AttributeError):  # another libc has no such setting
        libc = ctypes.CDLL(None)
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            libc.mallopt(option, 1 << 30)


def _listen(connection: Connection, commands: queue.Queue[tuple[str, dict[str, Any]]]) -> None:
    try:
        while True:
            commands.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


class Player:
    """The actions of every role. A worker is told to do only those of its own."""

    def __init__(self, connection: Connection, name: str, federation: dict[str, Any] | None) -> None:
        self._connection = connection
        self._stage, self._done, self._begun, self._last = "", 0, 0.0, 0.0
        self._role: Role | None = None
        if federation is not None:
            spec = FederationSpec.model_validate(federation["spec"])
            self._role = Role(Federation(spec, federation["run"], Path(federation["folder"]), name), name, self._report)

    @property
    def role(self) -> Role:
        assert self._role is not None, "a worker must know its federation before it can take a step"
        return self._role

    def plan(self, values: dict[str, Any], folder: str) -> dict[str, Any]:
        return plan.plan(values, Path(folder), self._report)

    def silo(self, round: int, exchange: str) -> dict[str, Any]:
        return silo_step(self.role, round, exchange).model_dump(exclude={"tensors"})

    def server(self, round: int, exchange: str) -> dict[str, Any]:
        manifest = server_step(self.role, round, exchange)
        following = self.role.federation.step_after(round, exchange)
        return {**manifest.model_dump(exclude={"parts", "personal"}), "following": following}

    def validate(self, round: int) -> dict[str, Any]:
        return validate_step(self.role, round).model_dump(exclude={"tensors"})

    def evaluate(self, round: int) -> dict[str, Any]:
        return evaluate_step(self.role, round).model_dump(exclude={"tensors"})

    def finish(self) -> dict[str, Any]:
        return plan.finish(self.role)

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
