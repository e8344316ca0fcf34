"""Two silos on two cores against one, and how soon a silo has its first batch, with the product's own engine and processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.local import LocalEngine
from pipelines.workers import cores

FIRST_BATCH = """
import sys, time
import torch
from components.federation import Federation, resolve
from components.process import compute_with
from components.silo import Role
from components.spec import parse_spec
from pathlib import Path
compute_with(1)
spec = {"algorithm": "fedavg", "dataset": {"name": "folder", "path": sys.argv[1], "image_size": 224}, "target": "cartoon"}
began = time.monotonic()
role = Role(Federation(resolve(parse_spec(spec)), "first", Path(sys.argv[2]), "photo"), "photo")
next(role.samples("train").batches(32))
print(time.monotonic() - began)
"""


class Clock:
    """A view that notes how long each silo computed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None:
        if action == "silo" and outcome["round"] == 1:
            self.seconds[worker] = outcome["seconds"]["compute"]

    began = finished = planned = progress = warn = lambda *_, **__: None


def slowest_silo(pictures: Path, silos: int) -> float:
    """Seconds of an epoch of FedAvg, MobileNetV3-Large, 64 images a silo; of the silo that took longest."""
    hyper = {"epochs": 1, "steps_per_epoch": 2}
    data = {"name": "folder", "path": str(pictures), "image_size": 224}
    spec = {
        "algorithm": "fedavg", "dataset": data, "target": "cartoon", "sources": ["photo"], "silos_per_domain": silos, "hyper": hyper,
        "backbone": "mobilenet-v3-large", "rounds": 1, "threads": 1, "device": "cpu",
    }  # fmt: skip
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        LocalEngine(spec, Path(folder) / "run", clock).run()
    assert len(clock.seconds) == silos
    return max(clock.seconds.values())


def together(pictures: Path, repeats: int) -> dict[str, Any]:
    """Interleaved, best of each: what others do on this machine only adds."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for silos, seconds in found.items():
            seconds.append(slowest_silo(pictures, silos))
    one, two = min(found[1]), min(found[2])
    return {
        "cores": cores(),
        "one_silo_seconds": round(one, 2),
        "two_silos_seconds": round(two, 2),
        "ratio": round(two / one, 3),
        "reach": 1.1,
    }


def first_batch(pictures: Path, repeats: int) -> dict[str, Any]:
    """From a process that has torch, as those of the engine have, to a normalised batch; the cache is verified on the way."""
    seconds = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
            command = [sys.executable, "-c", FIRST_BATCH, str(pictures), folder]
            seconds.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return {"seconds": round(min(seconds), 3), "reach": 2.0}


def settle(pictures: Path) -> float:
    """Decode into the cache, so that all that follows finds it warm; seconds it took."""
    from fl_algorithms.data import open_dataset

    began, data = time.monotonic(), open_dataset("folder", str(pictures), 224)
    for domain in data.domains:
        data.domain(domain)
    return time.monotonic() - began
