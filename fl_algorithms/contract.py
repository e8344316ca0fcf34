"""What an algorithm sees and returns. Nothing here, and nothing that calls it, knows which algorithm runs.

A round is a sequence of exchanges. In each, the participants compute an `Update` from what they received, and the server
turns the accepted updates into a `Broadcast`. Round 0 is the exchange `join`: silos announce themselves and the server
broadcasts the initial model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from fl_algorithms.models import Network
from fl_algorithms.samples import Samples

Tensors = Mapping[str, torch.Tensor]
Report = Callable[..., None]


@dataclass(frozen=True)
class TensorShape:
    """Shape and type one uploaded tensor must have. `None` in a shape: as many rows as the silo likes, up to its sample count."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]


Layout = Mapping[str, TensorShape]


def layout_of(tensors: Tensors) -> dict[str, TensorShape]:
    return {name: TensorShape(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Task:
    """What is to be learned: the network and the images it takes."""

    backbone: str
    classes: int
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: str | None = None
    domains: int = 1  # source domains; `Samples.domains` counts them from 0


@dataclass
class Update:
    """What one silo publishes in one exchange: tensors, and numbers that are safe to show (a non-finite one is sent as null)."""

    tensors: Tensors = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Broadcast:
    """What the server publishes after an exchange.

    Tensors travel in named parts. A part replaces the earlier part of that name; a part not mentioned stays in force, so
    the model is not sent again because a small exchange came in between. A personal part reaches one silo only.
    """

    parts: Mapping[str, Tensors] = field(default_factory=dict)
    personal: Mapping[str, Mapping[str, Tensors]] = field(default_factory=dict)  # part -> silo -> tensors
    participants: Sequence[str] | None = None  # of the next exchange; None: every silo
    weights: Mapping[str, float] = field(default_factory=dict)  # how much each silo counted, for the record
    layer_weights: Mapping[str, Sequence[float]] = field(default_factory=dict)  # the same by tensor, in the order of the updates


class Updates(Protocol):
    """The accepted updates of one exchange, read tensor by tensor so that memory does not grow with the number of silos."""

    names: Sequence[str]  # sorted: every sum runs in this order, whatever the order of arrival

    def metrics(self, silo: str) -> Mapping[str, float | None]: ...

    def keys(self) -> Sequence[str]: ...

    def each(self, key: str) -> Iterator[torch.Tensor]:
        """This tensor of every silo, in the order of `names`. A tensor may be used until the next one is asked for."""
        ...


@dataclass
class Silo:
    """One silo in one exchange."""

    name: str
    round: int
    rounds: int
    seed: int
    device: torch.device
    train: Samples
    received: Mapping[str, Tensors]  # parts in force; read from the store when first looked at
    private: dict[str, torch.Tensor]  # stays on the silo's own volume; saved with the step, never published
    report: Report  # report(stage, done, total, loss=None): cheap, call it every batch
    validation: Samples | None = None  # held back from training; None where a silo has none


@dataclass
class Server:
    """The server in one exchange."""

    round: int
    rounds: int
    seed: int
    roster: Mapping[str, int]  # every silo that joined, sorted -> its number of training images
    parts: Mapping[str, Tensors]  # the global parts in force
    private: dict[str, torch.Tensor]  # saved with the step, never published


@dataclass(frozen=True)
class Exchange:
    """One exchange of a round: what a silo computes, what it must look like on the wire, what the server makes of it."""

    name: str
    silo: Callable[[Silo], Update]
    server: Callable[[Server, Updates], Broadcast]
    upload: Layout = field(default_factory=dict)


class Algorithm(Protocol):
    """Everything the rest of the system asks of an algorithm. `fedavg.FedAvg` implements it; the others override parts of that."""

    Hyper: ClassVar[type]
    leaves_silo: ClassVar[str]  # in plain words, for `siloflow algorithms`
    centralised: ClassVar[bool]  # a reference that pools all source images in one silo; only where no silo is really separate

    def __init__(self, hyper: Any, task: Task) -> None: ...

    def beside(self) -> Algorithm:
        """Another one of these for another silo that the same process plays; the two never work at the same time."""
        ...

    def refuse(self, silos: Sequence[str]) -> None:
        """Raise `Unusable` when this federation cannot be served, before anything is trained."""
        ...

    def exchanges(self, round: int) -> Sequence[Exchange]: ...

    def build(self) -> Network:
        """A new network with random weights, as it is exchanged."""
        ...

    def predictor(self, received: Mapping[str, Tensors], device: torch.device) -> nn.Module:
        """The global model, ready for evaluation: images -> logits."""
        ...

    def reference(self, model: nn.Module, labels: torch.Tensor, seed: int) -> torch.Tensor | None:
        """Features that those of the silos are drawn to, one row per label, for the report; None where there are no such."""
        ...
