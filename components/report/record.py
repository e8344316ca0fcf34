"""What is known of a run, in memory: its spec, its rounds, and the manifests they were read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from components.federation import Federation
from components.manifest import BroadcastManifest, Manifest, UpdateManifest

DAY = 86_400.0  # seconds


class Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Measured(Lenient):
    """A round as result.json has it."""

    round: int
    train_loss: dict[str, float] = {}
    validation: dict[str, float | None] = {}
    validation_accuracy: float | None = None
    validation_loss: float | None = None
    target_accuracy: float | None = None
    weights: dict[str, float] = {}
    rejected: list[dict[str, Any]] = []
    missing: list[str] = []


class Baseline(Lenient):
    algorithm: str
    accuracy: dict[str, float | None]


class Result(Lenient):
    """What of result.json the report needs. A file of another version that has this is good enough."""

    run: str
    algorithm: str
    dataset: str
    target: str
    seed: int
    rounds: int
    digest: str
    accuracy: dict[str, float | None]
    history: list[Measured]
    seconds: dict[str, float] = {}
    bytes: dict[str, int] = {}
    rejected: list[dict[str, Any]] = []
    absent: list[str] = []
    baseline: Baseline | None = None


@dataclass
class Score:
    """`loss` is a mean."""

    accuracy: float
    total: int = 0
    loss: float | None = None


@dataclass
class Round:
    number: int
    target: Score | None = None
    pooled: Score | None = None
    validation: dict[str, Score] = field(default_factory=dict)
    train_loss: dict[str, float] = field(default_factory=dict)
    drift: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    layer_weights: dict[str, dict[str, float]] = field(default_factory=dict)  # tensor -> silo -> weight


@dataclass
class Record:
    """Everything the page is made of, apart from what only the model itself can tell (components.report.look)."""

    name: str
    spec: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    result: Result | None = None
    federation: Federation | None = None
    folder: Path | None = None
    rounds: dict[int, Round] = field(default_factory=dict)
    updates: list[UpdateManifest] = field(default_factory=list)
    broadcasts: list[BroadcastManifest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def silos(self) -> list[str]:
        found = {name for broadcast in self.broadcasts for name in broadcast.roster}
        return sorted(found | {name for entry in self.rounds.values() for name in [*entry.validation, *entry.train_loss, *entry.weights]})

    @property
    def wanted_rounds(self) -> int:
        return int(self.spec.get("rounds") or (self.result.rounds if self.result else 0))

    @property
    def finished(self) -> bool:
        return self.result is not None or self.wanted_rounds in self.rounds

    @property
    def rejected(self) -> list[dict[str, Any]]:
        if self.broadcasts:
            return [{"round": b.round, "exchange": b.exchange, **item.model_dump()} for b in self.broadcasts for item in b.rejected]
        return self.result.rejected if self.result else []

    @property
    def timed(self) -> list[Manifest]:
        """Steps that say when they began. A silo's clock may be wrong, or lie: what is days away from the server's steps is left out."""
        known: list[Manifest] = [m for m in [*self.updates, *self.broadcasts] if m.began is not None and m.seconds]
        server = [m.began or 0.0 for m in self.broadcasts if m.began is not None] or [m.began or 0.0 for m in known]
        return [
            m for m in known
            if min(server) - DAY < (m.began or 0.0) < max(server) + DAY and all(0 <= value < DAY for value in m.seconds.values())
        ]  # fmt: skip

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
