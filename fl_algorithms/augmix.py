"""AugMix (Hendrycks et al., 2020), the DIFP step of FedCCRL, on a whole batch with operations drawn per image.

Images are float, 0..1, [B,C,H,W] with one or three channels. All chains of all images are the rows of one tensor; at
each depth the rows that drew the same operation are processed together, and all geometric ones by one resampling.
An operation takes rows and a signed level [R] whose size says how far it goes: 1 is the AugMix paper's maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl_algorithms.augment import numpy_generator, parts_for_cache
from fl_algorithms.colour import luma

MAX_DEPTH = 3


def _column(level: Tensor) -> Tensor:
    return level.view(-1, 1, 1, 1)


def autocontrast(images: Tensor, level: Tensor) -> Tensor:
    """Stretch each channel to 0..1; a channel of one value stays. Has no level."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = high == low
    return (images - low.masked_fill(flat, 0)) / (high - low).masked_fill(flat, 1)


def equalize(images: Tensor, level: Tensor) -> Tensor:
    """Flatten each channel's histogram of 256 bins by PIL's rule. Has no level."""
    rows, pixels = images.shape[0] * images.shape[1], images.shape[2] * images.shape[3]
    values = _eight_bit(images).view(rows, pixels)
    offsets = torch.arange(0, rows * 256, 256, dtype=torch.int32, device=images.device)[:, None]
    histogram = torch.bincount((values + offsets).flatten(), minlength=rows * 256).view(rows, 256)
    below = histogram.cumsum(1) - histogram
    brightest = histogram.gather(1, values.amax(1, keepdim=True).long())
    step = (pixels - brightest) // 255
    # A channel of (nearly) one value has step 0: PIL leaves it alone.
    table = ((below + step // 2) // step.clamp_min(1)).clamp_max(255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return (table.to(images.dtype) / 255).gather(1, values.long()).view(images.shape)


def _eight_bit(images: Tensor) -> Tensor:
    return (images * 255).add_(0.5).to(torch.uint8).contiguous()


def _keep_bits(images: Tensor, bits: Tensor) -> Tensor:
    step = torch.exp2(8 - _column(bits))
    return (_eight_bit(images) / step).floor_().mul_(step / 255)


def posterize(images: Tensor, level: Tensor) -> Tensor:
    """Keep 4 bits or fewer, cutting the level to whole bits as the AugMix paper does."""
    return _keep_bits(images, 4 - (4 * level.abs()).floor())


def posterize_rounded(images: Tensor, level: Tensor) -> Tensor:
    """Keep 4 bits or fewer, rounding the level to whole bits as torchvision does."""
    return _keep_bits(images, 4 - (4 * level.abs()).round())


def solarize(images: Tensor, level: Tensor) -> Tensor:
    """Invert the pixels at or above the threshold 1 - |level|."""
    return torch.where(images >= 1 - _column(level.abs()), 1 - images, images)


def _blend(images: Tensor, other: Tensor | float, level: Tensor) -> Tensor:
    factor = 1 + 0.9 * _column(level)
    return (images * factor + other * (1 - factor)).clamp_(0, 1)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    return torch.einsum("bchw,c->bhw", images, luma(images))[:, None]


def brightness(images: Tensor, level: Tensor) -> Tensor:
    """Towards or away from black."""
    return _blend(images, 0.0, level)


def color(images: Tensor, level: Tensor) -> Tensor:
    """Towards or away from the grey image."""
    return _blend(images, _grey(images), level)


def contrast(images: Tensor, level: Tensor) -> Tensor:
    """Towards or away from the image's mean grey."""
    return _blend(images, _grey(images).mean((2, 3), keepdim=True), level)


def sharpness(images: Tensor, level: Tensor) -> Tensor:
    """Towards or away from a 3x3 smoothing with centre weight 5/13; the border has no full window and stays."""
    smooth = images.clone()
    inner = images[:, :, 1:-1, 1:-1]
    smooth[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(images, 3, 1) + 4 * inner) / 13
    return _blend(images, smooth, level)


Matrix = tuple[tuple[float, float, float], tuple[float, float, float]]


def affine_matrix(name: str, level: float, height: int, width: int) -> Matrix:
    """From output to input coordinates, both -1..1 from edge to edge; shears keep the top left corner."""
    tall, wide = height / width, width / height
    if name == "rotate":
        cos, sin = math.cos(math.radians(30 * level)), math.sin(math.radians(30 * level))
        return (cos, -sin * tall, 0.0), (sin * wide, cos, 0.0)
    if name == "shear_x":
        return (1.0, 0.3 * level * tall, 0.3 * level * tall), (0.0, 1.0, 0.0)
    if name == "shear_y":
        return (1.0, 0.0, 0.0), (0.3 * level * wide, 1.0, 0.3 * level * wide)
    # Whole pixels, as in the paper and torchvision: a translation alone does not blur.
    if name == "translate_x":
        return (1.0, 0.0, -2 * math.trunc(level * width / 3) / width), (0.0, 1.0, 0.0)
    return (1.0, 0.0, 0.0), (0.0, 1.0, -2 * math.trunc(level * height / 3) / height)


def warp(images: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Resample every image under its own affine matrix: bilinear, black outside."""
    theta = torch.tensor(matrices, dtype=images.dtype, device=images.device)
    height, width = images.shape[2:]
    across = theta[:, :, 0, None] * _centres(width, theta) + theta[:, :, 2, None]
    down = theta[:, :, 1, None] * _centres(height, theta)
    # What affine_grid computes, without its matrix products of inner size 3: the whole warp is 1.5 times faster.
    grid = (across[:, :, None, :] + down[:, :, :, None]).permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _centres(count: int, like: Tensor) -> Tensor:
    return torch.arange(1 - count, count, 2, dtype=like.dtype, device=like.device) / count


GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
PIXELWISE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], ...]] = {
    "paper9": (autocontrast, equalize, posterize, solarize),
    "torchvision13": (autocontrast, equalize, posterize_rounded, solarize, brightness, color, contrast, sharpness),
}


def mix(images: Tensor, chains: Tensor, weights: Tensor, m: Tensor) -> Tensor:
    """(1 - m) image + m sum_k weights_k chain_k, with chains [K,B,C,H,W], weights [K,B] and m [B]."""
    mixed = images * (1 - _column(m))
    for chain, weight in zip(chains, weights * m, strict=True):
        mixed.addcmul_(chain, _column(weight))
    return mixed


@dataclass(frozen=True)
class AugMix:
    """A random AugMix view of a batch.

    Levels go up to `severity` tenths: evenly spread for "paper9", in torchvision's ten steps for "torchvision13".
    Under `shared_ops` all images share a chain's operations and depth, as when torchvision's AugMix is given a batch.
    """

    severity: int = 3
    width: int = 3
    alpha: float = 1.0
    op_set: Literal["paper9", "torchvision13"] = "paper9"
    shared_ops: bool = False

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The view, same shape and device; `generator` lives on the CPU and advances by one number."""
        rng = numpy_generator(generator)
        ops, levels = self._draw(rng, len(images))
        weights = torch.from_numpy(rng.dirichlet(np.full(self.width, self.alpha), len(images)).T).to(images)
        m = torch.from_numpy(rng.beta(self.alpha, self.alpha, len(images))).to(images)
        views = []
        for part in parts_for_cache(images):
            chains = self._chains(images[part], ops[..., part], levels[..., part])
            views.append(mix(images[part], chains, weights[:, part], m[part]))
        return torch.cat(views)

    def _draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, Tensor]:
        """Operation numbers (-1: the chain has ended) and signed levels, both [depth, width, batch]."""
        size = (MAX_DEPTH, self.width, 1 if self.shared_ops else batch)
        ops = rng.integers(len(PIXELWISE[self.op_set]) + len(GEOMETRIC), size=size)
        ends = rng.integers(1, MAX_DEPTH + 1, size=size[1:])
        ops[np.arange(MAX_DEPTH)[:, None, None] >= ends] = -1
        even, stepped = rng.uniform(0.1, self.severity, size) / 10, rng.integers(self.severity, size=size) / 9
        levels = (even if self.op_set == "paper9" else stepped) * rng.choice((-1.0, 1.0), size)
        shape = (MAX_DEPTH, self.width, batch)
        return np.broadcast_to(ops, shape), torch.from_numpy(levels).expand(shape)

    def _chains(self, images: Tensor, ops: np.ndarray, levels: Tensor) -> Tensor:
        """The ends of all chains, [width,B,C,H,W]."""
        rows = images.repeat(self.width, 1, 1, 1)
        for step_ops, step_levels in zip(ops.reshape(MAX_DEPTH, -1), levels.reshape(MAX_DEPTH, -1), strict=True):
            self._step(rows, step_ops, step_levels)
        return rows.view(self.width, *images.shape)

    def _step(self, rows: Tensor, ops: np.ndarray, levels: Tensor) -> None:
        """Apply one operation to each row, in place. `levels` is on the CPU, where the matrices are made."""
        pixelwise = PIXELWISE[self.op_set]
        for number, operation in enumerate(pixelwise):
            chosen = torch.from_numpy(np.flatnonzero(ops == number))
            if len(chosen):
                index = chosen.to(rows.device)
                rows.index_copy_(0, index, operation(rows.index_select(0, index), levels[chosen].to(rows)))
        chosen = torch.from_numpy(np.flatnonzero(ops >= len(pixelwise)))
        if len(chosen):
            matrices = [
                affine_matrix(GEOMETRIC[op - len(pixelwise)], level, rows.shape[2], rows.shape[3])
                for op, level in zip(ops[chosen.numpy()].tolist(), levels[chosen].tolist(), strict=True)
            ]
            index = chosen.to(rows.device)
            rows.index_copy_(0, index, warp(rows.index_select(0, index), matrices))
