"""MixStyle (Zhou et al. 2021, arXiv:2104.02008) inside FedAvg: while training, an image's feature maps take on a mixture of
their own channel statistics and those of another image of the batch.

Nothing is added to the model and nothing else travels. A silo mixes within its own batches; with one domain per silo that is
mixing within a domain, the weakness that CCST and FedCCRL address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le, MinLen

from fl_algorithms.augment import channel_statistics, sample_beta
from fl_algorithms.contract import Silo, Task
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.models import Network
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Batch

# The paper names the stages of a ResNet. Elsewhere: the last block with maps of 1/4, 1/8, 1/16 of the image; in AlexNet, whose last
# convolutions all have such maps, its first three; in the small nets, whose maps shrink less, the first blocks: one of two, three of four.
STAGES: dict[str, dict[str, str]] = {
    "small-cnn": {"layer1": "0", "layer2": "1", "layer3": "2"},
    "mnist-cnn": {"layer1": "0"},
    "femnist-cnn": {"layer1": "0"},
    "alexnet": {"layer1": "1", "layer2": "4", "layer3": "7"},
    "mobilenet-v2": {"layer1": "3", "layer2": "6", "layer3": "13"},
    "mobilenet-v3-large": {"layer1": "3", "layer2": "6", "layer3": "12"},
}


@dataclass(frozen=True)
class MixStyleHyper(FedAvgHyper):
    probability: Annotated[float, Ge(0), Le(1), "p: chance that a stage mixes a batch"] = 0.5
    alpha: Annotated[float, Gt(0), "an image keeps a share of its own style drawn from Beta(alpha, alpha)"] = 0.1
    eps: Annotated[float, Gt(0), "added to the variance of a channel"] = 1e-6
    layers: Annotated[tuple[str, ...], MinLen(1), "stages whose maps are mixed, as a ResNet names them; never the last one"] = (
        "layer1",
        "layer2",
        "layer3",
    )
    mix: Annotated[Literal["random", "crossdomain"], "the other image: any; of another domain, where a silo has several"] = "random"


class MixStyle(FedAvg[MixStyleHyper]):
    """FedAvg with channel statistics mixed between the images of a batch."""

    Hyper: ClassVar[type] = MixStyleHyper
    paper: ClassVar[str] = "Zhou et al., ICLR 2021, arXiv:2104.02008"

    def __init__(self, hyper: MixStyleHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._draws = torch.Generator()

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        with torch.device("meta"):
            self.build()

    def build(self) -> Network:
        network, named = super().build(), STAGES.get(self.task.backbone, {})
        # not the last stage: its statistics carry the label (the paper's ablation)
        children = [name for name, _ in network.body.named_children()][:-1]
        for layer in self.hyper.layers:
            if named.get(layer, layer) not in children:
                known = ", ".join(sorted(named) or children)
                raise Unusable(f"hyper.layers: expected stages of {self.task.backbone} ({known}), found {layer!r}; name others")
        return StyleMixingNetwork(network, frozenset(named.get(layer, layer) for layer in self.hyper.layers))

    def begin(self, model: Network, silo: Silo) -> None:
        super().begin(model, silo)
        self._draws = stream(silo.seed, "mixstyle", silo.name, silo.round)

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        """The statistics are mixed here and nowhere else: other passes through the network see it as it is."""
        assert isinstance(model, StyleMixingNetwork)
        model.mix = lambda maps: self.mix(maps, batch.domains)
        try:
            return super().loss(model, batch, silo)
        finally:
            model.mix = None

    def mix(self, maps: torch.Tensor, domains: torch.Tensor) -> torch.Tensor:
        """Section 2 of the paper, with probability p for the whole batch. All draws are made on the CPU: no device is waited for."""
        hyper = self.hyper
        if float(torch.rand((), generator=self._draws)) >= hyper.probability:
            return maps
        if hyper.mix == "crossdomain":
            partner = across_domains(domains.cpu(), self._draws)
        else:
            partner = torch.randperm(len(maps), generator=self._draws)
        own_share = sample_beta(hyper.alpha, (len(maps),), self._draws)
        return mix_statistics(maps, own_share.to(maps.device), partner.to(maps.device), hyper.eps)


class StyleMixingNetwork(Network):
    """The same network, with the same tensor names; in training mode the outputs of `stages` go through `mix` where it is set."""

    def __init__(self, network: Network, stages: frozenset[str]) -> None:
        super().__init__(network.body, network.neck, network.head, network.taps, network.published_names, network.replicate_grey)
        self.stages = stages
        self.mix: Callable[[torch.Tensor], torch.Tensor] | None = None

    def features(self, images: torch.Tensor) -> torch.Tensor:
        if self.mix is None or not self.training:
            return super().features(images)
        maps = self._shown(images)
        for name, block in self.body.named_children():
            maps = self._run(block, maps)
            if name in self.stages:
                maps = self.mix(maps)
        return self._run(self.neck, maps)


def mix_statistics(maps: torch.Tensor, own_share: torch.Tensor, partner: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """(x - mu)/sig * sig_mix + mu_mix per image and channel, as one multiply-add; the statistics carry no gradient.

    sig_mix = lam sig + (1 - lam) sig[partner], mu_mix alike. The variance is unbiased, as in the released code.
    """
    wide = maps.detach().to(torch.promote_types(maps.dtype, torch.float32))  # half precision does not hold a variance
    mean, std = channel_statistics(wide, eps, unbiased=maps[0, 0].numel() > 1)
    foreign = (1 - own_share.to(wide.dtype)).view(-1, 1, 1, 1)
    scale = torch.lerp(std, std[partner], foreign) / std
    shift = torch.lerp(mean, mean[partner], foreign) - mean * scale
    return torch.addcmul(shift.to(maps.dtype), maps, scale.to(maps.dtype))


def across_domains(domains: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A partner for each image, of another domain unless one domain has more than half of the batch.

    With two domains of equal size this is the released code's exchange of halves. A batch of one domain is mixed at random.
    """
    images, partners = (torch.randperm(len(domains), generator=generator) for _ in range(2))
    largest = int(domains.bincount().max())
    if largest == len(domains):
        return partners
    images, partners = (order[domains[order].argsort(stable=True)] for order in (images, partners))  # one domain after the other
    chosen = torch.empty_like(images)
    chosen[images] = partners.roll(-largest)  # as far on as the largest domain is long, there is another
    return chosen
