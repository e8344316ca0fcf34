"""Pictures one by one: opened, decoded, resized, augmented and normalised in Python, in every epoch again."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALISED = (transforms.ToTensor(), transforms.Normalize(MEAN, STD))


def resized(size: int) -> transforms.Compose:
    return transforms.Compose([transforms.Resize((size, size)), *NORMALISED])


def augmented(size: int, smallest: float, jitter: float, grey: float = 0.1) -> transforms.Compose:
    colour = [transforms.ColorJitter(jitter, jitter, jitter, min(jitter, 0.5))] if jitter else []
    crop = transforms.RandomResizedCrop((size, size), (smallest, 1.0))
    return transforms.Compose([crop, transforms.RandomHorizontalFlip(), *colour, transforms.RandomGrayscale(grey), *NORMALISED])


class Files(Dataset[tuple[torch.Tensor, int]]):
    """domain/class/file, classes in alphabetical order."""

    def __init__(self, domain: Path, transform: transforms.Compose) -> None:
        classes = sorted(folder.name for folder in domain.iterdir())
        self.files = [(file, classes.index(name)) for name in classes for file in sorted((domain / name).iterdir())]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        return self.transform(Image.open(path).convert("RGB")), label


def loader(files: Files, batch: int, workers: int = 0) -> DataLoader[tuple[torch.Tensor, int]]:
    return DataLoader(files, batch, shuffle=True, drop_last=True, num_workers=workers)
