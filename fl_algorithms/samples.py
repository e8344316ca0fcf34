"""A silo's images as the network takes them, gathered batch by batch from memory-mapped uint8 pixels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fl_algorithms.device import choice

Augment = Callable[[torch.Tensor], torch.Tensor]  # uint8 images [B,C,H,W] -> as many of the same size, float in 0..1


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
        self._augment: Augment | None = None
        self._choice = choice(device)
        if 0 < len(self) * self._pixels[0][:1].numel() <= self._choice.resident:
            self._settle()

    def _settle(self) -> None:
        """Copy the rows to the device, a few at a time: the host never holds them all."""
        resident = torch.empty((len(self), *self._pixels[0].shape[1:]), dtype=torch.uint8, device=self.device)
        for index in torch.arange(len(self)).split(256):
            resident[index.to(self.device)] = self._gather(index).to(self.device)
        self._pixels, self._rows, self._source = [resident], torch.arange(len(self), device=self.device), torch.zeros_like(self._source)

    def __len__(self) -> int:
        return len(self._rows)

    def augmented(self, augment: Augment) -> Samples:
        """The same rows, whose `batches` are augmented before they are normalised; `images` are not."""
        changed = copy.copy(self)
        changed._augment = augment
        return changed

    def images(self, index: torch.Tensor) -> torch.Tensor:
        """Normalised float images [B,C,H,W] in channels_last memory order, which the convolutions like best."""
        return self._normalise(self._fetch(index))

    def batches(self, size: int, order: torch.Tensor | None = None) -> Iterator[Batch]:
        """`size` rows at a time, in the given order (default: as stored)."""
        order = torch.arange(len(self)) if order is None else order
        indices = order.split(size) if len(order) else ()
        fetched: Iterable[torch.Tensor] = map(self._fetch, indices)
        if self._choice.pinned:
            fetched = one_ahead(fetched)
        for index, pixels in zip(indices, fetched, strict=True):
            labels, domains = (rows[index].to(self.device, non_blocking=True) for rows in (self.labels, self.domains))
            yield Batch(self._normalise(pixels, self._augment), labels, domains)

    def _fetch(self, index: torch.Tensor) -> torch.Tensor:
        """Pixels [B,H,W,C] uint8 on the device."""
        pixels = self._gather(index)
        if self._choice.pinned and pixels.device != self.device:
            pixels = pixels.pin_memory()
        return pixels.to(self.device, non_blocking=True)

    def _gather(self, index: torch.Tensor) -> torch.Tensor:
        """Pixels [B,H,W,C] uint8 where they are kept."""
        if len(self._pixels) == 1:
            return self._pixels[0][self._rows[index.to(self._rows.device)]]
        source, rows = self._source[index], self._rows[index]
        pixels = torch.empty((len(index), *self._pixels[0].shape[1:]), dtype=torch.uint8)
        for i, images in enumerate(self._pixels):
            chosen = (source == i).nonzero().squeeze(1)
            pixels[chosen] = images[rows[chosen]]
        return pixels

    def _normalise(self, pixels: torch.Tensor, augment: Augment | None = None) -> torch.Tensor:
        batch = pixels.permute(0, 3, 1, 2)
        if augment is not None:
            return augment(batch).mul_(255 * self._scale).add_(self._shift)
        # A line of pixels at a time: of [B,C,H,W] in this order torch would loop over the channels, which takes four times as long.
        count, height, width, channels = pixels.shape
        lines = pixels.reshape(count * height, width * channels).to(torch.float32)
        lines.mul_(self._scale.flatten().repeat(width)).add_(self._shift.flatten().repeat(width))
        return lines.view(count, height, width, channels).permute(0, 3, 1, 2)


def one_ahead(fetched: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The same tensors; each is fetched before the one in front of it is handed out, so that its copy runs while that one is used."""
    waiting: list[torch.Tensor] = []
    for pixels in fetched:
        waiting.append(pixels)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting
