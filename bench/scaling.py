"""What a round costs as the federation grows, without training: `python -m bench.scaling` prints one JSON object.

All silos are on this machine. Up to `most_resident` of them have a process each; more share as many processes as there are cores.
Seconds are those of the fastest round of all runs, since what others do on the machine only adds; CPU seconds and memory are medians.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from bench.rounds import watched
from pipelines.local import MOST_RESIDENT

SILOS = (1, 3, 10, 32, 50)
STEPS = {"small-cnn": 40, "resnet-18": 12}  # steps of silos in a run, at least, so that few silos are watched as long as many
ROUNDS, REPEATS = 4, 1


def federation(backbone: str, silos: int, rounds: int) -> dict[str, Any]:
    return {
        "algorithm": "fedavg", "hyper": {"epochs": 0}, "dataset": "styled-digits", "target": "paper", "sources": ["chalk"],
        "silos_per_domain": silos, "backbone": backbone, "rounds": rounds, "evaluate_every": rounds, "threads": 1, "device": "cpu",
    }  # fmt: skip


def growth(backbone: str) -> list[dict[str, Any]]:
    """A row per number of silos. The runs go round and round, so that a busy minute does not hit one number only."""
    runs: dict[int, list[dict[str, float]]] = {silos: [] for silos in SILOS}
    for turn in range(REPEATS):
        for silos, found in runs.items():
            found.append(watched(federation(backbone, silos, ROUNDS + STEPS[backbone] // silos)))
            print(f"scaling {backbone}, {silos} silos, {turn + 1}/{REPEATS}: {found[-1]}", file=sys.stderr)
    return [{"silos": silos, **summary(found)} for silos, found in runs.items()]


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    medians = {key: round(statistics.median(run[key] for run in runs), 4) for key in ("cpu_seconds_per_round", "peak_pss_mb", "model_mb")}
    return {"seconds_per_round": min(run["fastest_round"] for run in runs), **medians}


def measure() -> dict[str, Any]:
    return {"repeats": REPEATS, "most_resident": MOST_RESIDENT, **{backbone: growth(backbone) for backbone in STEPS}}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
