"""Runs of the installed command as real processes, on a federation small enough to be run hundreds of times."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.federations import draw_pictures, values
from tests.pipelines.commands import command

HOOK = Path(__file__).with_name("hook")
PATIENCE = 120.0  # seconds; what takes longer hangs


@dataclass(frozen=True)
class Ended:
    """How a command ended. `said` is the last line on stderr."""

    code: int
    said: str
    seconds: float
    left: int  # processes that outlived it
    result: dict[str, Any] | None

    @property
    def line(self) -> str:
        return f"exit code {self.code}: {self.said[:300]}"


@dataclass(frozen=True)
class Undisturbed:
    """What every disturbed run has to end with, how long it takes, and the places that its processes pass."""

    result: dict[str, Any]
    seconds: float
    passages: Counter[tuple[str, str]]  # (role, kind) -> how often


class Run:
    """One run folder, and the command that works on it at the moment."""

    def __init__(self, bed: Bed, folder: Path, spec: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        self.folder, self._bed, self._environment = folder, bed, dict(environment or {})
        self._spec = folder.with_suffix(".json")
        self._spec.write_text(json.dumps(spec))

    def start(self, chaos: str = "", sign: Path | None = None, **environment: str) -> None:
        """`resume` where there is a run to resume; before that, the same `run` again."""
        words = ["resume", self.folder] if (self.folder / "spec.yaml").exists() else ["run", self._spec, "--out", self.folder]
        hook = {"PYTHONPATH": str(HOOK), "SILOFLOW_CHAOS": chaos, "SILOFLOW_CHAOS_SIGN": str(sign)} if chaos else {}
        self._began = time.monotonic()
        self.process = command(*words, "--json", "--no-report", env={**self._bed.environment, **self._environment, **hook, **environment})

    def at_place(self, sign: Path, action: Callable[[], None] | None = None) -> None:
        """Waits until the hook gives the sign, or the command ends. The process that gave it goes on after the action."""
        while self.process.poll() is None and not sign.exists():
            time.sleep(0.01)
        if action is not None and sign.exists():
            try:
                action()
            except BaseException:
                self.kill_all()
                raise
            sign.with_suffix(".done").touch()

    def end(self, patience: float = PATIENCE) -> Ended:
        """Waits for the command. One that hangs is killed, and so is whatever outlives it; both are told."""
        try:
            out, err = self.process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            self.kill_all()
            out, err = self.process.communicate()
            err += f"\nhung for {patience:g} s"
        seconds = time.monotonic() - self._began
        left = self._survivors()
        said = next((line for line in reversed(err.splitlines()) if line.strip()), "")
        return Ended(self.process.returncode, said, seconds, left, json.loads(out) if self.process.returncode == 0 else None)

    def _survivors(self) -> int:
        end = time.monotonic() + 5
        while session_members(self.process.pid) and time.monotonic() < end:
            time.sleep(0.02)
        left = len(session_members(self.process.pid))
        self.kill_all()
        return left

    def kill_all(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def worker(self, role: str) -> psutil.Process | None:
        """The process that plays this role now."""
        log = str(self.folder / "logs" / f"{role}.log")
        for process in session_members(self.process.pid):
            with suppress(OSError):
                if os.path.realpath(f"/proc/{process.pid}/fd/1") == log:
                    return process
        return None


class Bed:
    """Pictures, their cache and the undisturbed runs; shared by all attempts of a campaign, also by concurrent ones."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pictures = folder, draw_pictures(folder / "pictures")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SILOFLOW_", "AWS_", "MINIO_"))}
        self.environment = {**kept, "SILOFLOW_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        self._undisturbed: dict[str, Undisturbed] = {}
        self._numbers, self._lock = itertools.count(1), threading.Lock()

    def spec(self, algorithm: str, **fields: Any) -> dict[str, Any]:
        return values(self.pictures, algorithm, **{"rounds": 3, "threads": 1, **fields})

    def new_folder(self) -> Path:
        """Of a run to be; all runs are called `run`, so that only the spec can make a difference."""
        place = self.folder / f"attempt-{next(self._numbers)}"
        place.mkdir()
        return place / "run"

    def run(self, spec: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Run:
        return Run(self, self.new_folder(), spec, environment)

    def undisturbed(self, algorithm: str, **fields: Any) -> Undisturbed:
        """Of the spec with these fields; run once, then known."""
        spec = self.spec(algorithm, **fields)
        key = json.dumps(spec, sort_keys=True)
        with self._lock:
            if key not in self._undisturbed:
                self._undisturbed[key] = self._measure(spec)
        return self._undisturbed[key]

    def _measure(self, spec: Mapping[str, Any]) -> Undisturbed:
        run = self.run(spec)
        record = run.folder.with_name("passages")
        run.start("record", record)
        ended = run.end()
        if ended.result is None or ended.left:
            raise RuntimeError(f"the undisturbed run of {spec['algorithm']} failed: {ended.line}")
        passages = Counter((role, kind) for role, kind in map(str.split, record.read_text().splitlines()))
        return Undisturbed(ended.result, ended.seconds, passages)


def session_members(leader: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def outcome(attempt: Callable[[], tuple[float, str]]) -> tuple[float | None, str]:
    """Seconds and what went wrong: one attempt that breaks must not end the campaign."""
    try:
        return attempt()
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Which part of a result is not what the undisturbed run found; empty: the same model, counts, weights and losses."""
    fields = ("participants", "missing", "weights", "rejected", "train_loss", "validation", "target_accuracy")
    for name in ("digest", "accuracy"):
        if found[name] != expected[name]:
            return f"{name} is {found[name]}, undisturbed {expected[name]}"
    for mine, theirs in zip(found["history"], expected["history"], strict=True):
        for name in fields:
            if mine[name] != theirs[name]:
                return f"round {mine['round']}: {name} is {mine[name]}, undisturbed {theirs[name]}"
    return ""
