"""A convolution with a 5x5 kernel for each channel, whose kernels' gradient takes oneDNN far longer than it must.

oneDNN has a quick way for kernels of up to three columns. Five columns are three and three more, of which the middle one is both's.
Results and gradients are those of `nn.Conv2d` within rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fl_algorithms.models.layers import float32_on_cpu

EACH_WAY = 2  # columns that a kernel reaches to the left and to the right


def halve_wide_kernels(network: nn.Module) -> None:
    """Let a network take the quick way wherever it has such layers."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d and _is_such(layer):
            layer.__class__ = DepthwiseConv2d  # it has nothing that the other has not


def _is_such(layer: nn.Conv2d) -> bool:
    depthwise = layer.groups == layer.in_channels == layer.out_channels and layer.bias is None and layer.padding_mode == "zeros"
    form = (layer.kernel_size, layer.padding, layer.dilation, layer.stride)
    return depthwise and form in [((5, 5), (2, 2), (1, 1), (step, step)) for step in (1, 2)]


class DepthwiseConv2d(nn.Conv2d):
    """A 5x5 kernel for each channel. Where it is not trained in float32 on a CPU, it is `nn.Conv2d`."""

    def forward(self, maps: Tensor) -> Tensor:
        if self.bias is not None or not float32_on_cpu(maps):  # a bias has what was folded for evaluation
            return super().forward(maps)
        results: Tensor = _Depthwise.apply(maps, self.weight, self.stride)
        return results


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.stride = stride
        return F.conv2d(maps, weight, None, stride, EACH_WAY, 1, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (maps, weight), of_maps, of_weight = ctx.saved_tensors, None, None
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if ctx.needs_input_grad[0]:
            of_maps = _way_back(gradient, maps, weight, ctx.stride, (EACH_WAY, EACH_WAY), (True, False, False))[0]
        if ctx.needs_input_grad[1]:
            half = weight[..., :3]
            left, right = (
                _way_back(gradient, shifted, half, ctx.stride, (EACH_WAY, 0), (False, True, False))[1] for shifted in _beside_zeros(maps)
            )
            of_weight = torch.cat([left, right[..., 1:]], dim=3)
        return of_maps, of_weight, None


def _way_back(
    gradient: Tensor, maps: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int], wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of maps, weight and bias, those that are wanted."""
    all_three: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient, maps, weight, None, stride, padding, (1, 1), False, (0, 0), len(weight), wanted
    )
    return all_three


def _beside_zeros(maps: Tensor) -> tuple[Tensor, Tensor]:
    """The maps with two columns of zeros on their left, and on their right, in channels_last order.

    Both are the same memory: where the zeros after a row end, the next row begins.
    """
    count, channels, height, width = maps.shape
    values = maps.new_empty((count * height * (width + EACH_WAY) + EACH_WAY) * channels)
    zeros = EACH_WAY * channels
    after, before = (part.view(count, height, width + EACH_WAY, channels) for part in (values[:-zeros], values[zeros:]))
    after[:, :, :EACH_WAY] = 0
    after[:, :, EACH_WAY:] = maps.permute(0, 2, 3, 1)
    values[-zeros:] = 0
    return after.permute(0, 3, 1, 2), before.permute(0, 3, 1, 2)
