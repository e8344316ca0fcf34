"""COPA (Wu and Gong, ICCV 2021): one feature extractor for all, one classifier per source domain.

An interpretation, not a reproduction: there is no released code, and normalisation, weights and schedule are assumptions.
Each silo trains the extractor and its own domain's classifier, while the other domains' classifiers, frozen, judge the same
features. The server averages extractors and assembles classifiers. Predictions are averaged over all classifiers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import nn

from fl_algorithms.aggregation import normalised, weighted_sum
from fl_algorithms.contract import Broadcast, Layout, Server, Silo, Task, TensorShape, Update, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network
from fl_algorithms.samples import Batch

WEIGHT, BIAS, DOMAIN = "classifier.weight", "classifier.bias", "domain"  # uploaded instead of all domains' classifiers


@dataclass(frozen=True)
class COPAHyper(FedAvgHyper):
    optimizer: Annotated[Literal["adam", "sgd"], "local optimiser"] = "sgd"
    lr: Annotated[float, Gt(0), "learning rate of the first epoch"] = 0.01
    schedule: Annotated[Literal["cosine", "constant", "step"], "lr over the whole run, computed from the global round"] = "constant"
    weight_decay: Annotated[float, Ge(0), "L2 penalty inside the optimiser"] = 5e-4
    epochs: Annotated[int, Ge(0), "local epochs per round"] = 1
    lambda_frozen: Annotated[float, Ge(0), "weight of the loss under the other domains' frozen classifiers"] = 1.0
    bin_stages: Annotated[int, Ge(0), "batch-instance normalisation up to the network's first, second, ... inner stage; 0: none"] = 1


class COPA(FedAvg[COPAHyper]):
    """A shared extractor under an ensemble of one classifier per source domain."""

    Hyper: ClassVar[type] = COPAHyper
    paper: ClassVar[str] = "Wu and Gong, ICCV 2021, https://doi.org/10.1109/ICCV48922.2021.00642 (an interpretation: no code was released)"
    leaves_silo: ClassVar[str] = (
        "the trained model with its own domain's classifier only, the number of training images, the mean training loss; "
        "its domain's number; the server shows every domain's classifier to all silos, by definition of the method"
    )

    def __init__(self, hyper: COPAHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._own: nn.Linear | None = None
        self._foreign: tuple[torch.Tensor, torch.Tensor] | None = None

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        if self.task.domains < 2:
            raise Unusable(f"algorithm copa: needs at least 2 source domains, found {self.task.domains}: there is no other classifier")
        if self.hyper.bn_buffers == "local":
            raise Unusable("hyper.bn_buffers: copa averages the statistics; use average, pooled or frozen")
        with torch.device("meta"):
            gates = len(list(self.build().get_submodule("gates").parameters()))
        if self.hyper.bin_stages and not gates:
            raise Unusable(f"hyper.bin_stages: backbone {self.task.backbone} has no batch normalisation there; set it to 0")

    def build(self) -> Network:
        network = super().build()
        network.add_module("gates", gate_batch_norms(network, self.hyper.bin_stages))
        network.add_module("head", Ensemble(network.head, self.task.domains))
        return network

    @cached_property
    def upload(self) -> Layout:
        layout = dict(super().upload)
        weight, bias = layout.pop("head.weight"), layout.pop("head.bias")
        own = {WEIGHT: TensorShape(weight.dtype, weight.shape[1:]), BIAS: TensorShape(bias.dtype, bias.shape[1:])}
        return {**layout, **own, DOMAIN: TensorShape(torch.int64, ())}

    # ---- what a silo does

    def train(self, silo: Silo) -> Update:
        model = self.received_model(silo)
        loss = self.local_epochs(model, silo)
        assert self._own is not None
        clip_gates(model)
        own = {WEIGHT: self._own.weight.detach(), BIAS: self._own.bias.detach(), DOMAIN: torch.tensor(domain_of(silo))}
        state = {**model.state_dict(), **own}
        return Update({name: state[name] for name in self.upload}, {"loss": loss})

    def begin(self, model: Network, silo: Silo) -> None:
        """C_k to be trained; all C_j as received, to judge."""
        super().begin(model, silo)
        classifiers, own = model.get_submodule("head"), domain_of(silo)
        assert isinstance(classifiers, Ensemble)
        others = [domain for domain in range(self.task.domains) if domain != own]
        self._foreign = classifiers.weight[others], classifiers.bias[others]
        _, classes, width = classifiers.weight.shape
        self._own = nn.utils.skip_init(nn.Linear, width, classes, device=silo.device)
        with torch.no_grad():
            self._own.weight.copy_(classifiers.weight[own])
            self._own.bias.copy_(classifiers.bias[own])

    def trained(self, model: Network) -> Iterator[nn.Parameter]:
        yield from super().trained(model)
        if self._own is not None:
            yield from self._own.parameters()

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        """CE(C_k(F(x)), y) + lambda/(K-1) sum_j CE(C_j(F(x)), y)."""
        assert self._own is not None
        assert self._foreign is not None
        clip_gates(model)  # after the last step is before this one
        features, smoothing = model.features(batch.images), self.hyper.label_smoothing
        total = cross_entropy(self._own(features), batch.labels, smoothing)
        if self.hyper.lambda_frozen:
            total = total + self.hyper.lambda_frozen * mean_cross_entropy(features, *self._foreign, batch.labels, smoothing)
        return total

    # ---- what the server does

    def combine(self, server: Server, updates: Updates) -> Broadcast:
        """The average of the extractors under the assembled classifiers; one that no silo sent stays as it was."""
        broadcast = super().combine(server, updates)
        model = {name: tensor for name, tensor in broadcast.parts[MODEL].items() if name not in (WEIGHT, BIAS, DOMAIN)}
        domains = dict(zip(updates.names, (int(domain) for domain in updates.each(DOMAIN)), strict=True))
        for key, name in ((WEIGHT, "head.weight"), (BIAS, "head.bias")):
            model[name] = assemble(server.parts[MODEL][name], updates, key, domains, broadcast.weights)
        return replace(broadcast, parts={**broadcast.parts, MODEL: model})


def domain_of(silo: Silo) -> int:
    """The domain of most of the silo's images: all of them, unless the partition mixes domains."""
    return int(silo.train.domains.bincount().argmax())


