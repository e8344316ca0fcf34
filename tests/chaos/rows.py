"""One line of the reliability table: a fault, how often it was tried, and what became of the runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Row:
    """`survived` counts the attempts that ended as promised: the same digest after a resume, or a refusal with the right exit code."""

    part: str  # heading under which the row is printed: "kill", "store", "silo", "poison", "fuzz", "load"
    fault: str
    tried: int = 0
    survived: int = 0
    seconds: list[float] = field(default_factory=list)  # to recover, one per attempt; empty where there is nothing to recover
    lost: list[str] = field(default_factory=list)  # one line per attempt that did not survive
    missed: list[str] = field(default_factory=list)  # the run was over before the fault: not an attempt
    note: str = ""

    def attempt(self, survived: bool, seconds: float | None = None, lost: str = "") -> None:
        self.tried += 1
        self.survived += survived
        if seconds is not None:
            self.seconds.append(round(seconds, 3))
        if not survived:
            self.lost.append(lost or "no reason given")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
