"""A round of FEMNIST with ten sampled writers: what one process does that plays them in turn, and the server's average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bench.algorithms.layout import direct
from bench.algorithms.product import CPU, Accepted, Run
from fl_algorithms.contract import Server, Silo, Task
from fl_algorithms.fedavg import MODEL
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network, build_model
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples
from fl_algorithms.training import make_optimizer

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
    # without the server's momentum, which the reference does not have either
    first: Any = entry.load()(entry.load().Hyper(**{**entry.defaults, "server_momentum": 0.0}), task)
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


# ---- whether training clients at once would pay: the product's layers, the same images, no dropout (vmap cannot draw it as they do)


def _without_dropout() -> tuple[Network, torch.Tensor, torch.Tensor]:
    network = build_model("femnist-cnn", 62, 1, 28).to(memory_format=torch.channels_last)
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    images = torch.rand(WRITERS, max(64, PICTURES - PICTURES % 64), 1, 28, 28)
    return network, images, torch.randint(62, images.shape[:2])


def in_turn(_: Path) -> Run:
    network, images, labels = _without_dropout()
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def round() -> int:
        for own, answers in zip(images, labels, strict=True):
            network.load_state_dict(start)
            optimizer = make_optimizer("sgd", network.parameters(), 0.9, 1e-4)
            for x, y in zip(own.split(64), answers.split(64), strict=True):
                optimizer.zero_grad()
                cross_entropy(network(x), y).backward()
                optimizer.step()
        return labels.numel()

    return round


def stacked(_: Path) -> Run:
    from torch.func import functional_call, grad, vmap

    network, images, labels = _without_dropout()
    direct(network)  # vmap knows no way through tiles
    start = {name: parameter.detach() for name, parameter in network.named_parameters()}
    gradients = vmap(grad(lambda state, x, y: cross_entropy(functional_call(network, state, (x,)), y)))

    def round() -> int:
        own = {name: nn.Parameter(tensor.expand(WRITERS, *tensor.shape).clone()) for name, tensor in start.items()}
        optimizer = make_optimizer("sgd", iter(own.values()), 0.9, 1e-4)
        for x, y in zip(images.split(64, 1), labels.split(64, 1), strict=True):
            found = gradients({name: parameter.detach() for name, parameter in own.items()}, x, y)
            for name, parameter in own.items():
                parameter.grad = found[name].contiguous()
            optimizer.step()
        return labels.numel()

    return round


def grouped(_: Path) -> Run:
    """By hand what vmap does by itself: batched products, one convolution with a group per client."""
    network, images, labels = _without_dropout()
    start = {name: parameter.detach() for name, parameter in network.named_parameters()}

    def logits(own: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        (w1, b1), (w2, b2), (w3, b3), (w4, b4) = zip(own[::2], own[1::2], strict=True)
        clients, count = x.shape[:2]
        patches = x[:, :, 0].unfold(2, 5, 1).unfold(3, 5, 1).reshape(clients, -1, 25)
        maps = torch.baddbmm(b1[:, None], patches, w1.flatten(2).transpose(1, 2)).view(clients * count, 24, 24, 32)
        maps = F.relu(F.max_pool2d(maps.permute(0, 3, 1, 2), 2)).view(clients, count, 32, 12, 12)
        maps = maps.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        kernels = w2.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        maps = F.relu(F.max_pool2d(F.conv2d(maps, kernels, b2.flatten(), groups=clients), 2))
        hidden = F.relu(torch.baddbmm(b3[:, None], maps.reshape(count, clients, -1).transpose(0, 1), w3.transpose(1, 2)))
        return torch.baddbmm(b4[:, None], hidden, w4.transpose(1, 2))

    def round() -> int:
        own = [nn.Parameter(tensor.expand(WRITERS, *tensor.shape).clone()) for tensor in start.values()]
        optimizer = make_optimizer("sgd", iter(own), 0.9, 1e-4)
        for x, y in zip(images.split(64, 1), labels.split(64, 1), strict=True):
            optimizer.zero_grad()
            (WRITERS * cross_entropy(logits([*own], x).flatten(0, 1), y.flatten())).backward()
            optimizer.step()
        return labels.numel()

    return round
