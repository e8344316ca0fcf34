"""A silo's memory while it trains: model, optimiser and activations, and then no more than 300 MB, whatever the size of its data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.images import make_images
from components.allocator import LIBRARY, installed, preloaded
from tests.minio_server import skip_or_fail

ROOT = Path(__file__).parents[2]
SIDE, LARGE, SMALL = 128, 40_000, 200  # pictures: 2 GB, and 10 MB
MEGABYTE = 1_000_000
pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's account of a process's memory")

# Anonymous pages are what a process cannot give back; pages of the mapped cache are the kernel's to drop.
BEGIN = """
import json, sys
from pathlib import Path
import numpy as np, torch
import torch._dynamo
from bench.algorithms.product import Bench
from bench.observe import growing
from components.process import compute_with, keep_freed_memory
from fl_algorithms.contract import Silo, Task
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.samples import Samples

compute_with(1)
keep_freed_memory()
"""
ONE_SILO = """
side, count = map(int, sys.argv[2:])
pixels = np.memmap(sys.argv[1], np.uint8, "r", shape=(count, side, side, 3))
task = Task("small-cnn", 7, 3, side, (0.5,) * 3, (0.2,) * 3)
one = FedAvg(FedAvgHyper(epochs=2, steps_per_epoch=12, batch_size=32), task)
state = {name: tensor.clone() for name, tensor in one.build().state_dict().items()}
with growing(kind="Anonymous") as growth:
    train = Samples([(pixels, np.zeros(count, np.int64), np.arange(count))], task.mean, task.std, torch.device("cpu"))
    silo = Silo("a", 1, 1, 0, torch.device("cpu"), train, {MODEL: state}, {}, lambda *_, **__: None)
    one.train(silo)
"""
ROUND = """
with growing(every=0.05, kind="Anonymous") as growth:  # what silos tell each other beforehand included
    bench = Bench(Path(sys.argv[1]), *sys.argv[2:], batch_size=32)
    one, silo = bench.algorithm, bench.silo()
    for number in range(len(one.exchanges(1)) - 1):
        bench.exchange(number)
    one.exchanges(1)[-1].silo(silo)
"""
END = """
model = sum(p.numel() * p.element_size() for p in one.network.parameters())
own, sizes = {tensor.untyped_storage().data_ptr() for tensor in one.network.state_dict().values()}, {}

def note(tensor):
    if tensor.untyped_storage().data_ptr() not in own:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor

with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    kept = one.loss(one.network.train(), next(silo.train.batches(32)), silo)
print(json.dumps({"grown": growth.bytes, "needed": 4 * model + sum(sizes.values())}))
"""


def trained(script: str, *words: object) -> dict[str, float]:
    """By a process as the engine starts it."""
    command = [sys.executable, "-c", BEGIN + script + END, *map(str, words)]
    environment = {**os.environ, **preloaded(os.environ)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def within_bounds(found: dict[str, float]) -> bool:
    assert found["grown"] > found["needed"] / 4  # or it was not watched
    return found["grown"] <= found["needed"] + 300 * MEGABYTE


def test_memory_does_not_follow_the_size_of_the_data(tmp_path: Path) -> None:
    found = []
    for count in (SMALL, LARGE):
        with (tmp_path / str(count)).open("wb") as file:
            file.truncate(count * SIDE * SIDE * 3)  # a file of holes: it takes no disk
        found.append(trained(ONE_SILO, tmp_path / str(count), SIDE, count))
    small, large = found
    assert within_bounds(small) and within_bounds(large)
    assert large["grown"] - small["grown"] < 30 * MEGABYTE


@pytest.mark.parametrize(
    ("algorithm", "network"), [("fedavg", "mobilenet-v3-large"), ("fedavg", "resnet-18"), ("fedccrl", "mobilenet-v3-large")]
)
def test_the_papers_networks_need_what_they_must_and_little_more(
    algorithm: str, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed() is None:
        skip_or_fail(f"MEMORY TESTS: no {LIBRARY}; run tests/get-tcmalloc, as root on Debian")
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    images = make_images(tmp_path / "images", {"photo": 7, "cartoon": 7}, 10)
    found = trained(ROUND, images, algorithm, network)
    assert within_bounds(found), found
