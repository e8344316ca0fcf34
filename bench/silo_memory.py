"""What a silo's step adds to its memory, beside a bare loop and what training must keep: `python -m bench.silo_memory`.

Processes of their own for each network, so that none inherits memory from another: `silo` is a step of FedAvg as a worker does it, from
the global model in the store to the published update; `glibc` is the same where tcmalloc is not installed; `bare` trains the same
network on the same size of batch in a plain loop; `needed` adds up weights, gradients, Adam's slots and what autograd saves of one
batch. What is counted are anonymous pages: those of files (the program, the cached pictures) are the kernel's to drop.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.images import make_images
from bench.observe import growing
from components.allocator import PRELOAD, installed, preloaded

NETWORKS = ("mobilenet-v3-large", "resnet-18")
CLASSES, EACH, SIZE, BATCH, STEPS = 7, 12, 224, 32, 2


def prepared(run: str, backbone: str, images: Path, size: int) -> Any:
    """The federation of one silo."""
    from components.federation import Federation, resolve
    from components.spec import parse_spec

    hyper = {"epochs": 1, "steps_per_epoch": STEPS, "batch_size": BATCH}
    dataset = {"name": "folder", "path": str(images), "image_size": size}
    values = {"algorithm": "fedavg", "hyper": hyper, "dataset": dataset, "target": "target", "backbone": backbone, "rounds": 1}
    return Federation(resolve(parse_spec(values)), run, images.parent / f"{backbone}-{run}", "silo")


def begin(backbone: str, images: Path, size: int) -> int:
    """The silo joins both runs, the server publishes the first model. Returns nothing grown."""
    from components import layout
    from components.server import server_step
    from components.silo import Role, silo_step

    for run in ("silo", "glibc"):
        federation = prepared(run, backbone, images, size)
        federation.store.prepare([layout.GLOBAL, layout.silo_bucket("silo")])
        silo_step(Role(federation, "silo"), 0, "join")
        server_step(Role(federation, layout.SERVER), 0, "join")
    return 0


def silo(run: str, backbone: str, images: Path, size: int) -> int:
    from components.process import keep_freed_memory
    from components.silo import Role, silo_step

    keep_freed_memory()
    role = Role(prepared(run, backbone, images, size), "silo")
    role.samples("train")
    with growing(every=0.05, kind="Anonymous") as growth:
        silo_step(role, 1, "train")
    return growth.bytes


def bare(backbone: str, images: Path, size: int) -> int:
    from fl_algorithms.models import build_model

    with growing(every=0.05, kind="Anonymous") as growth:
        model = build_model(backbone, CLASSES, 3, size).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.rand(BATCH, 3, size, size)), torch.arange(BATCH) % CLASSES).backward()
            optimizer.step()
    return growth.bytes


def needed(backbone: str, images: Path, size: int) -> dict[str, int]:
    """Bytes of each kind. Tensors that share memory count once."""
    from fl_algorithms.models import build_model

    model, saved = build_model(backbone, CLASSES, 3, size).train(), {}
    weights = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in model.state_dict().values()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = torch.nn.functional.cross_entropy(model(torch.rand(BATCH, 3, size, size)), torch.arange(BATCH) % CLASSES)
    activations = sum(size for place, size in saved.items() if place not in weights)
    loss.backward()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return {"model": sum(weights.values()), "gradients": gradients, "optimiser": 2 * gradients, "activations": activations}


PROCESSES = {"begin": begin, "silo": partial(silo, "silo"), "glibc": partial(silo, "glibc"), "bare": bare, "needed": needed}


def ask(what: str, backbone: str, images: Path, size: int) -> Any:
    command = [sys.executable, "-m", "bench.silo_memory", what, backbone, str(images), str(size)]
    environment = {name: value for name, value in os.environ.items() if name != PRELOAD}
    environment |= preloaded(environment) if what == "silo" else {}
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout)


def measure() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        os.environ["SILOFLOW_CACHE"] = str(Path(folder) / "cache")
        images = make_images(Path(folder) / "images", {"silo": CLASSES, "target": CLASSES}, EACH)
        for backbone in NETWORKS:
            found = {what: ask(what, backbone, images, SIZE) for what in PROCESSES}
            parts = found["needed"]
            rows.append(
                {
                    "backbone": backbone, "image_size": SIZE, "batch_size": BATCH, "needed_bytes": parts, "silo_bytes": found["silo"],
                    "glibc_bytes": found["glibc"], "bare_bytes": found["bare"], "over_needed_bytes": found["silo"] - sum(parts.values()),
                    "allocator": "tcmalloc" if installed() else "glibc",
                }
            )  # fmt: skip
    return rows


def main() -> None:
    if len(sys.argv) == 1:
        print(json.dumps(measure(), indent=1))
        return
    torch.set_num_threads(1)
    what, backbone, images, size = sys.argv[1:]
    print(json.dumps(PROCESSES[what](backbone, Path(images), int(size))))


if __name__ == "__main__":
    main()
