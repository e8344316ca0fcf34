"""FedSR's step. `next(iter(loader))` in each: four workers are started, decode up to eight batches, and one is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import distributions, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from bench.reference.loaders import Files, augmented, loader
from bench.reference.networks import Featured, Split, Thin
from bench.reference.training import Run

WORKERS = 4


def fedsr(pictures: Path) -> Run:
    return _steps(Split(1024, 7).train(), 7, loader(Files(pictures / "photo", augmented(224, 0.7, 0.3)), 32, WORKERS))


def fedsr_batch(pictures: Path) -> Run:
    """The same without the network."""
    batches = loader(Files(pictures / "photo", augmented(224, 0.7, 0.3)), 32, WORKERS)

    def fetch() -> int:
        return len(next(iter(batches))[1])

    return fetch


def fedsr_digits(pixels: np.ndarray, labels: np.ndarray) -> Run:
    """With the network of the rotated digits, where getting the batch is nearly all."""
    return _steps(Thin(1024, 10).train(), 10, DataLoader(Digits(pixels, labels), 64, shuffle=True, drop_last=True, num_workers=WORKERS))


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """As torchvision gives them: an array in memory, made a picture whenever it is needed."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.pixels, self.labels = pixels, labels
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), int(self.labels[index])


def _steps(model: Featured, classes: int, batches: DataLoader[tuple[torch.Tensor, int]]) -> Run:
    reference, raw, scale = nn.Parameter(torch.zeros(classes, 512)), nn.Parameter(torch.ones(classes, 512)), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), reference, raw, scale], lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step() -> int:
        images, labels = next(iter(batches))
        mean, spread = model.features(images).chunk(2, 1)
        sigma, q = F.softplus(spread), F.softplus(raw[labels])
        z = mean + sigma * torch.randn_like(mean)
        loss = F.cross_entropy(model.classifier(z), labels) + 0.01 * z.norm(dim=1).mean()
        kl = q.log() - (scale * sigma).log() + ((scale * sigma) ** 2 + (scale * mean - reference[labels]) ** 2) / (2 * q**2) - 0.5
        loss = loss + 0.001 * kl.sum(1).mean()
        _entropy(z, mean, sigma)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return len(labels)

    return step


def _entropy(z: torch.Tensor, mean: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Of all z under the mixture of all q(z|x), which nothing uses."""
    each = distributions.Independent(distributions.Normal(mean, sigma), 1)
    mixture = distributions.MixtureSameFamily(distributions.Categorical(torch.ones(len(z))), each)
    density: torch.Tensor = mixture.log_prob(z).mean()
    return density
