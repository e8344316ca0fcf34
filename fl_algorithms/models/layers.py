"""Layers that compute what torch's own do, faster in the one place where they are used."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EVERY_INT64 = -(2**63)  # from this on, without an upper end: all 64 bits are random
LEVELS = 256


class PooledPatchConv2d(nn.Conv2d):
    """A convolution of one channel as a product of its patches with the kernels, and the largest of every 2 x 2 of its results.

    The gradient of such kernels takes oneDNN eight times as long: they are too thin for its blocks. The bias is added to what is
    left by the pooling: the same numbers for a quarter of the work.
    """

    def forward(self, images: Tensor) -> Tensor:
        (height, width), (down, right) = self.kernel_size, self.stride
        assert self.in_channels == 1 and isinstance(self.padding, tuple) and self.bias is not None
        padded = F.pad(images[:, 0], [self.padding[1]] * 2 + [self.padding[0]] * 2)
        patches = padded.unfold(1, height, down).unfold(2, width, right)
        # One row for each place in the kernel: copied so, they are long runs of memory.
        rows = patches.permute(3, 4, 0, 1, 2).reshape(height * width, -1)
        maps = (rows.t() @ self.weight.flatten(1).t()).view(*patches.shape[:3], -1).permute(0, 3, 1, 2)  # in channels_last order
        return F.max_pool2d(maps, 2).add_(self.bias[:, None, None])


class ByteDropout(nn.Dropout):
    """Dropout that spends one random byte on a value, not a whole random number: drawing was a tenth of a step of the FEMNIST CNN."""

    def __init__(self, p: float) -> None:
        super().__init__(p)
        assert p * LEVELS == int(p * LEVELS), f"expected a multiple of 1/{LEVELS}, found {p}"

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return values
        words = torch.empty(-(-values.numel() // 8), dtype=torch.int64, device=values.device).random_(EVERY_INT64, None)
        drawn = words.view(torch.uint8)[: values.numel()].as_strided(values.size(), values.stride())
        return values * (drawn >= int(self.p * LEVELS)).to(values.dtype).mul_(1 / (1 - self.p))


class PoolTo(nn.AdaptiveAvgPool2d):
    """The average leaves maps as they are that have the wanted size already; so does this, without touching them."""

    def forward(self, maps: Tensor) -> Tensor:
        pooled: Tensor = maps if maps.shape[-1] == maps.shape[-2] == self.output_size else super().forward(maps)
        return pooled
