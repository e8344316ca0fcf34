"""CSAC (Yuan et al. 2022, arXiv:2110.06736): collaborative semantic aggregation and calibration.

Round 1 is `acquire`: each silo trains its own model and keeps a frozen copy that never leaves it. The server fuses the
uploaded models tensor by tensor. Every later round is `calibrate`: the fused model is trained while its layers are
aligned with those of the silo's frozen model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import nn

from fl_algorithms.aggregation import weighted_sum
from fl_algorithms.contract import Broadcast, Exchange, Server, Silo, Task, Update, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.folding import folded
from fl_algorithms.losses import cross_entropy, layer_attention, multi_kernel_mmd
from fl_algorithms.models import Network
from fl_algorithms.randomness import stream_seed
from fl_algorithms.samples import Batch
from fl_algorithms.training import fit, make_optimizer

FROZEN, PROJECTIONS = "frozen.", "projections."  # names in the silo's private state


@dataclass(frozen=True)
class CSACHyper(FedAvgHyper):
    optimizer: Annotated[Literal["adam", "sgd"], "local optimiser"] = "sgd"
    lr: Annotated[float, Gt(0), "learning rate (paper: .01 for ResNet-18 and the MNIST CNN, .001 for AlexNet)"] = 0.01
    schedule: Annotated[Literal["cosine", "constant", "step"], "lr over the whole run, computed from the global round"] = "constant"
    momentum: Annotated[float, Ge(0), Lt(1), "SGD momentum"] = 0.5
    weight_decay: Annotated[float, Ge(0), "L2 penalty inside the optimiser"] = 0.0
    batch_size: Annotated[int, Ge(2), "images per step; MMD needs two"] = 64
    epochs: Annotated[int, Ge(1), "calibration epochs per round"] = 10
    acquisition_epochs: Annotated[int, Ge(1), "epochs of the first round"] = 30
    acquisition_steps: Annotated[int | None, Ge(1), "steps that count as an epoch of the first round; null: one pass"] = None
    acquisition_smoothing: Annotated[float, Ge(0), Lt(1), "label smoothing of the first round, as eps/C"] = 0.1
    lambda_align: Annotated[float, Ge(0), "lambda: weight of the alignment loss"] = 0.6
    align: Annotated[
        Literal["layers", "same-layer", "logits", "none"],
        "what is aligned: every pair of layers, each layer with itself, the release's logits, nothing",
    ] = "layers"
    attention: Annotated[
        Literal["both", "position", "channel", "none"], "layer pairs weighted by both attentions (eqs. 7-9), by one of them, or all alike"
    ] = "both"
    discrepancy: Annotated[Literal["mmd", "mse"], "D of eq. 6 between two layers"] = "mmd"
    calibration_ce: Annotated[bool, "keep the cross-entropy in calibration (ablation)"] = True
    fusion: Annotated[Literal["divergence", "average", "similarity"], "weights of the fusion, eq. 4"] = "divergence"
    metric: Annotated[Literal["l2", "l1", "cosine"], "distance of a silo's tensor from the mean, eq. 3"] = "l2"
    granularity: Annotated[Literal["tensor", "module"], "one fusion weight per tensor, or per module"] = "tensor"
    proj_channels: Annotated[int, Ge(1), "channels of the common projection"] = 32
    proj_trainable: Annotated[bool, "train the projections"] = True
    proj_persist: Annotated[bool, "keep the projections on the silo between rounds"] = True


class CSAC(FedAvg[CSACHyper]):
    """Layer-wise fusion, then calibration against each silo's frozen model."""

    Hyper: ClassVar[type] = CSACHyper
    paper: ClassVar[str] = "Yuan et al., IEEE TKDE 2023, arXiv:2110.06736"
    leaves_silo: ClassVar[str] = FedAvg.leaves_silo + "; the frozen model and the projections stay"

    def __init__(self, hyper: CSACHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._frozen: Network | None = None
        self._projections: nn.ModuleDict | None = None

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        if len(silos) < 2:
            raise Unusable("algorithm csac: needs at least 2 silos, found 1: there is nothing to fuse")
        if self.hyper.participants is not None:
            raise Unusable("hyper.participants: csac trains every silo in every round; leave it out")
        if self.hyper.bn_buffers not in ("average", "frozen"):
            raise Unusable("hyper.bn_buffers: csac fuses every tensor, statistics included; use average or frozen")
        if not self.hyper.calibration_ce and (self.hyper.align == "none" or self.hyper.lambda_align == 0):
            raise Unusable("hyper.calibration_ce: without it and without alignment csac has nothing to learn from; keep one of them")
        with torch.device("meta"):
            stages = self.build().taps
        if not stages and self.hyper.align in ("layers", "same-layer"):
            raise Unusable(
                f"backbone {self.task.backbone}: csac aligns named layers, and it names none; use another, or hyper.align=logits"
            )

    def exchanges(self, round: int) -> Sequence[Exchange]:
        if round == 0:
            return super().exchanges(round)
        if round == 1:
            return [Exchange("acquire", self.acquire, self.fuse, self.upload)]
        return [Exchange("calibrate", self.train, self.fuse, self.upload)]

    # ---- round 1: acquisition

    def acquire(self, silo: Silo) -> Update:
        """G^h: the silo's own model, trained with smoothed cross-entropy from the initial weights. A copy stays for ever."""
        hyper = self.hyper
        model = self.received_model(silo)
        optimizer = make_optimizer(hyper.optimizer, model.parameters(), hyper.momentum, hyper.weight_decay)
        loss = fit(
            model, self.augmented(silo), optimizer, [hyper.lr] * hyper.acquisition_epochs, hyper.batch_size,
            lambda batch: cross_entropy(model(batch.images), batch.labels, hyper.acquisition_smoothing),
            steps_per_epoch=hyper.acquisition_steps, stage="acquire",
        )  # fmt: skip
        state = model.state_dict()
        silo.private.update({FROZEN + name: tensor.clone() for name, tensor in state.items()})
        return Update(dict(state), {"loss": loss})

    # ---- later rounds: calibration

    def _thaw(self, model: Network, silo: Silo) -> Network:
        """L^h, as round 1 left it."""
        frozen = {name.removeprefix(FROZEN): t for name, t in silo.private.items() if name.startswith(FROZEN)}
        if not frozen:
            raise Unusable(f"silo {silo.name}: its frozen model of round 1 is not on its volume; restore the volume or start a new run")
        network = copy.deepcopy(model)  # a new one would first draw weights that nobody uses
        network.load_state_dict(frozen)
        thawed = folded(network).to(memory_format=torch.channels_last).requires_grad_(False)
        assert isinstance(thawed, Network)
        self._frozen = thawed
        return thawed

    def begin(self, model: Network, silo: Silo) -> None:
        frozen = self._thaw(model, silo)
        self._projections = self._build_projections(frozen, silo) if self.hyper.align in ("layers", "same-layer") else None

    def trained(self, model: Network) -> Iterator[nn.Parameter]:
        yield from super().trained(model)
        if self._projections is not None:
            yield from self._projections.parameters()

    def local_epochs(self, model: Network, silo: Silo) -> float:
        loss = super().local_epochs(model, silo)
        if self._projections is not None and self.hyper.proj_persist:
            silo.private.update({PROJECTIONS + name: t.clone() for name, t in self._projections.state_dict().items()})
        return loss

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        """L_CB = CE + lambda L_AL, eq. 10."""
        hyper, (images, labels, _) = self.hyper, batch
        if hyper.align == "none" or len(labels) < 2:
            return hyper.calibration_ce * cross_entropy(model(images), labels)
        stages, logits = model.forward_stages(images)
        assert self._frozen is not None
        with torch.no_grad():
            frozen_stages, frozen_logits = self._frozen.forward_stages(images)
        alignment = multi_kernel_mmd(frozen_logits, logits) if hyper.align == "logits" else self._align(stages, frozen_stages)
        return hyper.calibration_ce * cross_entropy(logits, labels) + hyper.lambda_align * alignment

    def _align(self, fused: Sequence[torch.Tensor], local: Sequence[torch.Tensor]) -> torch.Tensor:
        """L_AL, eq. 6: every layer of the fused model against every layer of the frozen one, weighted by attention."""
        assert self._projections is not None
        a = [self._projections[f"fused{i}"](x) for i, x in enumerate(fused)]
        b = [self._projections[f"local{i}"](x) for i, x in enumerate(local)]
        discrepancy = multi_kernel_mmd if self.hyper.discrepancy == "mmd" else F.mse_loss
        if self.hyper.align == "same-layer":
            return torch.stack([discrepancy(x.flatten(1), y.flatten(1)) for x, y in zip(a, b, strict=True)]).sum()
        alpha = torch.full((len(a), len(b)), 1.0 / len(b), device=a[0].device)
        if self.hyper.attention != "none":
            alpha = layer_attention(a, b, self.hyper.attention)
        pairs = [alpha[i, j] * discrepancy(x.flatten(1), y.flatten(1)) for i, x in enumerate(a) for j, y in enumerate(b)]
        return torch.stack(pairs).sum()

    def _build_projections(self, frozen: Network, silo: Silo) -> nn.ModuleDict:
        """One convolution per layer and side to the size of the last adopted layer."""
        with torch.no_grad():
            stages, _ = frozen.forward_stages(silo.train.images(torch.arange(1)))
        size = stages[-1].shape[-1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(silo.seed, "projections", silo.name, 0 if self.hyper.proj_persist else silo.round))
            modules = {
                f"{side}{i}": projection(stage, self.hyper.proj_channels, size)
                for side in ("fused", "local")
                for i, stage in enumerate(stages)
            }
        projections = nn.ModuleDict(modules).to(silo.device).requires_grad_(self.hyper.proj_trainable)
        stored = {n.removeprefix(PROJECTIONS): t for n, t in silo.private.items() if n.startswith(PROJECTIONS)}
        if stored and self.hyper.proj_persist:
            projections.load_state_dict(stored)
        return projections

    # ---- the server

    def fuse(self, server: Server, updates: Updates) -> Broadcast:
        weights = layer_weights(updates, self.hyper.fusion, self.hyper.metric, self.hyper.granularity)
        fused = {key: weighted_sum(updates.each(key), weights[key]) for key in updates.keys()}
        mean = [sum(column) / len(weights) for column in zip(*weights.values(), strict=True)]
        by_silo = dict(zip(updates.names, mean, strict=True))
        return Broadcast({MODEL: fused}, participants=self.sample(server), weights=by_silo, layer_weights=weights)


def projection(stage: torch.Tensor, channels: int, size: int) -> nn.Conv2d:
    """A convolution that maps this stage to channels x size x size: stride as large as fits, kernel what is left over."""
    width = stage.shape[-1]
    stride = max(1, width // size)
    return nn.Conv2d(stage.shape[1], channels, width - (size - 1) * stride, stride)


def distances(updates: Updates, key: str, metric: str) -> list[float]:
    """d^h of eq. 3: how far each silo's tensor is from the plain mean."""
    count = len(updates.names)
    mean = weighted_sum((t.to(torch.float64) for t in updates.each(key)), [1 / count] * count).flatten()
    result = []
    for tensor in updates.each(key):
        flat = tensor.to(torch.float64).flatten()
        if not tensor.is_floating_point():
            result.append(0.0)  # a counter says nothing about divergence
        elif metric == "cosine":
            result.append(1.0 - float(F.cosine_similarity(flat, mean, dim=0)))
        else:
            result.append(float(torch.linalg.vector_norm(flat - mean, ord=1 if metric == "l1" else 2)))
    return result


def fusion_weights(distance: Sequence[float], strategy: str) -> list[float]:
    """a^h of eq. 4. Tensors that agree exactly (sum of distances < 1e-12) are averaged."""
    count = len(distance)
    if strategy == "average" or sum(distance) < 1e-12:
        return [1 / count] * count
    if strategy == "similarity":
        if min(distance) < 1e-12:
            exact = [d < 1e-12 for d in distance]
            return [e / sum(exact) for e in exact]
        distance = [1 / d for d in distance]
    total = sum(distance)
    return [d / total for d in distance]


def layer_weights(
    updates: Updates, strategy: str = "divergence", metric: str = "l2", granularity: str = "tensor"
) -> dict[str, list[float]]:
    """Weight of each silo for each tensor; with granularity `module`, the tensors of a module share the sum of their distances."""
    by_key = {key: distances(updates, key, metric) for key in updates.keys()}
    if granularity == "module":
        modules: dict[str, list[float]] = {}
        for key, distance in by_key.items():
            module = key.rpartition(".")[0]
            modules[module] = [a + b for a, b in zip(modules.get(module, [0.0] * len(distance)), distance, strict=True)]
        by_key = {key: modules[key.rpartition(".")[0]] for key in by_key}
    return {key: fusion_weights(distance, strategy) for key, distance in by_key.items()}
