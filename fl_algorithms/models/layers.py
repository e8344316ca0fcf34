"""Layers that compute what torch's own do, faster in the one place where they are used."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EVERY_INT64 = -(2**63)  # from this on, without an upper end: all 64 bits are random
FOUR_THIRDS = int(torch.tensor(4 / 3).view(torch.int32))  # its bits


def float32_on_cpu(values: Tensor) -> bool:
    """Where layers made for a CPU are better than torch's."""
    return values.device.type == "cpu" and values.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


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
        # Kernels in the order of the rows: with a transposed view their gradient takes four times as long.
        kernels = self.weight.flatten(1).t().contiguous()
        maps = (rows.t() @ kernels).view(*patches.shape[:3], -1).permute(0, 3, 1, 2)  # in channels_last order
        return F.max_pool2d(maps, 2).add_(self.bias[:, None, None])


class QuarterDropout(nn.Dropout):
    """Dropout of one value in four that spends two random bits on each, not a whole random number.

    Drawing and comparing numbers was a tenth of a step of the FEMNIST CNN. Of two bits at least one is set three times in four; moved
    to the place of a sign and spread over its word, it lets the bits of the factor through, or none: a float, or zero.
    """

    def __init__(self) -> None:
        super().__init__(0.25)

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or values.dtype != torch.float32:
            return super().forward(values)
        words = torch.empty(-(-values.numel() // 32), dtype=torch.int64, device=values.device).random_(EVERY_INT64, None)
        bits = words.view(torch.int32)
        bits |= bits >> 1  # each of the even ones: itself, or the odd one beside it
        to_sign = torch.arange(1, 32, 2, dtype=torch.int32, device=values.device)[:, None]
        kept = (bits << to_sign).bitwise_right_shift_(31).bitwise_and_(FOUR_THIRDS).view(torch.float32)
        return values * kept.flatten()[: values.numel()].as_strided(values.size(), values.stride())


class PoolTo(nn.AdaptiveAvgPool2d):
    """The average leaves maps as they are that have the wanted size already; so does this, without touching them."""

    def forward(self, maps: Tensor) -> Tensor:
        pooled: Tensor = maps if maps.shape[-1] == maps.shape[-2] == self.output_size else super().forward(maps)
        return pooled
