"""Pictures that only have to be there: a folder of as many classes and images as a measurement needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image


def make_images(folder: Path, classes: Mapping[str, int], each: int = 1, size: int = 32) -> Path:
    """`classes`: how many each domain has. One colour per class, as many images of it as `each`."""
    for domain, count in classes.items():
        for label in range(count):
            place = folder / domain / f"c{label:04}"
            place.mkdir(parents=True)
            for number in range(each):
                Image.new("RGB", (size, size), (label % 256, label // 256, number)).save(place / f"{number}.png")
    return folder
