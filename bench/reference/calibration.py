"""CSAC's calibration step: two networks under autograd, attention maps formed in full, one pair of layers after another."""

from __future__ import annotations

import copy
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from bench.reference.loaders import Files, augmented, loader, resized
from bench.reference.networks import Split
from bench.reference.training import Run, descend

CHANNELS, EVALUATED = 32, 32  # of the projections; pictures in a batch that is only looked at


def csac(pictures: Path) -> Run:
    return _calibrating(Split(512, 7), pictures)


def csac_evaluated(pictures: Path) -> Run:
    """With its share of the evaluations: after every 20 steps of 64 pictures some 4,535 of all four domains are looked at."""
    model, steps = Split(512, 7), 2
    step = _calibrating(model, pictures)
    shown = cycle(loader(Files(pictures / "cartoon", resized(224)), EVALUATED))

    def run() -> int:
        trained = sum(step() for _ in range(steps))
        model.eval()
        with torch.no_grad():
            for _ in range(round(trained * 4535 / 1280 / EVALUATED)):
                images, labels = next(shown)
                (model.classifier(model.features(images)).argmax(1) == labels).sum()
        return trained

    return run


def _calibrating(model: Split, pictures: Path) -> Run:
    frozen = copy.deepcopy(model).eval()  # nobody turned its gradients off
    sides = [
        nn.ModuleList([nn.Conv2d(128, CHANNELS, 22), nn.Conv2d(256, CHANNELS, 3, 2, 1), nn.Conv2d(512, CHANNELS, 1)]) for _ in range(2)
    ]
    projections, queries, keys = nn.ModuleList(sides), thin(), thin()
    optimizer = torch.optim.SGD([*model.parameters(), *projections.parameters()], lr=0.01, momentum=0.5)
    batches = cycle(loader(Files(pictures / "photo", augmented(224, 0.8, 0.4)), 32))

    def step() -> int:
        model.train()
        images, labels = next(batches)
        maps, old = model.maps(images), frozen.maps(images)
        logits = model.classifier(maps[-1].mean((2, 3)))
        a, b = ([project(x) for project, x in zip(side, found, strict=True)] for side, found in zip(sides, (maps, old), strict=True))
        weights = attention(a, b, queries, keys)
        loss = F.cross_entropy(logits, labels)
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                loss = loss + 0.6 * weights[i][j] * mmd(x.flatten(1), y.flatten(1))
        descend(optimizer, loss)
        return len(labels)

    return step


def thin() -> nn.ModuleList:
    """The 1x1 convolutions that the released code puts before its position attention; nothing trains them."""
    return nn.ModuleList([nn.Conv2d(CHANNELS, CHANNELS, 1) for _ in range(3)])


def attention(a: list[torch.Tensor], b: list[torch.Tensor], queries: nn.ModuleList, keys: nn.ModuleList) -> list[list[float]]:
    """From the d x d and c x c maps."""
    asked = [query(x).flatten(2).transpose(1, 2) for query, x in zip(queries, a, strict=True)]
    position = torch.stack([torch.stack([(q @ key(y).flatten(2)).mean() for key, y in zip(keys, b, strict=True)]) for q in asked])
    channel = torch.stack([torch.stack([(x.flatten(2) @ y.flatten(2).transpose(1, 2)).mean() for y in b]) for x in a])
    both = 0.5 * (position.softmax(1) + channel.softmax(1))
    return [[value.item() for value in row] for row in both]


def mmd(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Distances from all differences, which are formed."""
    n, total = len(x), torch.cat([x, y])
    distance = (total[None] - total[:, None]).square().sum(2)
    bandwidth = distance.detach().mean()
    kernel = torch.stack([torch.exp(-distance / (2 * bandwidth * 3.0**k)) for k in range(-3, 2)]).sum(0)
    inside = (kernel[:n, :n].sum() + kernel[n:, n:].sum() - 2 * 5 * n) / (n * (n - 1))
    return inside - 2 * kernel[:n, n:].mean()
