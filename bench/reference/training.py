"""FedAvg, FedCCRL, FedSR and FedADG: local training as their code does it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torchvision import transforms

from bench.reference.loaders import MEAN, STD, Files, augmented, loader, resized
from bench.reference.networks import Split, mobilenet

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


def fedsr(pictures: Path) -> Run:
    """`next(iter(loader))` in every step: four workers are started, decode up to eight batches, and one is used."""
    model = Split(1024, 7).train()
    model.classifier = nn.Linear(512, 7)
    batches = loader(Files(pictures / "photo", augmented(224, 0.7, 0.3)), 32, workers=4)
    reference, raw, scale = nn.Parameter(torch.zeros(7, 512)), nn.Parameter(torch.ones(7, 512)), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), reference, raw, scale], lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step() -> int:
        images, labels = next(iter(batches))
        mean, spread = model.features(images).chunk(2, 1)
        sigma, q = F.softplus(spread), F.softplus(raw[labels])
        z = mean + sigma * torch.randn_like(mean)
        loss = F.cross_entropy(model.classifier(z), labels) + 0.01 * z.norm(dim=1).mean()
        kl = q.log() - (scale * sigma).log() + ((scale * sigma) ** 2 + (scale * mean - reference[labels]) ** 2) / (2 * q**2) - 0.5
        loss = loss + 0.001 * kl.sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return len(labels)

    return step


def fedsr_batch(pictures: Path) -> Run:
    """The same without the network."""
    batches = loader(Files(pictures / "photo", augmented(224, 0.7, 0.3)), 32, workers=4)

    def fetch() -> int:
        return len(next(iter(batches))[1])

    return fetch


def fedadg(pictures: Path) -> Run:
    """One epoch of classification and two adversarial ones."""
    received, batches = Split(512, 7, hidden=True), loader(Files(pictures / "photo", augmented(224, 0.7, 0.0)), 16)
    generator = nn.Sequential(nn.Linear(256 + 7, 512), nn.LeakyReLU(), nn.Linear(512, 512), nn.ReLU())
    judge = nn.Sequential(nn.Linear(512 + 7, 128), nn.Linear(128, 128), nn.LeakyReLU(), nn.Linear(128, 1), nn.Sigmoid())

    def optimiser(module: nn.Module, rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9, weight_decay=1e-5)

    def turns(model: Split, players: list[torch.optim.Optimizer], images: torch.Tensor, labels: torch.Tensor) -> None:
        one_hot, noise = F.one_hot(labels, 7).float(), torch.rand(len(labels), 256)
        model.eval()
        real, made = model.features(images), generator(torch.cat([noise, one_hot], 1))
        told = [judge(torch.cat([h.detach(), one_hot], 1)) for h in (real, made)]
        descend(players[0], told[0].square().mean() + (1 - told[1]).square().mean())
        model.train()
        h = model.features(images)
        fooled = (1 - judge(torch.cat([h, one_hot], 1))).square().mean()
        descend(players[1], 0.85 * F.cross_entropy(model.classifier(h), labels, label_smoothing=0.1) + 0.15 * fooled)
        made = generator(torch.cat([noise, one_hot], 1))
        descend(players[2], judge(torch.cat([made, one_hot], 1)).square().mean())

    def round() -> int:
        model, seen = copy.deepcopy(received).train(), 0
        players = [optimiser(judge, 7e-4), optimiser(model, 1e-3), optimiser(generator, 7e-4)]
        for epoch in range(3):
            for images, labels in islice(batches, STEPS):
                if epoch == 0:
                    descend(players[1], F.cross_entropy(model.classifier(model.features(images)), labels, label_smoothing=0.1))
                else:
                    turns(model, players, images, labels)
                seen += len(labels)
        return seen

    return round


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
