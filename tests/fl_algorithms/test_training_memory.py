"""A silo's memory while it trains: model, optimiser and activations, and then no more than 300 MB, whatever the size of its data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from components.allocator import LIBRARY, installed, preloaded
from tests.minio_server import skip_or_fail

ROOT = Path(__file__).parents[2]
SIDE, LARGE, SMALL = 128, 40_000, 200  # pictures: 2 GB, and 10 MB
MEGABYTE = 1_000_000
pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's account of a process's memory")

# Anonymous pages are what a process cannot give back; pages of the mapped cache are the kernel's to drop.
TRAIN = """
import json, sys, threading, time
import numpy as np, torch
from components.process import compute_with, keep_freed_memory
from fl_algorithms.contract import Silo, Task
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.samples import Samples
import torch._dynamo

compute_with(1)
keep_freed_memory()
side, count, steps = map(int, sys.argv[3:])
pixels = np.memmap(sys.argv[1], np.uint8, "r", shape=(count, side, side, 3))
task = Task(sys.argv[2], 7, 3, side, (0.5,) * 3, (0.2,) * 3)
one = FedAvg(FedAvgHyper(epochs=2, steps_per_epoch=steps, batch_size=32), task)
state = {name: tensor.clone() for name, tensor in one.build().state_dict().items()}

def anonymous():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))

before, peak, stop = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not stop.is_set():
        peak = max(peak, anonymous())
        time.sleep(0.002 if side < 200 else 0.05)

watcher = threading.Thread(target=watch)
watcher.start()
train = Samples([(pixels, np.zeros(count, np.int64), np.arange(count))], task.mean, task.std, torch.device("cpu"))
silo = Silo("a", 1, 1, 0, torch.device("cpu"), train, {MODEL: state}, {}, lambda *_, **__: None)
loss = one.train(silo).metrics["loss"]
stop.set()
watcher.join()
model = sum(p.numel() * p.element_size() for p in one.network.parameters())
own, sizes = {tensor.untyped_storage().data_ptr() for tensor in one.network.state_dict().values()}, {}

def note(tensor):
    if tensor.untyped_storage().data_ptr() not in own:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor

with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    kept = one.loss(one.network.train(), next(train.batches(32)), silo)
print(json.dumps({"grown": peak - before, "needed": 4 * model + sum(sizes.values()), "loss": loss}))
"""


def trained(file: Path, network: str, side: int, count: int, steps: int) -> dict[str, float]:
    """By a process as the engine starts it."""
    with file.open("wb") as opened:
        opened.truncate(count * side * side * 3)  # a file of holes: it takes no disk
    command = [sys.executable, "-c", TRAIN, str(file), network, *map(str, (side, count, steps))]
    environment = {**os.environ, **preloaded(os.environ)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def within_bounds(found: dict[str, float]) -> bool:
    assert found["grown"] > found["needed"] / 4  # or it was not watched
    return found["grown"] <= found["needed"] + 300 * MEGABYTE


def test_memory_does_not_follow_the_size_of_the_data(tmp_path: Path) -> None:
    small, large = (trained(tmp_path / str(count), "small-cnn", SIDE, count, 12) for count in (SMALL, LARGE))
    assert within_bounds(small) and within_bounds(large)
    assert large["grown"] - small["grown"] < 30 * MEGABYTE


@pytest.mark.parametrize("network", ["mobilenet-v3-large", "resnet-18"])
def test_the_papers_networks_need_what_they_must_and_little_more(network: str, tmp_path: Path) -> None:
    if installed() is None:
        skip_or_fail(f"MEMORY TESTS: no {LIBRARY}; run tests/get-tcmalloc, as root on Debian")
    found = trained(tmp_path / "pixels", network, 224, 64, 2)
    assert within_bounds(found), found
