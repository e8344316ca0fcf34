"""Layers that compute what torch's own do, faster in the one place where they are used."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EVERY_INT64 = -(2**63)  # from this on, without an upper end: all 64 bits are random
LEVELS = 256


class PatchConv2d(nn.Conv2d):
    """A convolution of one channel as a product of its patches with the kernels.

    The gradient of such kernels takes oneDNN eight times as long: they are too thin for its blocks.
    """

    def forward(self, images: Tensor) -> Tensor:
        (height, width), (down, right) = self.kernel_size, self.stride
        assert self.in_channels == 1 and isinstance(self.padding, tuple)
        padded = F.pad(images[:, 0], [self.padding[1]] * 2 + [self.padding[0]] * 2)
        patches = padded.unfold(1, height, down).unfold(2, width, right).flatten(3)
        return F.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)  # in channels_last order


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