def assemble(received: torch.Tensor, updates: Updates, key: str, domains: Mapping[str, int], weights: Mapping[str, float]) -> torch.Tensor:
    """All domains' classifiers [K,...]: each the mean of what the silos of that domain sent. A number that is no domain is not used."""
    result = received.clone()
    for domain in range(len(result)):
        silos = normalised({name: weights[name] for name in updates.names if domains[name] == domain})
        if silos:
            sent = (tensor for name, tensor in zip(updates.names, updates.each(key), strict=True) if name in silos)
            result[domain] = weighted_sum(sent, list(silos.values()))
    return result


class Ensemble(nn.Module):
    """All domains' classifiers, equal at first. Buffers: the optimiser that trains the extractor must not even decay them."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, first: nn.Linear, count: int) -> None:
        super().__init__()
        for name, tensor in (("weight", first.weight), ("bias", first.bias)):
            self.register_buffer(name, tensor.detach().expand(count, *tensor.shape).clone())

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """log p(y|x), which serves as logits."""
        return log_mean_probability(classifier_logits(features, self.weight, self.bias))


def classifier_logits(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Logits [B,K,C] of K classifiers from one product."""
    return F.linear(features, weight.flatten(0, 1), bias.flatten()).unflatten(1, bias.shape)


def log_mean_probability(logits: torch.Tensor) -> torch.Tensor:
    """log of p(y|x) = (1/K) sum_k softmax(C_k(F(x))), from logits [B,K,C]."""
    return logits.log_softmax(2).logsumexp(1) - math.log(logits.shape[1])


def mean_cross_entropy(
    features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Mean over the batch and over the given classifiers."""
    logits = classifier_logits(features, weight, bias)
    return cross_entropy(logits.flatten(0, 1), labels.repeat_interleave(logits.shape[1]), smoothing)


# ---- hybrid batch-instance normalisation


class BatchInstanceNorm(nn.BatchNorm2d):
    """y = (rho xhat_BN + (1 - rho) xhat_IN) gamma + beta, with a gate rho in [0,1] per channel."""

    def __init__(self, batch_norm: nn.BatchNorm2d, gate: nn.Parameter) -> None:
        super().__init__(batch_norm.num_features, batch_norm.eps, batch_norm.momentum)
        # Not registered here: weight files must have every tensor of the body, and know nothing of gates.
        self._gate = (gate,)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        own_mean = maps.mean((2, 3))  # [B,c]; in two steps, since torch.var_mean takes 10x as long on a CPU
        own_variance = (maps - own_mean[..., None, None]).square().mean((2, 3))
        if self.training:
            mean, variance = own_mean.mean(0), own_variance.mean(0) + own_mean.var(0, correction=0)
            self._track(mean.detach(), variance.detach(), maps.numel() // maps.shape[1])
        else:
            assert self.running_mean is not None
            assert self.running_var is not None
            mean, variance = self.running_mean, self.running_var
        # Both normalisations are linear in the maps, so one multiply-add does both.
        (gate,) = self._gate
        batch, instance = gate * (variance + self.eps).rsqrt(), (1 - gate) * (own_variance + self.eps).rsqrt()
        scale = self.weight * (batch + instance)
        shift = self.bias - self.weight * (batch * mean + instance * own_mean)
        return torch.addcmul(shift[..., None, None], maps, scale[..., None, None])

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, values: int) -> None:
        """Running statistics as BatchNorm keeps them: the variance unbiased."""
        if values == 1:
            raise ValueError("BatchInstanceNorm: expected more than 1 value per channel when training")
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * (values / (values - 1)), self.momentum)
        self.num_batches_tracked += 1


def gate_batch_norms(network: Network, stages: int) -> nn.ParameterList:
    """Replace the batch normalisations up to that inner stage; returns their gates, all 1: batch normalisation at first."""
    gates, reached, body = nn.ParameterList(), 0, network.body
    for name, block in list(body.named_children()):
        if reached == stages:
            break
        for path, module in list(block.named_modules(prefix=name)):
            if isinstance(module, nn.BatchNorm2d):
                gates.append(nn.Parameter(torch.ones(module.num_features)))
                parent, _, child = path.rpartition(".")
                body.get_submodule(parent).add_module(child, BatchInstanceNorm(module, gates[-1]))
        reached += name in network.taps
    return gates


@torch.no_grad()
def clip_gates(network: Network) -> None:
    for gate in network.get_submodule("gates").parameters():
        gate.clamp_(0, 1)
