"""MobileNetV3 for a CPU: the layers whose way back torch makes longer than it must. Results and gradients are torch's within rounding."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops.misc import SqueezeExcitation

from fl_algorithms.models.depthwise import halve_wide_kernels


def shorten_the_way_back(network: nn.Module) -> None:
    """In all layers of such a network."""
    halve_wide_kernels(network)
    for layer in network.modules():
        if isinstance(layer, nn.Hardswish):
            layer.inplace = False  # In place, autograd first copies what it needs: a pass more, and no memory saved.
        elif type(layer) is SqueezeExcitation:
            layer.__class__ = SqueezeBySum  # it has nothing that the other has not


class SqueezeBySum(SqueezeExcitation):
    """The gradient of a sum is one number for a whole map, that of torch's average a map full of it, written and read again."""

    def forward(self, maps: Tensor) -> Tensor:
        mean = maps.flatten(2).sum(2) / maps[0, 0].numel()
        hidden = self.activation(F.linear(mean, self.fc1.weight.flatten(1), self.fc1.bias))
        gate = self.scale_activation(F.linear(hidden, self.fc2.weight.flatten(1), self.fc2.bias))
        gated: Tensor = maps * gate[:, :, None, None]
        return gated
