"""FedADG (Zhang et al. 2021, arXiv:2111.10487): every silo's features are aligned, class by class, with one learned reference.

F (body and neck) and C (head) are trained as usual. A generator G of reference features is exchanged and averaged with
them. A discriminator D, behind a fixed random projection, tells extracted from generated features; it never leaves its
silo. Where the printed equations contradict the text, the default follows the text and the option `eq2`/`eq4` the print.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import nn
from torch.optim import Optimizer

from fl_algorithms.contract import Silo, Task
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network
from fl_algorithms.randomness import stream, stream_seed
from fl_algorithms.samples import Batch
from fl_algorithms.training import evaluating, fit, learning_rate, make_optimizer, optimizer_slots, restore_slots, run_epochs
from fl_algorithms.uncompiled import take_step

PRIVATE = "fedadg."  # names in the silo's private state
Reference = Literal["learned", "frozen", "gaussian", "uniform", "laplace"]
DiscriminatorMode = Literal["lsgan", "eq2"]
GeneratorMode = Literal["toward_features", "eq4"]


@dataclass(frozen=True)
class FedADGHyper(FedAvgHyper):
    optimizer: Annotated[Literal["adam", "sgd"], "local optimiser"] = "sgd"
    lr: Annotated[float, Gt(0), "learning rate of extractor and classifier"] = 1e-3
    lr_generator: Annotated[float, Gt(0), "learning rate of the generator; follows the same schedule"] = 7e-4
    lr_discriminator: Annotated[float, Gt(0), "learning rate of the discriminator; follows the same schedule"] = 7e-4
    schedule: Annotated[Literal["cosine", "constant", "step"], "lr over the whole run, computed from the global round"] = "constant"
    weight_decay: Annotated[float, Ge(0), "L2 penalty inside the optimisers"] = 1e-5
    batch_size: Annotated[int, Ge(1), "images per step"] = 16
    classification_epochs: Annotated[int, Ge(0), "E0: epochs of classification alone that open each round"] = 3
    epochs: Annotated[int, Ge(0), "E1: adversarial epochs that follow"] = 7
    label_smoothing: Annotated[float, Ge(0), Lt(1), "smoothing of the cross-entropy, as eps/C (released code: eps/(C-1))"] = 0.1
    weighting: Annotated[Literal["samples", "uniform"], "aggregation weight of a silo: n_k/N or 1/K"] = "uniform"
    lambda_adv: Annotated[float, Ge(0), "lambda0: weight of the extractor's adversarial loss (Table 3 swaps it with lambda1)"] = 0.15
    lambda_err: Annotated[float, Ge(0), "lambda1: weight of the cross-entropy in the adversarial epochs"] = 0.85
    one_hot: Annotated[float, Ge(0), "magnitude of the class vector that G and D are given; 0: none, so not class-wise (ablation)"] = 1.0
    noise: Annotated[int | None, Ge(1), "size of the generator's noise; null: half the representation"] = None
    projection: Annotated[int | None, Ge(0), "size after the random projection; null: a quarter of the representation; 0: none"] = None
    hidden_classifier: Annotated[bool, "classifier with a hidden layer, as in the paper; false: the backbone's linear one"] = True
    adversarial: Annotated[bool, "false: no generator, no discriminator, E0 + E1 epochs of classification (ablation)"] = True
    reference: Annotated[
        Reference, "learned by G; G as initialised (a slip of the released code); or, without G: N(0,1), U[-1,1], Laplace(1/sqrt 2)"
    ] = "learned"
    d_mode: Annotated[DiscriminatorMode, "discriminator's loss: least squares, or eq. 2 as printed"] = "lsgan"
    g_mode: Annotated[GeneratorMode, "generator's loss: towards the extracted features (Fig. 2), or eq. 4 as printed"] = "toward_features"


class FedADG(FedAvg[FedADGHyper]):
    """Adversarial alignment of each silo's features with a shared, learned reference distribution."""

    Hyper: ClassVar[type] = FedADGHyper
    paper: ClassVar[str] = "Zhang et al. 2021, arXiv:2111.10487"
    leaves_silo: ClassVar[str] = FedAvg.leaves_silo + "; the trained generator of reference features; the discriminator stays"

    def __init__(self, hyper: FedADGHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._discriminator: Discriminator | None = None
        self._draws = torch.Generator()

    def build(self) -> Network:
        hyper, network = self.hyper, super().build()
        width, classes = network.head.in_features, self.task.classes
        if hyper.hidden_classifier:
            network.add_module("head", nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)))
        if hyper.adversarial and hyper.reference in ("learned", "frozen"):
            network.add_module("generator", Generator(hyper.noise or max(1, width // 2), classes if hyper.one_hot else 0, width))
        return network

    def reference(self, model: nn.Module, labels: torch.Tensor, seed: int) -> torch.Tensor | None:
        if not self.hyper.adversarial:
            return None
        assert isinstance(model, Network)
        self._draws = stream(seed, "report", "reference")
        width = next(layer.in_features for layer in model.head.modules() if isinstance(layer, nn.Linear))
        like = torch.empty(len(labels), width, device=next(model.parameters()).device)
        with torch.inference_mode():
            return self.draw_reference(model, self.class_vectors(labels.to(like.device), like), like)

    # ---- what a silo does

    def rates(self, round: int, rounds: int) -> list[float]:
        """Learning rate of F and C in each of the E0 + E1 epochs."""
        hyper = self.hyper
        per_round = hyper.classification_epochs + hyper.epochs
        return [
            learning_rate(hyper.lr, hyper.schedule, epoch, rounds * per_round, round, hyper.milestones, hyper.decay)
            for epoch in range((round - 1) * per_round, round * per_round)
        ]

    def begin(self, model: Network, silo: Silo) -> None:
        super().begin(model, silo)
        if self.hyper.adversarial:
            self._draws = stream(silo.seed, "reference", silo.name, silo.round)
            self._discriminator = self._recall(model, silo)

    def _recall(self, model: Network, silo: Silo) -> Discriminator:
        """D_k as the silo's last round left it. R is the same on every silo, so that all project alike."""
        hyper, width = self.hyper, next(layer.in_features for layer in model.head.modules() if isinstance(layer, nn.Linear))
        size = max(1, width // 4) if hyper.projection is None else hyper.projection
        matrix = random_projection(width, size, stream(silo.seed, "random projection")) if size else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(silo.seed, "discriminator", silo.name))
            discriminator = Discriminator(size or width, self.task.classes if hyper.one_hot else 0, matrix)
        stored = _under(silo.private, "weights.")
        if stored:
            discriminator.load_state_dict(stored)
        return discriminator.to(silo.device)

    def local_epochs(self, model: Network, silo: Silo) -> float:
        """E0 epochs of classification, then E1 in which D, F with C, and G take turns on every batch."""
        hyper = self.hyper
        if not hyper.adversarial:
            return super().local_epochs(model, silo)
        self.begin(model, silo)
        silo = self.augmented(silo)
        assert self._discriminator is not None
        optimizers = self._optimizers(model, self._discriminator)
        kept = optimizers if hyper.persist_optimizer else {"discriminator": optimizers["discriminator"]}
        for name, optimizer in kept.items():
            restore_slots(optimizer, _under(silo.private, f"{name}."))
        rates = self.rates(silo.round, silo.rounds)
        loss = fit(
            model, silo, optimizers["classifier"], rates[: hyper.classification_epochs], hyper.batch_size,
            lambda batch: cross_entropy(model(batch.images), batch.labels, hyper.label_smoothing),
            lambda: self.before_step(model), hyper.steps_per_epoch, "classify", self.draw(silo),
        )  # fmt: skip
        if hyper.epochs:
            loss = run_epochs(
                model, silo, rates[hyper.classification_epochs :], hyper.batch_size,
                lambda batch, rate: self._take_turns(model, batch, silo, optimizers, rate), hyper.steps_per_epoch, draw=self.draw(silo),
            )  # fmt: skip
        silo.private.update({f"{PRIVATE}weights.{name}": tensor for name, tensor in self._discriminator.state_dict().items()})
        for name, optimizer in kept.items():
            silo.private.update({f"{PRIVATE}{name}.{slot}": tensor for slot, tensor in optimizer_slots(optimizer).items()})
        return loss

    def _optimizers(self, model: Network, discriminator: Discriminator) -> dict[str, Optimizer]:
        players = {"classifier": self.trained(model), "discriminator": discriminator.parameters()}
        if self.hyper.reference == "learned":
            players["generator"] = model.get_submodule("generator").parameters()
        hyper = self.hyper
        return {name: make_optimizer(hyper.optimizer, own, hyper.momentum, hyper.weight_decay) for name, own in players.items()}

    def trained(self, model: Network) -> Iterator[nn.Parameter]:
        """F and C; the generator has an optimiser of its own."""
        generator = {id(parameter) for name, parameter in model.named_parameters() if name.startswith("generator.")}
        yield from (parameter for parameter in super().trained(model) if id(parameter) not in generator)

    def _take_turns(self, model: Network, batch: Batch, silo: Silo, optimizers: Mapping[str, Optimizer], rate: float) -> torch.Tensor:
        """One batch of Algorithm 1, in the released code's order: c7 (D), c5 (F and C), c8 (G). Each step moves its own player only."""
        hyper, judge = self.hyper, self._discriminator
        assert judge is not None
        with evaluating(model):
            extracted = model.features(batch.images)
        classes = self.class_vectors(batch.labels, extracted)
        reference = self.draw_reference(model, classes, extracted)
        verdict = discriminator_loss(judge(extracted, classes), judge(reference.detach(), classes), hyper.d_mode)
        descend(optimizers["discriminator"], verdict, rate * hyper.lr_discriminator / hyper.lr)
        loss = self.loss(model, batch, silo)
        descend(optimizers["classifier"], loss, rate, lambda: self.before_step(model))
        if "generator" in optimizers:
            # S_z and G are still those of the discriminator's turn, so the reference need not be generated again
            deception = generator_loss(judge(reference, classes), hyper.g_mode)
            descend(optimizers["generator"], deception, rate * hyper.lr_generator / hyper.lr)
        return loss.detach()

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        """What F and C minimise against a fixed D: lambda0 L_adv_f + lambda1 L_err, eq. 5."""
        hyper, (images, labels, _) = self.hyper, batch
        if not hyper.adversarial:
            return super().loss(model, batch, silo)
        assert self._discriminator is not None
        features = model.features(images)
        total = hyper.lambda_err * cross_entropy(model.head(features), labels, hyper.label_smoothing)
        if hyper.lambda_adv:
            total = total + hyper.lambda_adv * extractor_loss(self._discriminator(features, self.class_vectors(labels, features)))
        return total

    def class_vectors(self, labels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """One-hot rows of the configured magnitude; rows of no columns where classes are not told."""
        if not self.hyper.one_hot:
            return like.new_empty(len(labels), 0)
        return F.one_hot(labels, self.task.classes).to(like) * self.hyper.one_hot

    def draw_reference(self, model: Network, classes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """h': features from the generator, with its graph, or from a fixed distribution (Table 8)."""
        if self.hyper.reference not in ("learned", "frozen"):
            return fixed_reference(self.hyper.reference, like.shape, self._draws).to(like)
        generator = model.get_submodule("generator")
        assert isinstance(generator, Generator)
        noise = torch.rand(len(classes), generator.noise, generator=self._draws)
        features: torch.Tensor = generator(noise.to(like), classes)
        return features


class Generator(nn.Module):
    """G: noise and class vector -> features."""

    def __init__(self, noise: int, classes: int, width: int) -> None:
        super().__init__()
        self.noise = noise
        self.layers = nn.Sequential(nn.Linear(noise + classes, width), nn.LeakyReLU(), nn.Linear(width, width), nn.ReLU())
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, gain=0.5)

    def forward(self, noise: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(torch.cat([noise, classes], 1))
        return features


class Discriminator(nn.Module):
    """D: features, projected by a matrix that is never trained, and class vector -> probability of being a reference."""

    projection: torch.Tensor | None

    def __init__(self, width: int, classes: int, projection: torch.Tensor | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width + classes, width), nn.LeakyReLU(), nn.Linear(width, 1), nn.Sigmoid())
        self.register_buffer("projection", projection, persistent=False)

    def forward(self, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        projected = features if self.projection is None else features @ self.projection
        probability: torch.Tensor = self.layers(torch.cat([projected, classes], 1))
        return probability.squeeze(1)


def random_projection(width: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """R [width,size] of N(0,1)/sqrt(size): keeps squared lengths in expectation."""
    return torch.randn(width, size, generator=generator) / math.sqrt(size)


def fixed_reference(kind: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    if kind == "gaussian":
        return torch.randn(shape, generator=generator)
    if kind == "uniform":
        return torch.rand(shape, generator=generator) * 2 - 1
    # Laplace of scale 1/sqrt 2: the difference of two exponential variables; 1 - u is never 0
    first, second = (-torch.log1p(-torch.rand(shape, generator=generator)) for _ in range(2))
    return (first - second) / math.sqrt(2)


# ---- the three adversarial losses, of what D says about extracted features h and about the reference h'


def discriminator_loss(extracted: torch.Tensor, reference: torch.Tensor, mode: DiscriminatorMode) -> torch.Tensor:
    """L_adv_d: both forms push D(h) to 0 and D(h') to 1, but the gradient of eq. 2 grows as D gets better."""
    if mode == "eq2":
        return -((1 - extracted).square().mean() + reference.square().mean())
    return extracted.square().mean() + (1 - reference).square().mean()


def extractor_loss(extracted: torch.Tensor) -> torch.Tensor:
    """L_adv_f, eq. 3."""
    return (1 - extracted).square().mean()


def generator_loss(reference: torch.Tensor, mode: GeneratorMode) -> torch.Tensor:
    """L_adv_g: the reference comes to look like extracted features; eq. 4 as printed makes it ever easier to tell apart."""
    return ((1 - reference) if mode == "eq4" else reference).square().mean()


def descend(optimizer: Optimizer, loss: torch.Tensor, rate: float, before_step: Callable[[], None] | None = None) -> None:
    """One step of this optimiser. Gradients are computed for its own parameters only: the other players stay as they are."""
    own = []
    for group in optimizer.param_groups:
        group["lr"] = rate
        own.extend(group["params"])
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=own)
    if before_step is not None:
        before_step()
    take_step(optimizer)


def _under(private: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    prefix = PRIVATE + name
    return {key.removeprefix(prefix): tensor for key, tensor in private.items() if key.startswith(prefix)}
