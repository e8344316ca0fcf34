"""FedAvg and FedCCRL: local training as their code does it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torchvision import transforms

from bench.reference.loaders import MEAN, STD, Files, loader, resized
from bench.reference.networks import mobilenet

STEPS = 2  # that count as an epoch
Run = Callable[[], int]  # does the work once, returns the number of images


def fedavg(pictures: Path) -> Run:
    received, batches = mobilenet(7), loader(Files(pictures / "photo", resized(224)), 32)

    def epoch() -> int:
        model, seen = copy.deepcopy(received).train(), 0
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
        for images, labels in islice(batches, STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()
            seen += len(labels)
        return seen

    return epoch


def fedccrl(pictures: Path) -> Run:
    received, batches = mobilenet(7), loader(Files(pictures / "photo", resized(224)), 32)
    others = loader(Files(pictures / "cartoon", resized(224)), 32)
    mix, mean, std = transforms.AugMix(), torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    pool = [(x.mean((2, 3), keepdim=True), (x.var((2, 3), keepdim=True) + 1e-6).sqrt()) for x, _ in others]
    means, stds = torch.cat([pair[0] for pair in pool]), torch.cat([pair[1] for pair in pool])

    def view(images: torch.Tensor) -> torch.Tensor:
        """CCDT, then torchvision's AugMix on the whole batch."""
        own, spread = images.mean((2, 3), keepdim=True), (images.var((2, 3), keepdim=True) + 1e-6).sqrt()
        drawn = torch.randperm(len(means))[: len(images)]
        share = torch.distributions.Beta(0.1, 0.1).sample((len(images), 1, 1, 1))
        styled = (images - own) / spread * (share * spread + (1 - share) * stds[drawn]) + share * own + (1 - share) * means[drawn]
        pixels = ((styled * std + mean).clamp(0, 1) * 255).to(torch.uint8)
        return (mix(pixels).to(torch.float32) / 255 - mean) / std

    def epoch() -> int:
        model, seen = copy.deepcopy(received).train(), 0
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
        for images, labels in islice(batches, STEPS):
            optimizer.zero_grad()
            with torch.no_grad():
                views = [images, view(images), view(images)]
            pooled = [torch.flatten(model.avgpool(model.features(x)), 1) for x in views]  # type: ignore[operator]
            features = [model.classifier[:-1](x) for x in pooled]  # type: ignore[index, operator]
            logits = [model.classifier[-1](z) for z in features]  # type: ignore[index, operator]
            loss = torch.stack([F.cross_entropy(y, labels) for y in logits]).sum()
            loss = loss + 0.1 * 0.5 * (contrast(features[1], features[0], labels) + contrast(features[2], features[0], labels))
            mixed = torch.stack([y.softmax(1) for y in logits]).mean(0).log()
            loss = loss + 0.1 * torch.stack([F.kl_div(mixed, y.softmax(1), reduction="batchmean") for y in logits]).mean()
            loss.backward()
            optimizer.step()
            loss.item()
            seen += len(labels)
        return seen

    return epoch


def contrast(first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    rows, both = F.normalize(torch.cat([first, second])), torch.cat([labels, labels])
    exponents = torch.exp(rows @ rows.T / 0.1) * (1 - torch.eye(len(both)))
    same = (both[:, None] == both[None]).float() - torch.eye(len(both))
    return -((rows @ rows.T / 0.1 - exponents.sum(1, keepdim=True).log()) * same).sum(1).div(same.sum(1)).mean()


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
