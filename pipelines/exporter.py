"""Metrics of a local run: what the engine reports, on one endpoint of this process, whatever the number of workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from components.metrics import EVERY_ROLE, Recorder, start
from pipelines.console import Watching

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Outlets:
    """Where the metrics go, if anywhere."""

    port: int | None = None
    gateway: str | None = None

    def open(self, warn: Callable[[str], None]) -> Recorder:
        if self.gateway is not None:
            from components.gateway import check_gateway

            check_gateway(self.gateway)
        return start(self.port, EVERY_ROLE, self.gateway, None, os.environ.get("SILOFLOW_METRICS_ADDRESS") or LOOPBACK, warn)


class Exporting:
    """A view that also records. Stays out of the way of the view it wraps, which is told first."""

    def __init__(self, view: Watching, recorder: Recorder) -> None:
        self._view, self._recorder, self._target, self.seconds = view, recorder, "", 0.0

    def __enter__(self) -> Exporting:
        self._view.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._view.__exit__(kind, error, trace)
        if error is not None:
            self._recorder.failed(error)

    def planned(self, plan: Mapping[str, Any]) -> None:
        self._view.planned(plan)
        self._target = plan["spec"]["target"]
        self._recorder.planned(plan["run"], plan["spec"], plan["silos"])

    def began(self, round: int, exchange: str, participants: Sequence[str]) -> None:
        self._view.began(round, exchange, participants)

    def progress(self, worker: str, stage: str, done: int, total: int, rate: float, loss: float | None) -> None:
        self._view.progress(worker, stage, done, total, rate, loss)
        self._recorder.progressed()

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None:
        self._view.done(worker, action, outcome)
        if action == "silo":
            self._recorder.silo_step(outcome)
        elif action == "server":
            self._recorder.server_step(outcome)
        elif action == "validate":
            self._recorder.counted(outcome, "validation", worker)
        elif action == "evaluate":
            self._recorder.counted(outcome, "target", self._target)
        if "retries" in outcome:
            self._recorder.retried(worker, outcome["retries"])

    def warn(self, message: str) -> None:
        self._view.warn(message)

    def finished(self, result: Mapping[str, Any]) -> None:
        self._view.finished(result)
        self.seconds = self._view.seconds
        self._recorder.finished(result)
