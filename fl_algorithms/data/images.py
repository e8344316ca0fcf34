"""What a domain is to the rest of the project: a read-only stack of pictures with labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Images:
    """One domain. `pixels` is memory-mapped: slice it, do not copy it whole."""

    pixels: np.ndarray  # uint8 [N, H, W, C]
    labels: np.ndarray  # int64 [N], positions in `classes`
    classes: tuple[str, ...]
    digest: str  # SHA-256 over shape, classes, pixels, labels and groups
    groups: np.ndarray | None = None  # int64 [N]: pictures of one group must stay on one side of a split
    skipped: tuple[str, ...] = ()  # files left out because they cannot be decoded

    def __len__(self) -> int:
        return len(self.labels)
