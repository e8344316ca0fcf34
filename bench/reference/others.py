"""FedDG's amplitude mixing, a FEMNIST round, and evaluation."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from bench.reference.loaders import Files, resized
from bench.reference.networks import mobilenet
from bench.reference.training import Run


def feddg(pictures: Path) -> Run:
    """One image at a time: a complex transform of all frequencies, shifted, the window mixed, shifted and transformed back."""
    files = Files(pictures / "photo", transforms.Compose([transforms.Resize((224, 224)), transforms.PILToTensor()]))
    images = [np.asarray(files[index][0], np.float64) for index in range(32)]
    bank = [np.abs(np.fft.fft2(image, axes=(-2, -1))) for image in images]

    def mix() -> int:
        for number, image in enumerate(images):
            share, foreign = np.random.uniform(), bank[(number + 1) % len(bank)]
            spectrum = np.fft.fft2(image, axes=(-2, -1))
            amplitude, phase = np.abs(spectrum), np.angle(spectrum)
            own, other = np.fft.fftshift(amplitude, axes=(-2, -1)), np.fft.fftshift(foreign, axes=(-2, -1))
            reach = int(0.01 * 224)
            window = np.s_[:, 112 - reach : 113 + reach, 112 - reach : 113 + reach]
            own[window] = own[window] * (1 - share) + other[window] * share
            mixed = np.fft.ifftshift(own, axes=(-2, -1)) * np.exp(1j * phase)
            np.clip(np.real(np.fft.ifft2(mixed, axes=(-2, -1))), 0, 255)
        return len(images)

    return mix


class Writer(Dataset[tuple[torch.Tensor, int]]):
    """As read from LEAF's JSON: a list of floats per picture, made an image again whenever it is needed."""

    def __init__(self, pictures: list[list[float]], labels: list[int]) -> None:
        self.samples = list(zip(pictures, labels, strict=True))
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1736,), (0.3248,))])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture, label = self.samples[index]
        return self.transform(Image.fromarray(np.uint8(np.array(picture).reshape(28, 28) * 255))), label


def femnist_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(1024, 2048), nn.ReLU(), nn.Dropout(0.25), nn.Linear(2048, 62)),
    )


def femnist(writers: dict[str, tuple[list[list[float]], list[int]]]) -> Run:
    """One client after another on a deep copy of the model."""
    model = femnist_cnn()
    clients = [Writer(*writer) for writer in writers.values()]

    def round() -> int:
        states, seen = [], 0
        for client in clients:
            local, right, labels_seen = copy.deepcopy(model).train(), [], []
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
            for images, labels in DataLoader(client, 64, shuffle=True):
                optimizer.zero_grad()
                outputs = local(images)
                loss = F.cross_entropy(outputs, labels)
                loss.backward()
                optimizer.step()
                right.append(outputs.argmax(1).cpu().numpy())
                labels_seen.append(labels.cpu().numpy())
                seen += len(labels)
            np.mean(np.concatenate(right) == np.concatenate(labels_seen))
            states.append((len(client), copy.deepcopy(local.state_dict())))
        total = sum(size for size, _ in states)
        merged = {name: sum(size / total * state[name] for size, state in states) for name in states[0][1]}
        model.load_state_dict(merged)
        return seen

    return round


def evaluation(pictures: Path) -> Run:
    model = mobilenet(7).eval()
    batches = DataLoader(Files(pictures / "cartoon", resized(224)), 64)

    def count() -> int:
        right, seen = 0, 0
        with torch.no_grad():
            for images, labels in batches:
                right += (model(images).argmax(1) == labels).sum().item()
                seen += len(labels)
        return seen

    return count
