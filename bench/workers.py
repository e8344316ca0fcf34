"""How much faster a federation that mostly trains is with two workers than with one: `python -m bench.workers` prints one JSON object.

`siloflow run --workers N` with four silos of one thread each; a round is from one global model to the next. The two take turns and
the fastest round of each counts, since what others do on the machine only adds. Speed-up is wall time: others make it look smaller.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.observe import observe
from bench.pipelines import SILOFLOW, environment, moments

WORKERS = (1, 2)
ROUNDS, REPEATS = 5, 3
SPEC: dict[str, Any] = {
    "algorithm": "fedavg", "dataset": "styled-digits", "target": "paper", "sources": ["chalk", "neon"], "silos_per_domain": 2,
    "hyper": {"epochs": 1, "steps_per_epoch": 30}, "threads": 1, "device": "cpu",
}  # fmt: skip


def run(folder: Path, workers: int) -> dict[str, Any]:
    """Wall seconds of the fastest round, CPU seconds of the mean one, and the digest, which the number of workers must not change."""
    spec, out = folder / "spec.json", Path(tempfile.mkdtemp(dir=folder)) / "run"
    spec.write_text(json.dumps({**SPEC, "rounds": ROUNDS, "evaluate_every": ROUNDS}))
    words = [SILOFLOW, "run", spec, "--workers", workers, "--out", out, "--no-report", "--json"]
    seen = observe(words, environment(folder))
    models = moments(next(out.glob("store/global/runs/*/rounds")), ROUNDS)
    spent = seen.cpu_at(models[-1]) - seen.cpu_at(models[0])
    digest = json.loads((out / "result.json").read_text())["digest"]
    return {"seconds": min(b - a for a, b in pairwise(models)), "cpu_seconds": spent / (ROUNDS - 1), "digest": digest}


def measure() -> dict[str, Any]:
    runs: dict[int, list[dict[str, Any]]] = {workers: [] for workers in WORKERS}
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        for turn in range(REPEATS):
            for workers, found in runs.items():
                found.append(run(Path(folder), workers))
                print(f"{workers} workers, {turn + 1}/{REPEATS}: {found[-1]}", file=sys.stderr)
    digests = {one["digest"] for found in runs.values() for one in found}
    if len(digests) > 1:
        raise RuntimeError(f"{len(digests)} digests, expected one whatever the number of workers")
    fastest = {workers: min(one["seconds"] for one in found) for workers, found in runs.items()}
    alone = fastest[WORKERS[0]]
    rows = [
        {
            "workers": workers, "seconds_per_round": round(fastest[workers], 3), "speed_up": round(alone / fastest[workers], 2),
            "cpu_seconds_per_round": round(min(one["cpu_seconds"] for one in found), 3),
        }
        for workers, found in runs.items()
    ]  # fmt: skip
    silos = len(SPEC["sources"]) * SPEC["silos_per_domain"]
    return {"silos": silos, "steps": SPEC["hyper"]["steps_per_epoch"], "repeats": REPEATS, "same_digest": True, "rows": rows}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
