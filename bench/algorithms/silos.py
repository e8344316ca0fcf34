"""Two silos on two cores against one, and how soon a silo has its first batch, with the product's own engine and processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from components.allocator import for_children
from pipelines.local import LocalEngine
from pipelines.workers import cores

PAIRS = 7  # on a shared machine two pairs may differ by more than the reach allows
STEPS = 8  # of two, the first, in which memory is got and kernels are chosen, would be more than half
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


BARE = f"""
import sys, time
import torch
from components.process import compute_with, keep_freed_memory
from fl_algorithms.models import build_model
compute_with(1)
keep_freed_memory()
model = build_model("mobilenet-v3-large", 7, 3, 224).to(memory_format=torch.channels_last).train()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
images, labels = torch.rand(32, 3, 224, 224).contiguous(memory_format=torch.channels_last), torch.arange(32) % 7
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
for _ in range({STEPS}):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
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
    """Seconds of an epoch of FedAvg, MobileNetV3-Large, 256 images a silo; of the silo that took longest."""
    hyper = {"epochs": 1, "steps_per_epoch": STEPS}
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


def slowest_loop(loops: int) -> float:
    """The same of bare loops over one batch in memory, with nothing of siloflow but network and settings: what the machine makes of two."""
    command = [sys.executable, "-c", BARE]
    with for_children():
        running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(loops)]
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in running)


def together(pictures: Path, pairs: int = PAIRS) -> dict[str, Any]:
    """The median of pairs: a shared machine changes its speed within minutes, and less between two neighbours than over all."""
    silos: list[dict[int, float]] = []
    loops: list[dict[int, float]] = []
    for turn in range(pairs):
        order = (1, 2) if turn % 2 == 0 else (2, 1)  # so that a machine that becomes slower favours neither
        silos.append({count: slowest_silo(pictures, count) for count in order})
        loops.append({count: slowest_loop(count) for count in order})
        print(f"silos: {turn + 1}/{pairs}: {silos[-1]}, bare loops {loops[-1]}", file=sys.stderr)
    ratios, bare = ([pair[2] / pair[1] for pair in of_one] for of_one in (silos, loops))
    return {
        "cores": cores(),
        "one_silo_seconds": round(median(pair[1] for pair in silos), 2),
        "two_silos_seconds": round(median(pair[2] for pair in silos), 2),
        "ratio": round(median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "bare_ratio": round(median(bare), 3),
        "bare_ratios": [round(ratio, 3) for ratio in bare],
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
