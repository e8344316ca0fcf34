"""A silo's images as the network takes them, gathered batch by batch from memory-mapped uint8 pixels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch


class Batch(NamedTuple):
    """What a loss sees: normalised images [B,C,H,W], labels [B], and the number of each image's source domain [B]."""

    images: torch.Tensor
    labels: torch.Tensor
    domains: torch.Tensor


class Samples:
    """Rows of one or more decoded domains. Indexing decodes nothing and copies only the rows asked for."""

    def __init__(
        self,
        sources: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],  # pixels [N,H,W,C] uint8, labels [N], rows used
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        numbers: Sequence[int] | None = None,  # of the sources among all source domains of the federation
    ) -> None:
        with warnings.catch_warnings():  # the maps are read-only on purpose; nothing here writes to them
            warnings.filterwarnings("ignore", message=".*not writable.*")
            self._pixels = [torch.from_numpy(pixels) for pixels, _, _ in sources]
        self._rows = torch.cat([torch.as_tensor(np.asarray(rows, dtype=np.int64)) for _, _, rows in sources])
        self._source = torch.cat([torch.full((len(rows),), i) for i, (_, _, rows) in enumerate(sources)])
        self.labels = torch.cat([torch.as_tensor(labels[rows], dtype=torch.int64) for _, labels, rows in sources])
        self.domains = torch.tensor(numbers if numbers is not None else range(len(sources)))[self._source]  # of each row, like `labels`
        self.device = device
        # (x / 255 - mean) / std as one multiply-add
        self._scale = (1.0 / (255.0 * torch.tensor(std, device=device))).view(1, -1, 1, 1)
        self._shift = (-torch.tensor(mean, device=device) / torch.tensor(std, device=device)).view(1, -1, 1, 1)

    def __len__(self) -> int:
        return len(self._rows)

    def images(self, index: torch.Tensor) -> torch.Tensor:
        """Normalised float images [B,C,H,W] in channels_last memory order, which the convolutions like best."""
        if len(self._pixels) == 1:
            pixels = self._pixels[0][self._rows[index]]
        else:
            source, rows = self._source[index], self._rows[index]
            pixels = torch.empty((len(index), *self._pixels[0].shape[1:]), dtype=torch.uint8)
            for i, images in enumerate(self._pixels):
                chosen = (source == i).nonzero().squeeze(1)
                pixels[chosen] = images[rows[chosen]]
        batch = pixels.to(self.device, non_blocking=True).permute(0, 3, 1, 2).to(torch.float32)
        return batch.mul_(self._scale).add_(self._shift)

    def batches(self, size: int, order: torch.Tensor | None = None) -> Iterator[Batch]:
        """`size` rows at a time, in the given order (default: as stored)."""
        order = torch.arange(len(self)) if order is None else order
        for index in order.split(size) if len(order) else ():
            labels, domains = (rows[index].to(self.device, non_blocking=True) for rows in (self.labels, self.domains))
            yield Batch(self.images(index), labels, domains)
