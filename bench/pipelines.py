"""What an engine adds to a round: the local engine, resident roles as separate processes, and the stepwise package under kfp.local.

    python -m bench.pipelines        # JSON on stdout

Training is kept small on purpose. Seconds a round are the slope between a short and a long run, so that starting up does not
count; seconds a task are what the stepwise run took beyond the local engine's for the same rounds, over its number of tasks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

SILOFLOW = str(Path(sys.executable).with_name("siloflow"))
RUNNER = Path(__file__).parents[1] / "tests" / "pipelines" / "run_package.py"
SILOS = ("chalk", "neon", "pencil")
SPEC: dict[str, Any] = {
    "algorithm": "fedavg", "dataset": "styled-digits", "target": "paper", "hyper": {"epochs": 1, "steps_per_epoch": 20}, "threads": 1,
}  # fmt: skip
SHORT, LONG, REPEATS = 2, 12, 3
EXIT_FAILED = 1


def timed(command: list[Any], folder: Path) -> float:
    started = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(EXIT_FAILED)
    return time.monotonic() - started


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "SILOFLOW_CACHE": str(folder / "cache"), "SILOFLOW_STATE": str(folder / "state"), "OMP_NUM_THREADS": "1"}


def local(folder: Path, rounds: int) -> float:
    (folder / "spec.yaml").write_text(json.dumps({**SPEC, "rounds": rounds}))
    return timed([SILOFLOW, "run", folder / "spec.yaml", "--out", folder / f"local-{time.time_ns()}", "--no-report"], folder)


def resident(folder: Path, rounds: int) -> float:
    """From the first broadcast to the last: the roles' start-up is not part of a round."""
    run = f"run-{time.time_ns()}"
    address = f"{(folder / 'resident').as_uri()}/{run}"
    (folder / "spec.yaml").write_text(json.dumps({**SPEC, "rounds": rounds}))
    commands = [[SILOFLOW, "silo", address, "--name", silo, "--state", folder / run / silo] for silo in SILOS]
    commands.append([SILOFLOW, "evaluator", address, "--state", folder / run / "evaluator"])
    chosen = [word for silo in SILOS for word in ("--silo", silo)]
    commands.append([SILOFLOW, "server", address, "--spec", folder / "spec.yaml", *chosen, "--state", folder / run / "server"])
    options: dict[str, Any] = {"cwd": folder, "env": environment(folder), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(list(map(str, command)), **options) for command in commands]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"resident roles ended with {codes}")
    models = moments(folder / "resident" / "global" / "runs" / run / "rounds", rounds)
    return models[-1] - models[0]


def moments(steps: Path, rounds: int) -> list[float]:
    """When the global model of each round was published, in a store that is a folder."""
    return [(steps / f"{number}/train/broadcast.json").stat().st_mtime for number in range(1, rounds + 1)]


def engine_rounds(folder: Path, rounds: int) -> float:
    """The same of the local engine."""
    local(folder, rounds)
    newest = max(folder.glob("local-*"), key=lambda path: path.name)
    models = moments(next(newest.glob("store/global/runs/*/rounds")), rounds)
    return models[-1] - models[0]


def stepwise(folder: Path, rounds: int) -> tuple[float, int]:
    (folder / "silos.yaml").write_text(json.dumps({"store": (folder / "stepwise").as_uri(), "silos": [{"name": silo} for silo in SILOS]}))
    timed([SILOFLOW, "compile", folder / "silos.yaml", "-o", folder / "package.yaml"], folder)
    values = {"algorithm": "fedavg", "dataset": "styled-digits", "target": "paper", "rounds": rounds, "run": f"run-{time.time_ns()}"}
    values["spec"] = json.dumps({name: value for name, value in SPEC.items() if name not in values})
    seconds = timed([sys.executable, RUNNER, folder / "package.yaml", folder / "out", json.dumps(values)], folder)
    return seconds, (rounds + 2) * (len(SILOS) + 1) + 3


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as name:
        folder = Path(name)
        local(folder, SHORT)  # the data's cache
        rounds = [(engine_rounds(folder, LONG) / (LONG - 1), resident(folder, LONG) / (LONG - 1)) for _ in range(REPEATS)]
        torch = median(timed([sys.executable, "-c", "import torch"], folder) for _ in range(REPEATS))
        whole, (stepped, tasks) = local(folder, SHORT), stepwise(folder, SHORT)
    engine, apart = (median(column) for column in zip(*rounds, strict=True))
    ratios = sorted(round(other / own, 2) for own, other in rounds)
    return {
        "silos": len(SILOS), "steps": SPEC["hyper"]["steps_per_epoch"], "rounds": LONG, "repeats": REPEATS,
        "round_seconds": {"local": round(engine, 3), "resident": round(apart, 3)},
        "resident_ratio": {"median": median(ratios), "least": ratios[0], "most": ratios[-1]},
        "stepwise_kfp_local": {
            "seconds": round(stepped, 1), "local_seconds": round(whole, 1), "tasks": tasks,
            "overhead_per_task": round((stepped - whole) / tasks, 2), "of_which_import_torch": round(torch, 2),
        },
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
