"""torchvision's networks with a new classifier."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import alexnet, mobilenet_v3_large, resnet18


def mobilenet(classes: int) -> nn.Module:
    network: nn.Module = mobilenet_v3_large(weights=None, num_classes=classes)
    return network


class Featured(nn.Module):
    """A network of two halves."""

    width: int
    classifier: nn.Module

    def features(self, images: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Split(Featured):
    """ResNet-18 as features and classifier, its stages to be had."""

    def __init__(self, outputs: int, classes: int, hidden: bool = False) -> None:
        super().__init__()
        net = resnet18(weights=None)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1)
        self.stages = nn.ModuleList([net.layer2, net.layer3, net.layer4])
        self.encoder = nn.Linear(512, outputs) if outputs != 512 else nn.Identity()
        self.width = 512
        self.classifier = _hidden(512, classes) if hidden else nn.Linear(512, classes)

    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        found = [self.stem(images)]
        for stage in self.stages:
            found.append(stage(found[-1]))
        return found[1:]

    def features(self, images: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.encoder(self.maps(images)[-1].mean((2, 3)))
        return encoded


class Wide(Featured):
    """AlexNet up to its last layer, and a classifier with a hidden one."""

    width = 4096

    def __init__(self, classes: int) -> None:
        super().__init__()
        net = alexnet(weights=None)
        self.layers = nn.Sequential(net.features, net.avgpool, nn.Flatten(), *net.classifier[:-1])
        self.classifier = _hidden(self.width, classes)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(images)
        return found


class Thin(Featured):
    """McMahan's network for digits, its last layer as wide as asked for."""

    width = 512

    def __init__(self, outputs: int, classes: int) -> None:
        super().__init__()
        convolutions = [
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        self.layers = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 49, 512), nn.ReLU(), nn.Linear(512, outputs))
        self.classifier = nn.Linear(512, classes)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(images)
        return found


def _hidden(width: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
