"""What a round costs beside training: `make bench-exchange` prints one JSON object.

- round: 3 silos, ResNet-18 with 1,000 classes (46.8 MB), everything durable and verified, against Flower's in-memory
  simulation in the same run (the peer script lives outside this repository; without it the ratios are null);
- s3: our store against a bare minio client on a loopback MinIO;
- server_memory: what aggregation adds to the server's memory, in models, from 3 to 50 silos.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.observe import observe

PEER = Path(os.environ.get("SILOFLOW_PEER", "../shared/peers/flower_round.py"))
CLASSES, SILOS = 1000, 3


def make_images(folder: Path) -> None:
    """A data set that gives the network 1,000 classes: one 32 px image per class and silo, a few for the target."""
    from PIL import Image

    for domain in ("a", "b", "c", "target"):
        for label in range(CLASSES if domain != "target" else 2):
            path = folder / domain / f"c{label:04}" / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (32, 32), (label % 256, label // 256, 128)).save(path)


class Marks:
    """Notes when each round begins; everything else a view could show is ignored."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def began(self, round: int, exchange: str, participants: Any) -> None:
        if round > 0:
            self.times.append(time.time())

    def finished(self, result: Any) -> None:
        self.times.append(time.time())

    def planned(self, *_: Any) -> None: ...

    progress = done = warn = lambda *_, **__: None


def one_run(rounds: int, images: Path, log: Path) -> None:
    """The child that is watched: a real local run whose silos train for zero epochs."""
    from pipelines.local import LocalEngine

    spec = {
        "algorithm": "fedavg", "hyper": {"epochs": 0}, "dataset": {"name": "folder", "path": str(images), "image_size": 32},
        "target": "target", "backbone": "resnet-18", "rounds": rounds, "evaluate_every": rounds,
    }  # fmt: skip
    marks = Marks()
    LocalEngine(spec, log.parent / "run", marks).run()
    log.write_text(json.dumps(marks.times))


def our_round(rounds: int, images: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=images.parent) as folder:
        log = Path(folder) / "marks.json"
        seen = observe([sys.executable, "-m", "bench.exchange", "--child", str(log), "--rounds", str(rounds), "--images", str(images)])
        marks = json.loads(log.read_text())
        sizes = sum(path.stat().st_size for path in (Path(folder) / "run" / "store" / "global").rglob("*.safetensors"))
    between = [later - earlier for earlier, later in pairwise(marks[1:-1])]  # without the first, and without the final evaluation
    cpu = (seen.cpu_at(marks[-2]) - seen.cpu_at(marks[1])) / (len(marks) - 3)
    return {
        "seconds_per_round": statistics.median(between), "cpu_seconds_per_round": cpu, "peak_pss_mb": seen.peak_pss / 1e6,
        "model_mb": sizes / (rounds + 1) / 1e6,
    }  # fmt: skip


def peer_round(rounds: int) -> dict[str, float] | None:
    python = Path(".peer/bin/python")
    if not PEER.exists() or not python.exists():
        return None
    output = subprocess.run(
        [python, PEER, "--rounds", str(rounds), "--silos", str(SILOS)], capture_output=True, text=True, check=True
    ).stdout
    return {key: value for key, value in json.loads(output).items() if isinstance(value, int | float)}


def compare_rounds(rounds: int, repeats: int) -> dict[str, Any]:
    """Ours and the peer's in turn, so that a noisy neighbour meets both."""
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        images = Path(folder) / "images"
        make_images(images)
        os.environ["SILOFLOW_CACHE"] = str(Path(folder) / "cache")
        ours, peers = [], []
        for _ in range(repeats):
            ours.append(our_round(rounds, images))
            peers.append(peer_round(rounds))
    mine = {key: round(statistics.median(run[key] for run in ours), 3) for key in ours[0]}
    result: dict[str, Any] = {"silos": SILOS, "rounds": rounds, "repeats": repeats, "siloflow": mine, "flower": None, "ratio": None}
    known = [run for run in peers if run is not None]
    if known:
        result["flower"] = {key: statistics.median(run[key] for run in known) for key in known[0]}
        keys = ("seconds_per_round", "cpu_seconds_per_round", "peak_pss_mb")
        result["ratio"] = {key: round(statistics.median(a[key] / b[key] for a, b in zip(ours, known, strict=True)), 3) for key in keys}
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--child", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        one_run(arguments.rounds, arguments.images, arguments.child)
        return
    from bench import s3, server_memory

    report = {"round": compare_rounds(arguments.rounds, arguments.repeats), "s3": s3.measure(), "server_memory": server_memory.measure()}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
