"""What a round costs beside training, against Flower: `python -m bench.exchange` prints one JSON object.

Three silos, ResNet-18 with 1,000 classes (46.8 MB), no training; ours durable and verified, Flower's simulation in memory. They
take turns, so that a noisy neighbour meets both; ratios are of neighbours, and their median counts. Without .peer they are null.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.images import make_images
from bench.observe import observe
from bench.rounds import cost, watched

PEER = Path(".peer/bin/python")
BACKBONE, CLASSES, SILOS = "resnet-18", 1000, ("a", "b", "c")
ROUNDS, REPEATS = 12, 3
COMPARED = ("seconds_per_round", "cpu_seconds_per_round", "peak_pss_mb")


def our_round(images: Path) -> dict[str, float]:
    return watched(
        {
            "algorithm": "fedavg", "hyper": {"epochs": 0}, "dataset": {"name": "folder", "path": str(images), "image_size": 32},
            "target": "target", "backbone": BACKBONE, "rounds": ROUNDS, "evaluate_every": ROUNDS,
        }
    )  # fmt: skip


def peer_round() -> dict[str, Any] | None:
    if not PEER.exists():
        return None
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        log = Path(folder) / "log.json"
        seen = observe([PEER, Path(__file__).with_name("flower.py"), ROUNDS, len(SILOS), log])
        told = json.loads(log.read_text())
    return {**cost(seen, told["marks"]), "version": told["version"]}


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in COMPARED}


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        images = make_images(Path(folder) / "images", {**dict.fromkeys(SILOS, CLASSES), "target": 2})
        os.environ["SILOFLOW_CACHE"] = str(Path(folder) / "cache")
        ours, peers = [], []
        for turn in range(REPEATS):
            ours.append(our_round(images))
            peers.append(peer_round())
            print(f"exchange {turn + 1}/{REPEATS}: {ours[-1]} {peers[-1]}", file=sys.stderr)
    known = [run for run in peers if run is not None]
    result: dict[str, Any] = {
        "silos": len(SILOS), "rounds": ROUNDS, "repeats": REPEATS, "model_mb": ours[0]["model_mb"],
        "siloflow": medians(ours), "flower": None, "ratio": None,
    }  # fmt: skip
    if known:
        result["flower"] = {**medians(known), "version": known[0]["version"]}
        ratios = {key: sorted(round(a[key] / b[key], 3) for a, b in zip(ours, known, strict=True)) for key in COMPARED}
        result["ratio"] = {key: {"median": statistics.median(all_), "least": all_[0], "most": all_[-1]} for key, all_ in ratios.items()}
    return result


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
