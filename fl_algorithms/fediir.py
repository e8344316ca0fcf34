"""FedIIR (Guo et al., ICML 2023): silos agree on the gradient of their loss with respect to the classifier.

A round has two exchanges: `gradient` (each silo shows the mean gradient of the classifier at the received model; the server
keeps a moving average) and `train`, where a batch's gradient is pulled towards that average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import nn

from fl_algorithms.aggregation import average, normalised
from fl_algorithms.contract import Broadcast, Exchange, Layout, Server, Silo, Task, Update, Updates, layout_of
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network
from fl_algorithms.samples import Batch

GRADIENT = "gradient"  # the broadcast part m_t


@dataclass(frozen=True)
class FedIIRHyper(FedAvgHyper):
    weighting: Annotated[Literal["samples", "uniform"], "aggregation weight of a silo: n_k/N or 1/K"] = "uniform"
    gamma: Annotated[float, Ge(0), "weight of the gradient penalty; 0 is FedAvg"] = 1e-3
    ema: Annotated[float, Ge(0), Lt(1), "share of the old mean gradient kept each round"] = 0.95
    ema_debias: Annotated[bool, "divide the mean gradient by 1 - ema^round: it starts at 0"] = False
    pooling: Annotated[
        Literal["images", "batches", "silos"],
        "what counts alike in the mean gradient: images; batches, also an incomplete one (released code); silos (FedCCRL's code)",
    ] = "images"
    classifier: Annotated[Literal["linear", "mlp"], "the network's own linear classifier, or the released V -> V/2 -> C one"] = "linear"


class FedIIR(FedAvg[FedIIRHyper]):
    """Implicit invariant relationships by aligning classifier gradients across silos."""

    Hyper: ClassVar[type] = FedIIRHyper
    paper: ClassVar[str] = "Guo et al., ICML 2023, https://github.com/YamingGuo98/FedIIR"
    leaves_silo: ClassVar[str] = (
        FedAvg.leaves_silo + "; per round, the mean gradient of the classifier over its training images (as many floats as the classifier)"
    )

    def __init__(self, hyper: FedIIRHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._mean: list[torch.Tensor] = []

    def build(self) -> Network:
        network = super().build()
        if self.hyper.classifier == "mlp":
            network.add_module("head", two_layers(network.head.in_features, network.head.out_features))
        return network

    @cached_property
    def classifier_layout(self) -> Layout:
        """phi: names as in the model, order as in `classifier_gradient`."""
        with torch.device("meta"):
            return layout_of({f"head.{name}": tensor for name, tensor in self.build().head.named_parameters()})

    def exchanges(self, round: int) -> Sequence[Exchange]:
        steps = list(super().exchanges(round))
        if round > 0 and self.hyper.gamma:
            steps.insert(0, Exchange("gradient", self.measure_gradient, self.pool_gradients, self.classifier_layout))
        return steps

    # ---- exchange `gradient`

    def measure_gradient(self, silo: Silo) -> Update:
        """g_k at w_t, in evaluation mode: measuring must not move BatchNorm statistics."""
        # the memory order is set, because that of a network used before depends on by whom
        model = self.load(silo.received[MODEL], silo.device).to(memory_format=torch.channels_last).eval()
        if self.hyper.bn_buffers == "local":
            self._restore_statistics(model, silo.private)
        sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in model.head.parameters()]
        total, done = 0, 0
        with torch.no_grad():
            for images, labels, _ in silo.train.batches(self.hyper.batch_size):
                _, gradient = classifier_gradient(model.head, model.features(images), labels, self.hyper.label_smoothing)
                weight = len(labels) if self.hyper.pooling == "images" else 1
                for running, part in zip(sums, gradient, strict=True):
                    running.add_(part, alpha=weight)
                total, done = total + weight, done + len(labels)
                silo.report("gradient", done, len(silo.train))
        shapes = self.classifier_layout.items()
        return Update({name: (sums[i] / total).to(shape.dtype) for i, (name, shape) in enumerate(shapes)})

    def pool_gradients(self, server: Server, updates: Updates) -> Broadcast:
        """m_t = ema m_{t-1} + (1 - ema) gbar, m_0 = 0; m_{t-1} is the part that is still in force."""
        fresh = average(updates, self.pool_weights(server, updates.names))
        before = server.parts.get(GRADIENT)
        mean = {name: moving_average(before[name] if before is not None else None, g, self.hyper.ema) for name, g in fresh.items()}
        return Broadcast({GRADIENT: mean}, participants=list(updates.names))

    def pool_weights(self, server: Server, names: Sequence[str]) -> dict[str, float]:
        """How much each silo's g_k counts. Batches are counted from the roster: a silo need not be believed."""
        size = {"images": 1, "batches": self.hyper.batch_size, "silos": math.inf}[self.hyper.pooling]
        return normalised({name: float(max(1, math.ceil(server.roster[name] / size))) for name in names})

    # ---- exchange `train`

    def begin(self, model: Network, silo: Silo) -> None:
        super().begin(model, silo)
        if self.hyper.gamma:
            factor = 1 / (1 - self.hyper.ema**silo.round) if self.hyper.ema_debias else 1.0
            self._mean = [silo.received[GRADIENT][name].to(silo.device) * factor for name in self.classifier_layout]

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        """CE + gamma ||g(B) - m_t||^2."""
        hyper = self.hyper
        if not hyper.gamma:
            return super().loss(model, batch, silo)
        logits, gradient = classifier_gradient(model.head, model.features(batch.images), batch.labels, hyper.label_smoothing)
        return cross_entropy(logits, batch.labels, hyper.label_smoothing) + hyper.gamma * squared_distance(gradient, self._mean)


def two_layers(inputs: int, classes: int) -> nn.Sequential:
    """The released code's classifier for photographs."""
    first, second = nn.Linear(inputs, inputs // 2), nn.Linear(inputs // 2, classes)
    for layer in (first, second):
        nn.init.kaiming_normal_(layer.weight)
    return nn.Sequential(first, nn.ReLU(), second)


def classifier_gradient(
    head: nn.Module, features: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits, and the gradient of their mean cross-entropy for each parameter of a classifier of linear layers with ReLU between.

    In closed form, so that differentiating it again is an ordinary backward pass.
    """
    layers = [module for module in head.modules() if isinstance(module, nn.Linear)]
    inputs = [features]
    for layer in layers[:-1]:
        inputs.append(F.relu(layer(inputs[-1])))
    logits: torch.Tensor = layers[-1](inputs[-1])
    targets = F.one_hot(labels, logits.shape[1]).to(logits) * (1 - smoothing) + smoothing / logits.shape[1]
    delta = (logits.softmax(1) - targets) / len(labels)
    gradient: list[torch.Tensor] = []
    for layer, seen in zip(reversed(layers), reversed(inputs), strict=True):
        gradient = [delta.T @ seen, delta.sum(0), *gradient]
        if layer is not layers[0]:
            delta = (delta @ layer.weight) * (seen > 0)
    return logits, gradient


def squared_distance(gradient: Sequence[torch.Tensor], mean: Sequence[torch.Tensor]) -> torch.Tensor:
    """Summed over all parameters of the classifier."""
    return torch.stack([(g - m).square().sum() for g, m in zip(gradient, mean, strict=True)]).sum()


def moving_average(before: torch.Tensor | None, fresh: torch.Tensor, ema: float) -> torch.Tensor:
    """ema m + (1 - ema) g, from m = 0."""
    weighted = (1 - ema) * fresh.to(torch.float64)
    return (weighted if before is None else ema * before.to(torch.float64) + weighted).to(fresh.dtype)
