"""FedADG's round: one epoch of classification and two adversarial ones, as its code does it."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from bench.reference.loaders import Files, augmented, loader
from bench.reference.networks import Featured, Split, Wide
from bench.reference.training import STEPS, Run, descend

CLASSES = 7


def fedadg(pictures: Path) -> Run:
    return _rounds(Split(512, CLASSES, hidden=True), pictures)


def fedadg_alexnet(pictures: Path) -> Run:
    """The released code's own backbone."""
    return _rounds(Wide(CLASSES), pictures)


def _rounds(received: Featured, pictures: Path) -> Run:
    batches = loader(Files(pictures / "photo", augmented(224, 0.7, 0.0)), 16)
    width, noise, seen_by_judge = received.width, received.width // 2, received.width // 4
    generator = nn.Sequential(nn.Linear(noise + CLASSES, width), nn.LeakyReLU(), nn.Linear(width, width), nn.ReLU())
    projection = nn.Linear(width, seen_by_judge)  # trained, by mistake
    rest = (nn.Linear(seen_by_judge + CLASSES, seen_by_judge), nn.LeakyReLU(), nn.Linear(seen_by_judge, 1), nn.Sigmoid())
    judge = nn.ModuleList([projection, nn.Sequential(*rest)])

    def verdict(features: torch.Tensor, one_hot: torch.Tensor) -> torch.Tensor:
        told: torch.Tensor = judge[1](torch.cat([projection(features), one_hot], 1))
        return told

    def turns(model: Featured, players: list[torch.optim.Optimizer], images: torch.Tensor, labels: torch.Tensor) -> None:
        one_hot, drawn = F.one_hot(labels, CLASSES).float(), torch.rand(len(labels), noise)
        model.eval()
        real, made = model.features(images), generator(torch.cat([drawn, one_hot], 1))
        told = [verdict(h.detach(), one_hot) for h in (real, made)]
        descend(players[0], told[0].square().mean() + (1 - told[1]).square().mean())
        model.train()
        h = model.features(images)
        fooled = (1 - verdict(h, one_hot)).square().mean()
        descend(players[1], 0.85 * F.cross_entropy(model.classifier(h), labels, label_smoothing=0.1) + 0.15 * fooled)
        made = generator(torch.cat([drawn, one_hot], 1))
        descend(players[2], verdict(made, one_hot).square().mean())

    def round() -> int:
        model, seen = copy.deepcopy(received).train(), 0
        players = [_optimiser(judge, 7e-4), _optimiser(model, 1e-3), _optimiser(generator, 7e-4)]
        for epoch in range(3):
            for images, labels in islice(batches, STEPS):
                if epoch == 0:
                    descend(players[1], F.cross_entropy(model.classifier(model.features(images)), labels, label_smoothing=0.1))
                else:
                    turns(model, players, images, labels)
                seen += len(labels)
        return seen

    return round


def _optimiser(module: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9, weight_decay=1e-5)
