"""What the memory layout alone gives on this CPU, forwards and backwards: it decides how far the rows with a ResNet-18 can go."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F

from fl_algorithms.models import build_model

BATCH = 16


def measure(repeats: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    return [_network(name, repeats) for name in ("resnet-18", "mobilenet-v3-large")]


def _network(name: str, repeats: int) -> dict[str, Any]:
    labels, best = torch.arange(BATCH) % 7, {"contiguous": float("inf"), "channels_last": float("inf")}
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    images = {kind: torch.rand(BATCH, 3, 224, 224).contiguous(memory_format=layout) for kind, layout in formats.items()}
    networks = {kind: build_model(name, 7, 3, 224).to(memory_format=layout) for kind, layout in formats.items()}
    for _ in range(repeats + 1):
        for kind, network in networks.items():
            began = time.process_time()
            F.cross_entropy(network(images[kind]), labels).backward()
            best[kind] = min(best[kind], 1000 * (time.process_time() - began) / BATCH)
    return {"network": name, **{f"{kind}_ms": round(value, 1) for kind, value in best.items()}}
