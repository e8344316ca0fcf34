"""FedDANN (Savelli et al. 2023): domain-adversarial training (DANN, Ganin et al. 2016) inside FedAvg.

A domain classifier G_d is exchanged and averaged with the network. A gradient reversal layer between the two makes G_d
learn to name the domain while the features unlearn it. Where every silo has one domain, the domain label is constant
within a silo: the signal across domains exists only through averaging. `domain_accuracy` tells what came of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import nn

from fl_algorithms.contract import Silo, Task, Update
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network
from fl_algorithms.samples import Batch, Samples
from fl_algorithms.training import evaluating


@dataclass(frozen=True)
class FedDANNHyper(FedAvgHyper):
    """Defaults: the paper's, for FEMNIST and a network trained from scratch."""

    optimizer: Annotated[Literal["adam", "sgd"], "local optimiser"] = "sgd"
    lr: Annotated[float, Gt(0), "learning rate of the first epoch"] = 0.1
    schedule: Annotated[Literal["cosine", "constant", "step"], "lr over the whole run, computed from the global round"] = "constant"
    batch_size: Annotated[int, Ge(1), "images per step"] = 64
    epochs: Annotated[int, Ge(0), "local epochs per round"] = 1
    lambda_domain: Annotated[float, Ge(0), "lambda: weight of the domain loss; 0 leaves the classifier to FedAvg"] = 0.01
    lambda_place: Annotated[
        Literal["loss", "grl"], "lambda scales the domain loss, so G_d learns slowly too; or only the reversed gradient (Ganin)"
    ] = "loss"
    ramp: Annotated[bool, "multiply lambda by 2/(1+exp(-10 p))-1, where p goes from 0 to 1 over the run"] = False
    domain_hidden: Annotated[int | None, Ge(1), "hidden units of the domain classifier; null: half the representation"] = None
    domain_outputs: Annotated[int | None, Ge(2), "outputs of the domain classifier; null: one per source domain"] = None


class FedDANN(FedAvg[FedDANNHyper]):
    """FedAvg whose features are trained to hide the domain from an averaged domain classifier."""

    Hyper: ClassVar[type] = FedDANNHyper
    paper: ClassVar[str] = "Savelli, Spaccavento, Udrea 2023; DANN: Ganin et al., JMLR 2016, arXiv:1505.07818"
    leaves_silo: ClassVar[str] = (
        FedAvg.leaves_silo + "; the trained domain classifier; the share of validation images whose domain the received model knew"
    )

    def __init__(self, hyper: FedDANNHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._knew: float | None = None

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        domains, outputs = self.task.domains, self.hyper.domain_outputs
        if domains < 2:
            raise Unusable(f"algorithm feddann: needs at least 2 source domains, found {domains}: there is no domain to hide")
        if outputs is not None and outputs < domains:
            raise Unusable(f"hyper.domain_outputs: {outputs}, expected at least the number of source domains ({domains})")

    def build(self) -> Network:
        network = super().build()
        width = network.head.in_features
        hidden = self.hyper.domain_hidden or max(1, width // 2)
        outputs = self.hyper.domain_outputs or self.task.domains
        network.add_module("domain_head", nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs)))
        return network

    # ---- what a silo does

    def train(self, silo: Silo) -> Update:
        update = super().train(silo)
        known = {} if self._knew is None else {"domain_accuracy": self._knew}
        return Update(update.tensors, {**update.metrics, **known})

    def begin(self, model: Network, silo: Silo) -> None:
        super().begin(model, silo)
        # before training: afterwards it would be the local model's, which always answers the silo's own domain
        self._knew = domain_accuracy(model, silo.validation) if silo.validation is not None else None

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        features = model.features(batch.images)
        classification = cross_entropy(model.head(features), batch.labels, self.hyper.label_smoothing)
        weight = self.hyper.lambda_domain * (ramp((silo.round - 1) / silo.rounds) if self.hyper.ramp else 1.0)
        return classification + domain_loss(features, model.get_submodule("domain_head"), batch.domains, weight, self.hyper.lambda_place)


def domain_loss(features: torch.Tensor, head: nn.Module, domains: torch.Tensor, weight: float, place: str) -> torch.Tensor:
    """lambda L_d behind the reversal: min over G_f, G_y, max over G_d of L_y - lambda L_d (eq. 10 with its sign put right)."""
    if place == "grl":
        return cross_entropy(head(reverse_gradient(features, weight)), domains)
    return weight * cross_entropy(head(reverse_gradient(features)), domains)


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * -ctx.scale, None


def reverse_gradient(features: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """The same values; gradients that come back are multiplied by -scale."""
    reversed_features: torch.Tensor = _Reversal.apply(features, scale)
    return reversed_features


def ramp(progress: float) -> float:
    """lambda_p = 2/(1+exp(-10 p)) - 1: from 0 to nearly 1."""
    return 2.0 / (1.0 + math.exp(-10.0 * progress)) - 1.0


def domain_accuracy(model: Network, samples: Samples) -> float:
    """Share of the images whose domain the domain classifier names."""
    head = model.get_submodule("domain_head")
    correct = torch.zeros((), dtype=torch.int64, device=samples.device)
    with evaluating(model):
        for batch in samples.batches(64):
            correct += (head(model.features(batch.images)).argmax(1) == batch.domains).sum()
    return int(correct) / len(samples)
