"""What is known of a run while it goes on, gathered from what the engine reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.local import EVALUATOR

RECENT = 5  # rounds that the estimate of the remaining time looks at


@dataclass
class Round:
    """One round so far. `awaited`: who has still to count right answers."""

    number: int
    began: float
    seconds: float | None = None  # None: still going on
    losses: dict[str, float] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    right: dict[str, tuple[float, float]] = field(default_factory=dict)  # who -> correct, total

    @property
    def settled(self) -> bool:
        return self.seconds is not None and not self.awaited

    @property
    def validated(self) -> bool:
        return self.seconds is not None and not self.awaited - {EVALUATOR}

    @property
    def validation(self) -> float | None:
        """Pooled over the silos, as in the result."""
        counts = [count for who, count in self.right.items() if who != EVALUATOR]
        return sum(correct for correct, _ in counts) / sum(total for _, total in counts) if counts else None

    @property
    def target(self) -> float | None:
        correct, total = self.right.get(EVALUATOR, (0.0, 0.0))
        return correct / total if total else None

    @property
    def loss(self) -> float | None:
        return sum(self.losses.values()) / len(self.losses) if self.losses else None


class Track:
    """Rounds and their numbers, gathered from what the engine reports."""

    def __init__(self) -> None:
        self.plan: Mapping[str, Any] = {}
        self.rounds: dict[int, Round] = {}

    def began(self, number: int) -> None:
        if number > 0:
            self.rounds.setdefault(number, Round(number, time.monotonic()))

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None:
        entry = self.rounds.get(outcome.get("round", 0))
        if entry is None:
            return
        metrics = outcome.get("metrics", {})
        if action == "server":
            self._close(entry, outcome)
        elif action in ("validate", "evaluate"):
            entry.awaited.discard(worker)
            if metrics.get("total"):
                entry.right[worker] = (metrics["correct"], metrics["total"])
        elif metrics.get("loss") is not None:
            entry.losses[worker] = metrics["loss"]

    def _close(self, entry: Round, broadcast: Mapping[str, Any]) -> None:
        following = broadcast["following"]
        if following is not None and following[0] == entry.number:
            return
        entry.seconds = time.monotonic() - entry.began
        if following is None or entry.number % self.plan["spec"]["evaluate_every"] == 0:
            entry.awaited = {EVALUATOR, *broadcast["roster"]}

    def remaining(self) -> float | None:
        """Seconds to the end at the pace of the last rounds."""
        closed = [entry for entry in self.rounds.values() if entry.seconds is not None]
        if not closed:
            return None
        recent = [entry.seconds or 0.0 for entry in closed[-RECENT:]]
        running = sum(time.monotonic() - entry.began for entry in self.rounds.values() if entry.seconds is None)
        return max(0.0, (self.plan["spec"]["rounds"] - len(closed)) * sum(recent) / len(recent) - running)
