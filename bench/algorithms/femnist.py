"""A round of FEMNIST with ten sampled writers: what one process does that plays them in turn, and the server's average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.algorithms.product import CPU, Accepted, Run
from fl_algorithms.contract import Server, Silo, Task
from fl_algorithms.fedavg import MODEL
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples

WRITERS, PICTURES = 10, 200
MEAN, STD = (0.1736,), (0.3248,)


def drawn() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Some 200 pictures of each of ten writers, uint8, and their characters."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(PICTURES - 40, PICTURES + 41, WRITERS)
    return {f"f{i:04}_00": (draw.integers(0, 256, (n, 28, 28), np.uint8), draw.integers(0, 62, n)) for i, n in enumerate(sizes)}


def reference(_: Path) -> Run:
    from bench.reference.others import femnist

    return femnist(
        {name: ((pixels / 255).reshape(len(pixels), -1).tolist(), labels.tolist()) for name, (pixels, labels) in drawn().items()}
    )


def product(_: Path) -> Run:
    entry = ALGORITHMS["fedavgm-femnist"]
    task = Task("femnist-cnn", 62, 1, 28, MEAN, STD)
    first: Any = entry.load()(entry.load().Hyper(**entry.defaults), task)
    received = first.initialise(Server(0, 2, 0, {}, {}, {}), Accepted({})).parts
    writers = {
        name: Samples([(pixels[..., None], labels, np.arange(len(labels)))], MEAN, STD, CPU) for name, (pixels, labels) in drawn().items()
    }

    def round() -> int:
        updates, algorithm = {}, first
        for name, train in writers.items():
            algorithm = algorithm.beside()
            silo = Silo(name, 1, 2, 0, CPU, train, received, {}, lambda *_, **__: None)
            torch.manual_seed(0)
            updates[name] = {key: tensor.clone() for key, tensor in algorithm.train(silo).tensors.items()}
        first.combine(
            Server(1, 2, 0, {name: len(train) for name, train in writers.items()}, {MODEL: received[MODEL]}, {}), Accepted(updates)
        )
        return sum(map(len, writers.values()))

    return round


def stacked(_: Path) -> Run:
    """The same clients trained at once with torch.func and vmap, as a measure of whether that pays. It is no part of the product."""
    from torch.func import functional_call, grad, vmap

    from bench.reference.others import femnist_cnn

    network = femnist_cnn()
    images = torch.rand(WRITERS, PICTURES - PICTURES % 64, 1, 28, 28)
    labels = torch.randint(62, images.shape[:2])

    def loss(state: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(functional_call(network, state, (x,)), y)

    gradients = vmap(grad(loss), randomness="different")

    def round() -> int:
        state = {name: p.detach().expand(WRITERS, *p.shape).clone() for name, p in network.named_parameters()}
        momentum = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for x, y in zip(images.split(64, 1), labels.split(64, 1), strict=True):
            for name, gradient in gradients(state, x, y).items():
                momentum[name].mul_(0.9).add_(gradient).add_(state[name], alpha=1e-4)
                state[name].add_(momentum[name], alpha=-0.1)
        return labels.numel()

    return round
