"""What a domain is to the rest of the project: a read-only stack of pictures with labels; and the files it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Images:
    """One domain. `pixels` is memory-mapped: slice it, do not copy it whole."""

    pixels: np.ndarray  # uint8 [N, H, W, C]
    labels: np.ndarray  # int64 [N], positions in `classes`
    classes: tuple[str, ...]
    digest: str  # BLAKE3 over shape, classes, pixels, labels, groups and held_out
    groups: np.ndarray | None = None  # int64 [N]: pictures of one group must stay on one side of a split
    held_out: np.ndarray | None = None  # bool [N]: what the data set's own lists keep for validation or test
    skipped: tuple[str, ...] = ()  # files left out because they cannot be decoded

    def __len__(self) -> int:
        return len(self.labels)


class Picture(NamedTuple):
    """A file that a loader found, or that a list names."""

    path: Path
    label: int
    held_out: bool | None = None  # what the data set's own lists say, where it has any
