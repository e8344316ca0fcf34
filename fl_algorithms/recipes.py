"""The papers' augmentations of training images (specs/PROTOCOLS.md, section 6) by name, on a whole batch with draws per image.

They work on the cached images, which already have the network's size; the papers' code crops files of 227 px or larger. It also
rounds to whole levels after each operation, which is not done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fl_algorithms.augment import parts_for_cache
from fl_algorithms.colour import greyed, jitter
from fl_algorithms.geometry import draw_boxes, resized_crop

RecipeName = Literal["none", "csac", "fedadg", "domainbed", "ga", "ccst"]


class _Draws(NamedTuple):
    """Of each image: crop [B,4], mirrored or not [B], order of the colour operations and their amounts [B,4], grey or not [B]."""

    boxes: Tensor
    flip: Tensor
    order: Tensor
    amounts: Tensor
    grey: Tensor


@dataclass(frozen=True)
class Recipe:
    """RandomResizedCrop of at least the share `smallest` of the image, flip, ColorJitter, RandomGrayscale, in this order."""

    smallest: float
    jitter: float = 0.0  # brightness, contrast and saturation by a factor in 1 +- jitter, hue by +- jitter of the circle
    grey: float = 0.0  # probability

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Square images [B,C,H,W], uint8 or float in 0..1 -> float in 0..1, in channels_last memory order.

        `generator` lives on the CPU and advances by as much for every image.
        """
        draws = self._draw(generator, len(images), images.shape[-1])
        whole = images.dtype == torch.uint8
        view = torch.empty(
            images.shape,
            dtype=torch.float32 if whole else images.dtype,
            device=images.device,
            memory_format=torch.channels_last,
        )
        for part in parts_for_cache(images):
            pixels = images[part].to(torch.float32).div_(255) if whole else images[part]
            view[part] = self._apply(pixels, _Draws(*(of[part] for of in draws)))
        return view

    def _draw(self, generator: torch.Generator, count: int, size: int) -> _Draws:
        boxes = draw_boxes(count, size, self.smallest, generator)
        order = torch.rand(count, 4, generator=generator).argsort(1)
        centre = torch.tensor([1.0, 1.0, 1.0, 0.0])
        amounts = centre + self.jitter * (2 * torch.rand(count, 4, generator=generator) - 1)
        flip, grey = torch.rand(2, count, generator=generator)
        return _Draws(boxes, flip < 0.5, order, amounts, grey < self.grey)

    def _apply(self, images: Tensor, draws: _Draws) -> Tensor:
        images = resized_crop(images, draws.boxes, draws.flip)
        if self.jitter:
            images = jitter(images, draws.order, draws.amounts)
        return greyed(images, draws.grey) if draws.grey.any() else images


RECIPES: dict[RecipeName, Recipe | None] = {
    "none": None,
    "csac": Recipe(0.8, jitter=0.4, grey=0.1),
    "fedadg": Recipe(0.7, grey=0.1),
    "domainbed": Recipe(0.7, jitter=0.3, grey=0.1),
    "ga": Recipe(0.7, jitter=0.4, grey=0.1),
    "ccst": Recipe(0.8),
}
