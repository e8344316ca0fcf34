"""Convolutions with fewer multiplications, for CPUs (Winograd 1980; Lavin and Gray 2016, arXiv:1509.09308).

The maps are cut into overlapping tiles that give 4x4 results each. Kernel and tile are taken as polynomials to their values at a few
points, where a convolution is a plain product: 36 products a tile for a 3x3 kernel, where the direct way has 144, and 64 instead of 400
for a 5x5 kernel. The ways there and back are small matrices, so all of it is matrix products, at which a CPU is best. cuDNN chooses
such ways by itself; oneDNN does not. The results are those of the direct way within rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input

from fl_algorithms.models.layers import float32_on_cpu

STEP = 4  # results of a tile in each direction
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # the first ones that a kernel needs, and infinity: small, so that few digits are lost
ENOUGH_CHANNELS = {3: 128, 5: 64}  # by kernel: with fewer, cutting and joining cost what the products save
ENOUGH_FOR_KERNELS = {3: 64, 5: 64}  # at least for their gradient


class WinogradConv2d(nn.Conv2d):
    """A convolution of stride 1 with a 3x3 or 5x5 kernel; where it is not computed in float32 on a CPU, it is `nn.Conv2d`."""

    def forward(self, images: Tensor) -> Tensor:
        if not float32_on_cpu(images):
            return super().forward(images)
        assert isinstance(self.padding, tuple)
        maps: Tensor = _Winograd.apply(images.permute(0, 2, 3, 1), self.weight, self.padding[0]).permute(0, 3, 1, 2)
        return maps if self.bias is None else maps + self.bias[:, None, None]


class WinogradKernels(WinogradConv2d):
    """One of few channels: only the gradient of its kernels is worth the tiles.

    With AVX2, that of oneDNN takes twice as long as the maps; with AVX-512 nobody has measured it, so it is left alone. Without
    oneDNN the way must not depend on the CPU.
    """

    def forward(self, images: Tensor) -> Tensor:
        pays = not torch.backends.mkldnn.enabled or torch.backends.cpu.get_cpu_capability() == "AVX2"
        if not pays or not torch.is_grad_enabled() or not self.weight.requires_grad or not float32_on_cpu(images):
            return nn.Conv2d.forward(self, images)
        maps: Tensor = _Kernels.apply(images, self.weight, self.padding)
        return maps if self.bias is None else maps + self.bias[:, None, None]


def multiply_less(network: nn.Module) -> None:
    """Let the convolutions of a network multiply less where that saves more than the tiles cost."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d and _can_be_cut(layer):
            channels, kernel = min(layer.in_channels, layer.out_channels), layer.kernel_size[0]
            if channels >= ENOUGH_CHANNELS[kernel]:
                layer.__class__ = WinogradConv2d  # it has nothing that the other has not
            elif channels >= ENOUGH_FOR_KERNELS[kernel]:
                layer.__class__ = WinogradKernels


def _can_be_cut(layer: nn.Conv2d) -> bool:
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
    square = layer.kernel_size[0] == layer.kernel_size[1] and layer.padding[0] == layer.padding[1]
    return plain and square and layer.kernel_size[0] in ENOUGH_CHANNELS


