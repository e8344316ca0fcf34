"""Rounds of an algorithm without a store: uploads go straight to the server, broadcasts straight to the silos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fl_algorithms.contract import Broadcast, Exchange, Server, Silo, Task, Tensors, Update
from fl_algorithms.randomness import numpy_stream
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples
from tests.federations import Uploads, copied

SIZE, CLASSES, DOMAINS = 16, 5, 2  # no other dimension of the network is as long as there are classes
TASK = Task("small-cnn", CLASSES, 3, SIZE, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), domains=DOMAINS)
SHORT: dict[str, dict[str, Any]] = {
    "csac": {"acquisition_epochs": 1, "proj_channels": 4},
    "fedadg": {"classification_epochs": 1},
    "fedsr": {"steps_per_epoch": None},
    "power-of-choice": {"participants": 2},
}


def algorithm(name: str, **hyper: Any) -> Any:
    """As one process has it."""
    entry = ALGORITHMS[name]
    cls = entry.load()
    return cls(cls.Hyper(**{**entry.defaults, "epochs": 1, "batch_size": 4, **SHORT.get(name, {}), **hyper}), TASK)


def samples(count: int, domain: int = 0, classes: int = CLASSES, flat: bool = False) -> Samples:
    """Random pictures of one domain. Flat: all alike, and each of one colour."""
    draw = numpy_stream(0, "pictures in memory", domain)
    shape = (count, SIZE, SIZE, 3)
    pixels = np.full(shape, 90, np.uint8) if flat else draw.integers(0, 256, shape, np.uint8)
    return Samples([(pixels, draw.integers(0, classes, count), np.arange(count))], TASK.mean, TASK.std, torch.device("cpu"), [domain])


class Rounds:
    """One federation. Every silo and the server have an object of their own, as processes do; what they got from elsewhere is a copy."""

    def __init__(self, name: str, train: Mapping[str, Samples], rounds: int = 2, **hyper: Any) -> None:
        self.train, self.rounds = train, rounds
        self.server, self.silos = algorithm(name, **hyper), {silo: algorithm(name, **hyper) for silo in train}
        self.parts: dict[str, Tensors] = {}
        self.personal: dict[str, dict[str, Tensors]] = {silo: {} for silo in train}
        self.private: dict[str, dict[str, torch.Tensor]] = {silo: {} for silo in (*train, "")}  # "": the server's
        self.reported: dict[str, tuple[int, int]] = {}  # stage -> images done and to do, as the last silo said
        self.updates: list[Update] = []  # all there were
        self.participants = list(train)

    def silo(self, name: str, round: int) -> Silo:
        def report(stage: str, done: int, total: int, *_: Any) -> None:
            self.reported[stage] = done, total

        received = {**self.parts, **self.personal[name]}
        return Silo(name, round, self.rounds, 0, torch.device("cpu"), self.train[name], received, self.private[name], report)

    def exchange(self, round: int, position: int) -> Broadcast:
        uploads: dict[str, Update] = {}
        for name in self.participants:
            step: Exchange = self.silos[name].exchanges(round)[position]
            torch.manual_seed(round)  # dropout
            update = step.silo(self.silo(name, round))
            assert update.tensors.keys() == step.upload.keys()
            uploads[name] = Update(copied(update.tensors), update.metrics)
        self.updates += uploads.values()
        roster = {name: len(samples) for name, samples in sorted(self.train.items())}
        broadcast: Broadcast = self.server.exchanges(round)[position].server(
            Server(round, self.rounds, 0, roster, self.parts, self.private[""]),
            Uploads({name: update.tensors for name, update in uploads.items()}, {name: u.metrics for name, u in uploads.items()}),
        )
        self.parts |= {part: copied(tensors) for part, tensors in broadcast.parts.items()}
        for part, by_silo in broadcast.personal.items():
            for name, tensors in by_silo.items():
                self.personal[name][part] = copied(tensors)
        self.participants = list(roster if broadcast.participants is None else broadcast.participants)
        return broadcast

    def go(self, but_the_last: bool = False) -> Rounds:
        """All rounds; or up to the last exchange of the last round, so that a silo can be looked at before it trains."""
        steps = [(round, at) for round in range(self.rounds + 1) for at in range(len(self.server.exchanges(round)))]
        for step in steps[:-1] if but_the_last else steps:
            self.exchange(*step)
        return self
