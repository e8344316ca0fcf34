"""FedAvg (McMahan et al. 2017, arXiv:1602.05629): every silo trains the global model on its own images, the server averages.

The other algorithms override parts of this class. Equation numbers: arXiv 2410.11267 (FedCCRL) eq. 2 for the average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import nn

from fl_algorithms.aggregation import average, normalised, pooled_variance
from fl_algorithms.contract import Broadcast, Exchange, Layout, Server, Silo, Task, Tensors, Update, Updates, layout_of
from fl_algorithms.errors import Unusable
from fl_algorithms.folding import folded
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network, add_bottleneck, build_model, load_weights
from fl_algorithms.randomness import stream, stream_seed
from fl_algorithms.recipes import RECIPES, RecipeName
from fl_algorithms.samples import Batch
from fl_algorithms.training import Draw, fit, learning_rate, make_optimizer, optimizer_slots, restore_slots, shuffled

if TYPE_CHECKING:
    from typing_extensions import Self

MODEL = "model"  # the part every algorithm broadcasts
RUNNING_MEAN, RUNNING_VAR = "running_mean", "running_var"


@dataclass(frozen=True)
class FedAvgHyper:
    """Defaults: the FedAvg baseline of the FedCCRL paper."""

    optimizer: Annotated[Literal["adam", "sgd"], "local optimiser"] = "adam"
    lr: Annotated[float, Gt(0), "learning rate of the first epoch"] = 1e-3
    schedule: Annotated[Literal["cosine", "constant", "step"], "lr over the whole run, computed from the global round"] = "cosine"
    milestones: Annotated[tuple[int, ...], "rounds at which schedule=step multiplies lr by `decay`"] = ()
    decay: Annotated[float, Gt(0), Le(1), "factor of schedule=step"] = 0.1
    momentum: Annotated[float, Ge(0), Lt(1), "SGD momentum"] = 0.9
    weight_decay: Annotated[float, Ge(0), "L2 penalty inside the optimiser"] = 1e-4
    batch_size: Annotated[int, Ge(1), "images per step"] = 32
    epochs: Annotated[int, Ge(0), "local epochs per round; 0 sends the received model back, to measure everything but training"] = 3
    steps_per_epoch: Annotated[int | None, Ge(1), "steps that count as an epoch; null: one pass over the silo's images"] = None
    label_smoothing: Annotated[float, Ge(0), Lt(1), "smoothing of the cross-entropy, as eps/C"] = 0.0
    weighting: Annotated[Literal["samples", "uniform"], "aggregation weight of a silo: n_k/N or 1/K"] = "samples"
    bn_buffers: Annotated[
        Literal["average", "pooled", "local", "frozen"],
        "BatchNorm statistics: averaged; pooled by total variance; never uploaded (evaluation uses batch statistics); never updated",
    ] = "average"
    persist_optimizer: Annotated[bool, "keep the optimiser's slots on the silo between rounds"] = False
    participants: Annotated[int | None, Ge(1), "silos drawn at random each round; null: all"] = None
    augment: Annotated[RecipeName, "random crops, flips and colours of training images as in that code; none: images as they are"] = "none"
    bottleneck: Annotated[int | None, Ge(1), "width of a Linear-BatchNorm-ReLU layer before the classifier (CSAC: 256); null: none"] = None


H = TypeVar("H", bound=FedAvgHyper)


class FedAvg(Generic[H]):
    """Weighted averaging of locally trained models."""

    Hyper: ClassVar[type] = FedAvgHyper
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv:1602.05629"
    leaves_silo: ClassVar[str] = (
        "the trained model (all parameters and BatchNorm statistics), the number of training images, the mean training loss, "
        "how far training moved the model"
    )
    centralised: ClassVar[bool] = False

    def __init__(self, hyper: H, task: Task) -> None:
        self.hyper, self.task = hyper, task

    def beside(self) -> Self:
        """The same algorithm for another silo of this process. It remembers nothing of this one; only the network's memory serves both."""
        other = type(self)(self.hyper, self.task)
        other.network, other.upload = self.network, self.upload
        return other

    def refuse(self, silos: Sequence[str]) -> None:
        wanted = self.hyper.participants
        if wanted is not None and wanted > len(silos):
            raise Unusable(f"hyper.participants: {wanted} silos a round, but the federation has {len(silos)}; lower it or add silos")

    def exchanges(self, round: int) -> Sequence[Exchange]:
        if round == 0:
            return [Exchange("join", self.join, self.initialise)]
        return [Exchange("train", self.train, self.combine, self.upload)]

    # ---- the network

    def build(self) -> Network:
        """A new network with random weights. Override to add modules that are exchanged with it."""
        task = self.task
        network = build_model(task.backbone, task.classes, task.channels, task.image_size)
        if self.hyper.bottleneck is not None:
            add_bottleneck(network, self.hyper.bottleneck)
        return network

    @cached_property
    def network(self) -> Network:
        """One network per process, whose weights every step replaces: building it again each round would cost more than loading."""
        return self.blank()

    def blank(self) -> Network:
        """A network whose weights are about to be replaced."""
        # A process that resumes builds it in another step than one that never stopped: dropout's stream must not notice.
        with torch.random.fork_rng(devices=[]):
            return self.build()

    @cached_property
    def upload(self) -> Layout:
        """Which tensors of the network leave the silo, and what they must look like. Needs no memory for the network itself."""
        with torch.device("meta"):
            layout = layout_of(self.build().state_dict())
        if self.hyper.bn_buffers == "local":
            return {name: shape for name, shape in layout.items() if not _is_statistic(name)}
        return layout

    def load(self, state: Tensors, device: torch.device) -> Network:
        """The network with exactly this state."""
        model = self.network.to(device)
        own = model.state_dict()
        if own.keys() != state.keys():
            raise ValueError(f"model state: expected tensors {sorted(own.keys() ^ state.keys())[:3]} to be in both network and broadcast")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        return model

    def predictor(self, received: Mapping[str, Tensors], device: torch.device) -> nn.Module:
        model = self.load(received[MODEL], device)
        if self.hyper.bn_buffers != "local":
            return folded(model).to(memory_format=torch.channels_last)
        for module in _batch_norms(model.eval()):
            module.train()  # there are no statistics for an unseen domain: use those of the evaluated batch
        return model.to(memory_format=torch.channels_last)

    def reference(self, model: nn.Module, labels: torch.Tensor, seed: int) -> torch.Tensor | None:
        return None

    # ---- what a silo does

    def join(self, silo: Silo) -> Update:
        return Update()

    def train(self, silo: Silo) -> Update:
        model = self.received_model(silo)
        if self.hyper.bn_buffers == "local":
            self._restore_statistics(model, silo.private)
        loss = self.local_epochs(model, silo)
        state = model.state_dict()
        if self.hyper.bn_buffers == "local":
            silo.private.update({f"bn.{name}": state[name].clone() for name in state if _is_statistic(name)})
        return Update({name: state[name] for name in self.upload}, {"loss": loss})

    def received_model(self, silo: Silo) -> Network:
        """The broadcast model in training mode, its BatchNorm statistics fixed where the hyper-parameters say so."""
        model = self.load(silo.received[MODEL], silo.device)
        model.train()
        if self.hyper.bn_buffers == "frozen":
            for module in _batch_norms(model):
                module.eval()
        return model

    def local_epochs(self, model: Network, silo: Silo) -> float:
        """E epochs of eq. 1 on the silo's images; returns the mean loss of the last."""
        hyper = self.hyper
        self.begin(model, silo)
        optimizer = make_optimizer(hyper.optimizer, self.trained(model), hyper.momentum, hyper.weight_decay)
        if hyper.persist_optimizer:
            restore_slots(optimizer, silo.private)
        loss = fit(
            model, self.augmented(silo), optimizer, self.rates(silo.round, silo.rounds), hyper.batch_size,
            lambda batch: self.loss(model, batch, silo),
            lambda: self.before_step(model), hyper.steps_per_epoch, draw=self.draw(silo),
        )  # fmt: skip
        if hyper.persist_optimizer:
            silo.private.update(optimizer_slots(optimizer))
        return loss

    def rates(self, round: int, rounds: int) -> list[float]:
        """Learning rate of each local epoch of this round."""
        hyper = self.hyper
        first = (round - 1) * hyper.epochs
        return [
            learning_rate(hyper.lr, hyper.schedule, first + e, rounds * hyper.epochs, round, hyper.milestones, hyper.decay)
            for e in range(hyper.epochs)
        ]

    def augmented(self, silo: Silo) -> Silo:
        """The silo as training sees it: the batches of its images go through the recipe. To be passed to `fit` and `run_epochs`."""
        recipe = RECIPES[self.hyper.augment]
        if recipe is None:
            return silo
        draws = stream(silo.seed, "augment", silo.name, silo.round)
        return replace(silo, train=silo.train.augmented(lambda images: recipe(images, draws)))

    def trained(self, model: Network) -> Iterator[nn.Parameter]:
        """What the optimiser moves."""
        yield from model.parameters()

    def begin(self, model: Network, silo: Silo) -> None:
        """Called with the received model before the first step of a round."""

    def draw(self, silo: Silo) -> Draw:
        """How the rows of an epoch are chosen and ordered."""
        return shuffled

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        return cross_entropy(model(batch.images), batch.labels, self.hyper.label_smoothing)

    def before_step(self, model: Network) -> None:
        """Called between backward and the optimiser's step."""

    def _restore_statistics(self, model: Network, private: Mapping[str, torch.Tensor]) -> None:
        for name, buffer in model.named_buffers():
            if f"bn.{name}" in private:
                buffer.copy_(private[f"bn.{name}"])

    # ---- what the server does

    def initialise(self, server: Server, updates: Updates) -> Broadcast:
        """w_0: random from the seed, then the weight file's tensors where one is given."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(server.seed, "initial-weights"))
            model = self.build()
        if self.task.weights is not None:
            load_weights(model, self.task.weights)
        return Broadcast({MODEL: model.state_dict()}, participants=self.sample(server))

    def weigh(self, server: Server, updates: Updates) -> dict[str, float]:
        """p_k of eq. 2 over the silos whose update was accepted."""
        uniform = self.hyper.weighting == "uniform"
        return normalised({name: 1.0 if uniform else float(server.roster[name]) for name in updates.names})

    def combine(self, server: Server, updates: Updates) -> Broadcast:
        weights = self.weigh(server, updates)
        model = average(updates, weights)
        if self.hyper.bn_buffers == "pooled":
            for name in [name for name in model if name.endswith(RUNNING_VAR)]:
                model[name] = pooled_variance(updates, weights, name.removesuffix(RUNNING_VAR) + RUNNING_MEAN, name)
        if self.hyper.bn_buffers == "local":  # statistics that no silo sends stay as they were
            model = {**server.parts[MODEL], **model}
        return Broadcast({MODEL: model}, participants=self.sample(server), weights=weights)

    def sample(self, server: Server) -> Sequence[str] | None:
        """Participants of the next round: all, or `participants` of them drawn without replacement."""
        wanted = self.hyper.participants
        if wanted is None:
            return None
        names = list(server.roster)
        order = torch.randperm(len(names), generator=stream(server.seed, "participants", server.round + 1))
        return sorted(names[i] for i in order[:wanted].tolist())


def _batch_norms(model: Network) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def _is_statistic(name: str) -> bool:
    return name.endswith((RUNNING_MEAN, RUNNING_VAR, "num_batches_tracked"))