@cache
def _matrices(kernel: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ways, for rows and columns at once: from a tile to its values, from a kernel to its values, from products to results."""
    points = torch.tensor(POINTS[: kernel + STEP - 2], dtype=torch.float64)

    def values(length: int) -> Tensor:
        """Of a polynomial at the points: the powers of each; at infinity, the last coefficient."""
        return torch.cat([points[:, None] ** torch.arange(length), torch.eye(length, dtype=torch.float64)[-1:]])

    # A product of polynomials is interpolated from its values; a convolution is the transpose of that.
    tile = torch.linalg.inv(values(len(points) + 1)).t()
    # What is divided out of the kernels' values makes the tiles' whole numbers, which loses fewer digits.
    scale = torch.tensor([*((a - points[points != a]).prod() for a in points), 1.0], dtype=torch.float64)[:, None]
    one_way = (tile * scale, values(kernel) / scale, values(STEP).t())
    to_tiles, to_kernels, to_results = (torch.kron(way, way).to(torch.float32) for way in one_way)
    return to_tiles, to_kernels, to_results


class _Winograd(torch.autograd.Function):
    """Of maps [N,H,W,C]. The gradients go the same way back, each matrix transposed."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, padding: int) -> Tensor:
        outputs, channels, kernel, _ = weight.shape
        to_tiles, to_kernels, to_results = _matrices(kernel)
        size = [length + 2 * padding - kernel + 1 for length in maps.shape[1:3]]
        ctx.kernel, ctx.padding, ctx.shape, ctx.tiles = kernel, padding, maps.shape, [-(-length // STEP) for length in size]
        tiles = (to_tiles @ _cut(maps, STEP + kernel - 1, padding, ctx.tiles)).view(len(to_tiles), -1, channels)
        kernels = (to_kernels @ weight.permute(2, 3, 0, 1).reshape(kernel**2, -1)).view(len(to_kernels), outputs, channels)
        ctx.save_for_backward(tiles, kernels)
        results = to_results @ torch.bmm(tiles, kernels.transpose(1, 2)).flatten(1)
        return _join(results, STEP, 0, ctx.tiles, (len(maps), *size, outputs))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        tiles, kernels = ctx.saved_tensors
        to_tiles, to_kernels, to_results = _matrices(ctx.kernel)
        products = (to_results.t() @ _cut(gradient, STEP, 0, ctx.tiles)).view(len(kernels), -1, kernels.shape[1])
        of_maps = of_weight = None
        if ctx.needs_input_grad[0]:
            of_tiles = to_tiles.t() @ torch.bmm(products, kernels).flatten(1)
            of_maps = _join(of_tiles, STEP + ctx.kernel - 1, ctx.padding, ctx.tiles, ctx.shape)
        if ctx.needs_input_grad[1]:
            of_weight = _of_kernels(products, tiles, to_kernels, torch.Size((*kernels.shape[1:], ctx.kernel, ctx.kernel)))
        return of_maps, of_weight, None


class _Kernels(torch.autograd.Function):
    """Of maps [N,C,H,W]: the direct way, but for the gradient of the kernels."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        ctx.padding = padding
        ctx.save_for_backward(maps, weight)
        return F.conv2d(maps, weight, padding=padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (maps, weight), of_maps, of_weight = ctx.saved_tensors, None, None
        if ctx.needs_input_grad[0]:
            of_maps = conv2d_input(maps.shape, weight, gradient, padding=ctx.padding)
        if ctx.needs_input_grad[1]:
            outputs, channels, kernel, _ = weight.shape
            to_tiles, to_kernels, to_results = _matrices(kernel)
            maps, gradient = maps.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
            many = [-(-length // STEP) for length in gradient.shape[1:3]]
            products = (to_results.t() @ _cut(gradient, STEP, 0, many)).view(len(to_tiles), -1, outputs)
            tiles = (to_tiles @ _cut(maps, STEP + kernel - 1, ctx.padding[0], many)).view(len(to_tiles), -1, channels)
            of_weight = _of_kernels(products, tiles, to_kernels, weight.shape)
        return of_maps, of_weight, None


def _of_kernels(products: Tensor, tiles: Tensor, to_kernels: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of kernels of that shape [O,C,k,k]."""
    outputs, channels, kernel, _ = shape
    of_kernels = to_kernels.t() @ torch.bmm(products.transpose(1, 2), tiles).flatten(1)
    return of_kernels.view(kernel, kernel, outputs, channels).permute(2, 3, 0, 1)


def _cut(maps: Tensor, side: int, padding: int, tiles: Sequence[int]) -> Tensor:
    """[N,H,W,C] -> a row for each of the side x side places in a tile: its values in all tiles, zero where there is no map."""
    beyond = [(many - 1) * STEP + side - padding - length for many, length in zip(tiles, maps.shape[1:3], strict=True)]
    if padding or any(beyond):
        maps = F.pad(maps, (0, 0, padding, beyond[1], padding, beyond[0]))
    return maps.unfold(1, side, STEP).unfold(2, side, STEP).permute(4, 5, 0, 1, 2, 3).reshape(side**2, -1)


def _join(rows: Tensor, side: int, padding: int, tiles: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The way back to maps of that shape; where tiles overlap, their sum."""
    (down, across), (count, height, width, channels) = tiles, shape
    values = rows.view(side, side, count, down, across, channels).permute(2, 3, 0, 4, 1, 5)
    reach = -(-side // STEP)  # a tile lies on so many steps in each direction
    maps = rows.new_zeros(count, down + reach - 1, STEP, across + reach - 1, STEP, channels) if reach > 1 else values
    for i, j in product(range(reach), repeat=2) if reach > 1 else ():
        part = values[:, :, i * STEP : (i + 1) * STEP, :, j * STEP : (j + 1) * STEP]
        maps[:, i : i + down, : part.shape[2], j : j + across, : part.shape[4]] += part
    whole = maps.reshape(count, (down + reach - 1) * STEP, (across + reach - 1) * STEP, channels)
    if whole.shape == shape:
        return whole
    return whole[:, padding : padding + height, padding : padding + width].clone(memory_format=torch.contiguous_format)
