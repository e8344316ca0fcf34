"""What being scraped every second costs: `make bench-scrape` prints one JSON object.

- idle: CPU time of a process that only serves the metrics of a federation of ten silos, scraped every second, as a share of one
  core: exactly what a scrape costs, whatever else the process does;
- training: the same process trains a small CNN in one thread and is scraped; what its other threads use, for each scrape and as a
  share of one core. Seconds of the training itself vary more on a shared machine than a scrape costs, so they are not compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import time
import urllib.request
from typing import Any

from components.metrics import EVERY_ROLE, bound, start

SILOS = [f"silo-{number}" for number in range(10)]
EVERY = 1.0  # second
SPEC = {"algorithm": "fedavg", "target": "t", "dataset": {"name": "d"}, "rounds": 100, "deadline": 60.0}


def fill(recorder: Any) -> None:
    """Every series that a run of ten silos has."""
    recorder.planned("bench", SPEC, SILOS)
    common = {"round": 1, "seconds": {"read": 0.1, "compute": 9.0, "upload": 0.2, "check": 0.1, "validate": 1.0, "evaluate": 1.0}}
    for author in [*SILOS, "evaluator"]:
        step = {**common, "author": author, "payload": {"bytes": 1 << 20}, "received_bytes": 1 << 20}
        if author != "evaluator":
            recorder.silo_step({**step, "exchange": "train", "metrics": {"loss": 1.0, "drift": 1.0}})
        split, domain = ("target", "t") if author == "evaluator" else ("validation", author)
        counts = {"correct": 1.0, "total": 2.0, "loss_sum": 1.0}
        recorder.counted({**step, "exchange": "evaluate" if split == "target" else "validate", "metrics": counts}, split, domain)
        recorder.retried(author, 0)
    broadcast = {"accepted": SILOS, "rejected": [], "missing": [], "roster": dict.fromkeys(SILOS, 1), "weights": dict.fromkeys(SILOS, 0.1)}
    recorder.server_step({**common, **broadcast, "author": "server", "exchange": "train", "following": (2, "train")})
    recorder.retried("server", 0)


def train(batches: int) -> float:
    """CPU seconds of the other threads while this one trains for so many batches."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimiser, images, labels = torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(32, 3, 32, 32), torch.arange(32) % 10
    began = time.process_time() - time.thread_time()
    for _ in range(batches):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return time.process_time() - time.thread_time() - began


def worker(port: int, pipe: Any) -> None:
    """Serves the metrics, and trains or idles as it is told; answers with the CPU seconds that took."""
    os.environ["OMP_NUM_THREADS"] = "1"
    recorder = start(port, EVERY_ROLE, address="127.0.0.1")
    fill(recorder)
    pipe.send("ready")
    while True:
        what, amount = pipe.recv()
        if what == "train":
            pipe.send(train(amount))
        elif what == "idle":
            began = time.process_time()
            time.sleep(amount)
            pipe.send(time.process_time() - began)
        else:
            recorder.close()
            return


def scrape_while(port: int, pipe: Any, order: tuple[str, float], scraped: bool) -> tuple[float, int, str]:
    """CPU seconds of the worker for this order, how often it was scraped meanwhile, and what it said last."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "identity"})
    pipe.send(order)
    scrapes, text = 0, ""
    while not pipe.poll(EVERY):
        if scraped:
            with opener.open(request, timeout=10) as answer:
                text = answer.read().decode()
            scrapes += 1
    return pipe.recv(), scrapes, text


def measure(seconds: float, batches: int) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(port, theirs), daemon=True)
    process.start()
    try:
        ours.recv()
        found = {}
        for what, amount in (("idle", seconds), ("training", float(batches))):
            order = ("idle", amount) if what == "idle" else ("train", int(amount))
            alone, _, _ = scrape_while(port, ours, order, scraped=False)
            serving, scrapes, text = scrape_while(port, ours, order, scraped=True)
            each = (serving - alone) / scrapes
            found[what] = {"scrapes": scrapes, "cpu_ms_per_scrape": round(1000 * each, 3), "core_percent": round(100 * each / EVERY, 3)}
        ours.send(("stop", 0))
        process.join(10)
    finally:
        process.kill()
    series = sum(not line.startswith("#") for line in text.splitlines())
    return {"silos": len(SILOS), "series": series, "most_series": bound(len(SILOS)), "bytes": len(text), "every_seconds": EVERY, **found}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batches", type=int, default=500)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.seconds, arguments.batches), indent=1))


if __name__ == "__main__":
    main()
