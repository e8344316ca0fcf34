"""One side of one row in a process of its own, with one thread: `python -m bench.algorithms.side ROW SIDE PICTURES`.

It prepares, says so, and then does the work once for each line it reads, answering with the images and the CPU seconds that took,
its child processes included. The product's side has the settings of a silo's process.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
import warnings
from pathlib import Path

import torch

MODULES = {  # of bench.reference, by the first word of the row
    "fedavg": "training", "fedccrl": "training", "csac": "calibration", "fedsr": "representation", "fedadg": "adversarial",
    "feddg": "others", "evaluation": "others",
}  # fmt: skip


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(row: str, side: str, pictures: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if side != "reference":
        from components.process import keep_freed_memory

        keep_freed_memory()
    if row in ("femnist", "fedsr-digits"):
        module, name = f"bench.algorithms.{row.removeprefix('fedsr-')}", side
    else:
        module = f"bench.reference.{MODULES[row.partition('-')[0]]}" if side == "reference" else "bench.algorithms.product"
        name = row.replace("-", "_")
    run = getattr(importlib.import_module(module), name)(pictures)
    run()  # what is done once, like choosing kernels, is not the step's
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        cpu, wall = cpu_seconds(), time.monotonic()
        images = run()
        print(json.dumps({"images": images, "cpu": cpu_seconds() - cpu, "wall": time.monotonic() - wall}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
