"""Random crops of square images, enlarged to the whole image's size, on a batch with a box per image."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ATTEMPTS = 10
LARGEST_RATIO = 4 / 3  # of width to height; the smallest is 3/4


def draw_boxes(count: int, size: int, smallest: float, generator: torch.Generator) -> Tensor:
    """Boxes [count,4] (top, left, height, width) in pixels by the law of torchvision's RandomResizedCrop, int64 on the CPU.

    The area is even between the share `smallest` and 1, the logarithm of the aspect ratio even between 3/4 and 4/3. A box that does
    not fit is drawn again; after ten attempts it is the whole image. Every image takes the same number of random numbers.
    """
    draws = torch.rand(count, ATTEMPTS, 2, dtype=torch.float64, generator=generator)
    place = torch.rand(count, 2, dtype=torch.float64, generator=generator)
    area = size**2 * (smallest + (1 - smallest) * draws[..., 0])
    ratio = ((2 * draws[..., 1] - 1) * math.log(LARGEST_RATIO)).exp()
    sides = torch.stack([(area / ratio).sqrt(), (area * ratio).sqrt()], dim=-1).round_().clamp_min_(1)  # [count,ATTEMPTS,2]
    fits = (sides <= size).all(-1)
    first = fits.to(torch.uint8).argmax(1)  # of equal values the first
    chosen = sides[torch.arange(count), first].masked_fill(~fits.any(1, keepdim=True), size)
    return torch.cat([(place * (size - chosen + 1)).floor(), chosen], dim=1).long()


def resized_crop(images: Tensor, boxes: Tensor, flip: Tensor) -> Tensor:
    """Each image's box at the size of the image, mirrored where `flip` [B] says so, by one resampling.

    Bilinear with edges at pixel borders; nothing from outside the box is used. A box is never larger than the image, so that
    antialiasing, which acts when an image shrinks, has nothing to do.
    """
    rows, columns = images.shape[2:]
    top, left, height, width = boxes.to(images.device, images.dtype).T[..., None]
    y = _inside(rows, height) + top
    x = _inside(columns, width) + left
    x = torch.where(flip.to(images.device)[:, None], x.flip(1), x)
    # grid_sample counts from -1 to 1 between the outer borders of the outer pixels
    x, y = (2 * x + 1) / columns - 1, (2 * y + 1) / rows - 1
    grid = torch.stack([x[:, None, :].expand(-1, rows, -1), y[:, :, None].expand(-1, -1, columns)], dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _inside(count: int, length: Tensor) -> Tensor:
    """Where the centres of `count` pixels lie in a box of this length [B,1], in its own pixels: [B,count]."""
    centres = torch.arange(count, dtype=length.dtype, device=length.device) + 0.5
    return (centres * (length / count) - 0.5).clamp_min(0).minimum(length - 1)
