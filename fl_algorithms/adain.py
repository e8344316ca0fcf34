"""Style transfer by channel statistics (AdaIN, Huang and Belongie 2017, arXiv:1703.06868), on maps of a fixed encoder or on pixels.

Nothing here carries a gradient or is ever trained. Images are pixels in 0..1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fl_algorithms.augment import channel_statistics
from fl_algorithms.errors import Unusable
from fl_algorithms.models import file_digest, read_tensors
from fl_algorithms.models.winograd import multiply_less

EPS = 1e-5
# The published networks, layer by layer: c convolution, p reflection padding, r ReLU, m max-pooling, u upsampling. A layer's
# position is its name in the published files; widths are those of the file.
ENCODER = "c" + 2 * "pcr" + "m" + 2 * "pcr" + "m" + 4 * "pcr" + "m" + "pcr"  # VGG-19 up to relu4_1
DECODER = "pcr" + "u" + 4 * "pcr" + "u" + 2 * "pcr" + "u" + "pcr" + "pc"
COLOURS = 3


@torch.no_grad()
def adain(maps: Tensor, mean: Tensor, std: Tensor, unbiased: bool = False) -> Tensor:
    """sig (f - mean(f)) / std(f) + mu, per channel: maps [B,C,H,W] with the style `mean`, `std` [B,C]."""
    own_mean, own_std = channel_statistics(maps, EPS, unbiased)
    scale = std[..., None, None] / own_std
    return torch.addcmul(mean[..., None, None] - own_mean * scale, maps, scale)


@torch.no_grad()
def overall_style(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation [C] over all positions of all maps, not the mean of each image's; summed in float64."""
    count, first, second = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for maps in batches:
        wide = maps.to(torch.float64)
        first, second = first + wide.sum((0, 2, 3)).cpu(), second + wide.square().sum((0, 2, 3)).cpu()
        count += maps.shape[0] * maps.shape[2] * maps.shape[3]
    mean = first / count
    return mean, ((second / count - mean.square()).clamp_min(0) + EPS).sqrt()


def single_styles(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation [B,C] of each image's maps."""
    mean, std = channel_statistics(maps, EPS)
    return mean.flatten(1), std.flatten(1)


@dataclass(frozen=True)
class StylePair:
    """An encoder, the decoder that inverts it, and the SHA-256 of their two files (32 bytes)."""

    encoder: nn.Module
    decoder: nn.Module
    digest: Tensor
    channels: int  # of the encoder's maps

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        maps: Tensor = self.encoder(images)
        return maps

    @torch.no_grad()
    def restyle(self, images: Tensor, maps: Tensor, mean: Tensor, std: Tensor, unbiased: bool = False) -> Tensor:
        """The images, whose maps were computed before, in another style. The decoder's grid may stick out by a few pixels."""
        height, width = images.shape[-2:]
        styled: Tensor = self.decoder(adain(maps, mean, std, unbiased))[..., :height, :width]
        if images.shape[1] == 1:
            styled = styled.mean(1, keepdim=True)
        return styled.clamp(0, 1)


def pixel_pair(channels: int) -> StylePair:
    """Without weight files the style is that of the pixels (FedCCRL's CCDT with nothing of the own style left)."""
    return StylePair(nn.Identity(), nn.Identity(), torch.zeros(32, dtype=torch.uint8), channels)


class _Grey(nn.Module):
    """The encoder takes colours; one channel is shown as three equal ones."""

    def forward(self, images: Tensor) -> Tensor:
        return images.expand(-1, COLOURS, -1, -1)


def load_pair(encoder: str | Path, decoder: str | Path, device: torch.device) -> StylePair:
    """The pair of AdaIN's release (`vgg_normalised.pth`, `decoder.pth`) or any other of the same layers, whatever its widths."""
    encode, channels = _network(Path(encoder), ENCODER, COLOURS)
    decode, colours = _network(Path(decoder), DECODER, channels)
    if colours != COLOURS:
        raise Unusable(f"weights {decoder}: expected a decoder that ends in {COLOURS} channels, found {colours}; choose the encoder's own")
    both = hashlib.sha256((file_digest(Path(encoder)) + file_digest(Path(decoder))).encode()).digest()
    digest = torch.frombuffer(bytearray(both), dtype=torch.uint8)
    return StylePair(nn.Sequential(_Grey(), encode).to(device), decode.to(device), digest, channels)


def _network(path: Path, plan: str, channels: int) -> tuple[nn.Sequential, int]:
    """The layers of `plan` with the file's convolutions, and the channels they end in. Tensors of later layers are not used."""
    tensors = read_tensors(path)
    layers: list[nn.Module] = []
    for position, kind in enumerate(plan):
        if kind == "c":
            layer = _convolution(path, position, tensors, channels)
            channels = layer.out_channels
            layers.append(layer)
        else:
            layers.append(_plain(kind))
    network = nn.Sequential(*layers)
    multiply_less(network)
    return network.eval().requires_grad_(False).to(memory_format=torch.channels_last), channels


def _plain(kind: str) -> nn.Module:
    if kind == "p":
        return nn.ReflectionPad2d(1)
    if kind == "r":
        return nn.ReLU(inplace=True)
    return nn.MaxPool2d(2, ceil_mode=True) if kind == "m" else nn.Upsample(scale_factor=2, mode="nearest")


def _convolution(path: Path, position: int, tensors: Mapping[str, Tensor], channels: int) -> nn.Conv2d:
    names = [f"{position}.weight", f"{position}.bias"]
    for name in names:
        if name not in tensors:
            raise Unusable(f"weights {path}: tensor {name!r}: expected in a file of AdaIN's layers, found none; choose another file")
    weight, bias = (tensors[name] for name in names)
    if weight.ndim != 4 or weight.shape[1] != channels or weight.shape[2] != weight.shape[3] or bias.shape != weight.shape[:1]:
        found = f"{list(weight.shape)} with bias {list(bias.shape)}"
        raise Unusable(f"weights {path}: tensor {names[0]!r}: expected [n, {channels}, k, k], found {found}; choose a matching pair")
    # skip_init: random weights that are replaced at once would draw from dropout's stream
    layer: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, channels, len(weight), weight.shape[2])
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer
