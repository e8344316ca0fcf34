"""The one shape of all networks: `body` (maps) -> `neck` (a representation [B,V]) -> `head` (a linear classifier)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_algorithms.device import choice

BOTTLENECK = "bottleneck"  # the name of the layer in the neck that no published weight file has


class Network(nn.Module):
    """A classifier whose representation and inner stages can be had without hooks. An algorithm may attach modules to it.

    `taps` names the children of `body` whose outputs are the stages; `published_names` maps prefixes of tensor names in
    torchvision's weight files to ours. With `replicate_grey` one-channel images are shown as three equal channels.
    """

    def __init__(
        self,
        body: nn.Sequential,
        neck: nn.Module,
        head: nn.Linear,
        taps: tuple[str, ...],
        published_names: dict[str, str] | None = None,
        replicate_grey: bool = False,
    ) -> None:
        super().__init__()
        self.body, self.neck, self.head = body, neck, head
        self.taps = taps
        self.published_names = published_names or {}
        self.replicate_grey = replicate_grey

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B,classes]."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """The representation [B,V] that the head classifies; V is `head.in_features`."""
        return self._run(self.neck, self._run(self.body, self._shown(images)))

    def forward_stages(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """The maps of the inner stages, shallow to deep, and the logits, from one pass."""
        maps = []
        current = self._shown(images)
        for name, block in self.body.named_children():
            current = self._run(block, current)
            if name in self.taps:
                maps.append(current)
        return maps, self.head(self._run(self.neck, current))

    def _shown(self, images: Tensor) -> Tensor:
        return images.expand(-1, 3, -1, -1) if self.replicate_grey else images

    @staticmethod
    def _run(part: nn.Module, inputs: Tensor) -> Tensor:
        """The part's output, computed in half precision where the device is good at it; head and losses never are."""
        half = choice(inputs.device).amp
        if half is None:
            output: Tensor = part(inputs)
            return output
        with torch.autocast(inputs.device.type, half):
            return part(inputs).float()


def add_bottleneck(network: Network, width: int) -> None:
    """Linear-BatchNorm-ReLU of that width in front of a new classifier, as in CSAC's released ResNet-18."""
    assert isinstance(network.neck, nn.Sequential)
    layers = nn.Sequential(nn.Linear(network.head.in_features, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
    network.neck.add_module(BOTTLENECK, layers)
    network.head = nn.Linear(width, network.head.out_features)
