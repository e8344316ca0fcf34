"""The numbers of a benchmark: mean and standard error over seeds, by algorithm and target, under each selection rule."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Row = Mapping[str, Any]  # a line of results.jsonl
REFERENCE = "fedavg"
ERRORS = 2.0  # standard errors within which two means are not told apart


@dataclass(frozen=True)
class Spread:
    """The error of a mean needs two seeds."""

    mean: float
    error: float | None
    seeds: int

    def points(self) -> str:
        return f"{100 * self.mean:.1f}" + (f" ± {100 * self.error:.1f}" if self.error is not None else "")


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Scores:
    """What a benchmark's rows say. Rows of the exact run are not part of the table."""

    rows: Sequence[Row]

    @cached_property
    def done(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == "done" and not row.get("exact")]

    @cached_property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row["status"] != "done"]

    @cached_property
    def targets(self) -> list[str]:
        """In the order in which they were asked for."""
        return list(dict.fromkeys(str(row["target"]) for row in self.rows if not row.get("exact")))

    @cached_property
    def algorithms(self) -> list[str]:
        """Best average after the last round first; who has not every target comes last."""
        return self.ranked("last")

    def ranked(self, rule: str) -> list[str]:
        names = list(dict.fromkeys(str(row["algorithm"]) for row in self.done))
        return sorted(names, key=lambda name: -(found.mean if (found := self.average(name, rule)) is not None else -1.0))

    def places(self, rule: str = "last") -> dict[str, Spread]:
        """By `algorithm/target`."""
        found = {f"{name}/{target}": self.cell(name, target, rule) for name in self.algorithms for target in self.targets}
        return {place: one for place, one in found.items() if one is not None}

    def of(self, algorithm: str) -> list[Row]:
        return [row for row in self.done if row["algorithm"] == algorithm]

    def cell(self, algorithm: str, target: str, rule: str = "last") -> Spread | None:
        own = [row["accuracy"].get(rule) for row in self.of(algorithm) if row["target"] == target]
        return spread([value for value in own if value is not None])

    def average(self, algorithm: str, rule: str = "last") -> Spread | None:
        """Unweighted over the targets, then over the seeds that have all of them."""
        return spread(list(self._by_seed(algorithm, rule).values()))

    def gain(self, algorithm: str, other: str, rule: str = "last") -> Spread | None:
        """Difference of the averages, seed by seed, where both have the seed."""
        ours, theirs = self._by_seed(algorithm, rule), self._by_seed(other, rule)
        return spread([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    def _by_seed(self, algorithm: str, rule: str) -> dict[int, float]:
        found: dict[int, dict[str, float]] = {}
        for row in self.of(algorithm):
            if (value := row["accuracy"].get(rule)) is not None:
                found.setdefault(row["seed"], {})[row["target"]] = value
        return {seed: statistics.mean(own.values()) for seed, own in found.items() if len(own) == len(self.targets)}


def rounds_of(row: Row) -> int:
    return max(1, int(row["setting"].get("rounds") or 1))
