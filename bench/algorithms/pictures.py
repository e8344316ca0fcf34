"""The pictures that both sides read: some of PACS where it is at hand, generated JPEGs otherwise."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS = {"photo": 80, "cartoon": 16}  # pictures per class: to train on, to evaluate and to borrow styles from
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def archives() -> Path:
    """PACS as one tar per domain: $SILOFLOW_PACS, or beside the repository."""
    return Path(os.environ.get("SILOFLOW_PACS", Path(__file__).parents[3] / "shared" / "data" / "pacs"))


def lay_out(folder: Path) -> str:
    """A tree of domain/class/file, as many of each class; says where the pictures are from."""
    real = all((archives() / f"{domain}.tar").is_file() for domain in DOMAINS)
    for domain in DOMAINS:
        if real:
            _unpack(archives() / f"{domain}.tar", domain, folder)
        else:
            _generate(domain, folder)
    return "PACS" if real else "generated"


def _unpack(archive: Path, domain: str, folder: Path) -> None:
    taken = dict.fromkeys(CLASSES, 0)
    with tarfile.open(archive) as tar:
        for member in tar:
            *_, label, name = Path(member.name).parts if member.isfile() else ("", "")
            if taken.get(label, DOMAINS[domain]) < DOMAINS[domain] and (content := tar.extractfile(member)) is not None:
                taken[label] += 1
                place = folder / domain / label / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())


def _generate(domain: str, folder: Path) -> None:
    draw = np.random.default_rng(DOMAINS[domain])
    for label in CLASSES:
        place = folder / domain / label
        place.mkdir(parents=True, exist_ok=True)
        for number in range(DOMAINS[domain]):
            coarse = Image.fromarray(draw.integers(0, 256, (12, 12, 3), np.uint8))
            coarse.resize((227, 227), Image.Resampling.BICUBIC).save(place / f"{number:03}.jpg", quality=90)
