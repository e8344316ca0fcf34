"""torchvision's networks with a new classifier."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import mobilenet_v3_large, resnet18


def mobilenet(classes: int) -> nn.Module:
    network: nn.Module = mobilenet_v3_large(weights=None, num_classes=classes)
    return network


class Split(nn.Module):
    """ResNet-18 as features and classifier, its stages to be had."""

    def __init__(self, outputs: int, classes: int, hidden: bool = False) -> None:
        super().__init__()
        net = resnet18(weights=None)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1)
        self.stages = nn.ModuleList([net.layer2, net.layer3, net.layer4])
        self.encoder = nn.Linear(512, outputs) if outputs != 512 else nn.Identity()
        width = min(outputs, 512)
        linear = nn.Linear(width, classes)
        self.classifier = nn.Sequential(nn.Linear(width, width), nn.ReLU(), linear) if hidden else linear

    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        found = [self.stem(images)]
        for stage in self.stages:
            found.append(stage(found[-1]))
        return found[1:]

    def features(self, images: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.encoder(self.maps(images)[-1].mean((2, 3)))
        return encoded
