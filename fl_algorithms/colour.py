"""Colour jitter on a batch, each image with its own factors and its own order of operations, as torchvision computes it.

Images are float, 0..1, [B,C,H,W] with one or three channels. Brightness, contrast and saturation are a 3x3 matrix and an offset
per image; hue is not linear and goes through hue, largest and smallest channel. After each operation values are clamped to 0..1:
leaving that to the end would make one matrix of all, but bright images would come out differently.
"""

from __future__ import annotations

import torch
from torch import Tensor

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def luma(images: Tensor) -> Tensor:
    """Weights [C] of the channels in the grey image."""
    weights = (0.2989, 0.587, 0.114) if images.shape[1] == 3 else (1.0,)
    return torch.tensor(weights, dtype=images.dtype, device=images.device)


def jitter(images: Tensor, order: Tensor, amounts: Tensor) -> Tensor:
    """Operations `order` [B,4], first to last, with `amounts` [B,4] indexed by operation: three factors, and a turn of the hue.

    Both are on the CPU, where it is known without waiting which image needs what.
    """
    for operation in order.T:
        amount = amounts.gather(1, operation[:, None]).squeeze(1)
        turned = (operation == HUE).nonzero().squeeze(1)
        if len(turned) < len(images):
            images = blend(images, operation, amount.masked_fill(operation == HUE, 1.0))
        if len(turned) and images.shape[1] == 3:
            rows = turned.to(images.device)
            images.index_copy_(0, rows, turn_hue(images.index_select(0, rows), amount[turned].to(images)))
    return images


def blend(images: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """factor x image + (1 - factor) x other: black (brightness), the mean grey (contrast), the grey image (saturation)."""
    operation, factor = operation.to(images.device), factor.to(images)
    weights, rest = luma(images), 1 - factor
    matrix = factor[:, None, None] * torch.eye(len(weights), dtype=images.dtype, device=images.device)
    matrix = matrix + (rest * (operation == SATURATION))[:, None, None] * weights
    offset = rest * (operation == CONTRAST) * (images.mean((2, 3)) @ weights)
    return torch.baddbmm(offset[:, None, None], matrix, images.flatten(2)).clamp_(0, 1).view(images.shape)


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Move the hue by `turn` [B] of the whole circle; largest and smallest channel of a pixel keep their values."""
    red, green, blue = images.unbind(1)
    first, last = torch.maximum(green, blue), torch.minimum(green, blue)
    high, middle = torch.maximum(red, first), torch.minimum(red, first)
    low = torch.minimum(middle, last)
    chroma = high - low
    # On a circle of 6, where red, green and blue are at 0, 2 and 4, by Hocevar's formula: |start + (middle - last) / chroma|, with
    # start 0 and -2 where red or green is largest, -6 and 4 where green and blue change places. Signs cost less than masks.
    start = (blue - green).sign_().clamp_min_(0).mul_(-6)
    start = torch.addcmul(start, (first - red).sign_().clamp_min_(0), start + 1, value=-2)
    hue = (middle - last).div_(chroma.clamp_min(torch.finfo(chroma.dtype).tiny)).add_(start).abs_()
    hue.add_(6 * turn[:, None, None])
    hue.sub_((hue / 6).floor_(), alpha=6)  # torch.remainder takes longer
    turned = torch.empty_like(images)
    for channel, (corner, value, towards) in enumerate(((3, low, 1), (2, high, -1), (4, high, -1))):
        torch.addcmul(value, chroma, (hue - corner).abs_().sub_(1).clamp_(0, 1), value=towards, out=turned[:, channel])
    return turned


def greyed(images: Tensor, chosen: Tensor) -> Tensor:
    """Images whose row is `chosen` [B] without their colours."""
    grey = luma(images).expand(images.shape[1], -1)
    matrix = torch.where(chosen.to(images.device)[:, None, None], grey, torch.eye(len(grey), dtype=images.dtype, device=images.device))
    return torch.bmm(matrix, images.flatten(2)).view(images.shape)
