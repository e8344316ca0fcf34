"""What decides how far the rows with a ResNet-18 can go on this CPU: its convolutions alone, done directly and as the product does
them, and what the memory layout gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from components.process import keep_freed_memory
from fl_algorithms.models import build_model
from fl_algorithms.models.winograd import WinogradConv2d

BATCH, MATRIX = 16, 2048
# How often the convolutions of a row's step run for an image: forwards and backwards, and forwards only.
PASSES = {"csac": (1.0, 1.0), "fedsr": (1.0, 0.0), "fedadg": (1.0, 2 / 3)}


def direct(network: nn.Module) -> nn.Module:
    """The network with torch's own convolutions."""
    for layer in network.modules():
        if isinstance(layer, WinogradConv2d):
            layer.__class__ = nn.Conv2d
    return network


def measure(repeats: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    return [_network(name, repeats) for name in ("resnet-18", "mobilenet-v3-large")]


def _network(name: str, repeats: int) -> dict[str, Any]:
    labels, best = torch.arange(BATCH) % 7, {"contiguous": float("inf"), "channels_last": float("inf")}
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    images = {kind: torch.rand(BATCH, 3, 224, 224).contiguous(memory_format=layout) for kind, layout in formats.items()}
    networks = {kind: direct(build_model(name, 7, 3, 224)).to(memory_format=layout) for kind, layout in formats.items()}
    for _ in range(repeats + 1):
        for kind, network in networks.items():
            began = time.process_time()
            F.cross_entropy(network(images[kind]), labels).backward()
            best[kind] = min(best[kind], 1000 * (time.process_time() - began) / BATCH)
    return {"network": name, **{f"{kind}_ms": round(value, 1) for kind, value in best.items()}}


def convolutions(repeats: int) -> dict[str, Any]:
    """ms an image of ResNet-18's convolutions, each with its input ready, and their speed beside that of a matrix product."""
    torch.set_num_threads(1)
    keep_freed_memory()
    network, calls = build_model("resnet-18", 7, 3, 224).to(memory_format=torch.channels_last), []
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, output: calls.append((layer, inputs[0].detach(), torch.ones_like(output))))
    with torch.no_grad():
        network(torch.rand(BATCH, 3, 224, 224).contiguous(memory_format=torch.channels_last))
    kept = [(layer.forward, layer.weight, inputs, gradient) for layer, inputs, gradient in calls]  # without the hook
    operations = sum(2 * gradient.numel() * weight[0].numel() for _, weight, _, gradient in kept)

    @torch.no_grad()
    def forwards() -> None:
        for layer, _, inputs, _ in kept:
            layer(inputs)

    def both() -> None:
        for number, (layer, weight, inputs, gradient) in enumerate(kept):
            wanted = [inputs.requires_grad_(), weight] if number else [weight]  # nobody needs the gradient of a picture
            torch.autograd.grad(layer(inputs), wanted, gradient)

    square = torch.rand(MATRIX, MATRIX)
    found = {"product": _best(lambda: square @ square, repeats), "forwards": _best(forwards, repeats), "both": _best(both, repeats)}
    direct(network)
    kept = [(layer.forward, layer.weight, inputs, gradient) for layer, inputs, gradient in calls]
    plain = {"forwards": _best(forwards, repeats), "both": _best(both, repeats)}
    return {
        "forwards_ms": round(1000 * found["forwards"] / BATCH, 1), "both_ms": round(1000 * found["both"] / BATCH, 1),
        "direct_forwards_ms": round(1000 * plain["forwards"] / BATCH, 1), "direct_both_ms": round(1000 * plain["both"] / BATCH, 1),
        "direct_speed": round(operations / plain["forwards"] / (2 * MATRIX**3 / found["product"]), 2),
    }  # fmt: skip


def _best(work: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the best turn after one that does not count."""
    found = []
    for _ in range(repeats + 1):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found[1:])
