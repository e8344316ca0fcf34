"""The product's side: the algorithms' own exchange functions on the product's own cache, as a silo's process calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl_algorithms.contract import Server, Silo, Task, Tensors
from fl_algorithms.data import DataSet, open_dataset
from fl_algorithms.evaluation import count
from fl_algorithms.fedavg import MODEL
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples

Run = Callable[[], int]
CPU, SIZE, STEPS = torch.device("cpu"), 224, 2


class Accepted:
    """Updates that never were on a wire (contract.Updates)."""

    def __init__(self, tensors: Mapping[str, Tensors]) -> None:
        self.names, self._tensors = sorted(tensors), tensors

    def metrics(self, silo: str) -> dict[str, float | None]:
        return {}

    def keys(self) -> list[str]:
        return sorted(self._tensors[self.names[0]])

    def each(self, key: str) -> Any:
        return (self._tensors[name][key] for name in self.names)


class Bench:
    """One algorithm on the pictures: silo `photo` works, silo `cartoon` only shows what it has to show."""

    def __init__(self, pictures: Path, algorithm: str, backbone: str, **hyper: Any) -> None:
        self.data = open_dataset("folder", str(pictures), SIZE)
        entry = ALGORITHMS[algorithm]
        task = Task(backbone, len(self.data.classes), 3, SIZE, self.data.mean, self.data.std, domains=2)
        self.algorithm: Any = entry.load()(entry.load().Hyper(**{**entry.defaults, "epochs": 1, "steps_per_epoch": STEPS, **hyper}), task)
        self.private: dict[str, dict[str, torch.Tensor]] = {"photo": {}, "cartoon": {}}
        self.parts: dict[str, dict[str, Tensors]] = {"photo": {}, "cartoon": {}}
        self.take(self.algorithm.initialise(self.server(0), Accepted({})))

    def server(self, round: int) -> Server:
        return Server(round, 2, 0, {name: len(self.data.domain(name)) for name in self.parts}, {}, {})

    def take(self, broadcast: Any) -> None:
        for name, parts in self.parts.items():
            parts.update(broadcast.parts)
            parts.update({part: by_silo[name] for part, by_silo in broadcast.personal.items() if name in by_silo})

    def silo(self, name: str = "photo", round: int = 1) -> Silo:
        return Silo(name, round, 2, 0, CPU, samples(self.data, name), self.parts[name], self.private[name], lambda *_, **__: None)

    def exchange(self, number: int = 0, round: int = 1) -> None:
        """Of both silos and the server."""
        step = self.algorithm.exchanges(round)[number]
        updates = {name: {k: t.clone() for k, t in step.silo(self.silo(name, round)).tensors.items()} for name in self.parts}
        self.take(step.server(self.server(round), Accepted(updates)))

    def training(self, round: int = 1) -> Run:
        """The last exchange of the round, by one silo."""
        silo, hyper = self.silo(round=round), self.algorithm.hyper
        epochs = hyper.epochs + getattr(hyper, "classification_epochs", 0)

        def train() -> int:
            self.algorithm.exchanges(round)[-1].silo(silo)
            return int(epochs * hyper.steps_per_epoch * hyper.batch_size)

        return train


def samples(data: DataSet, domain: str, most: int | None = None) -> Samples:
    images = data.domain(domain)
    return Samples([(images.pixels, images.labels, np.arange(len(images))[:most])], data.mean, data.std, CPU)


def fedavg(pictures: Path) -> Run:
    return Bench(pictures, "fedavg", "mobilenet-v3-large").training()


def fedccrl(pictures: Path) -> Run:
    bench = Bench(pictures, "fedccrl", "mobilenet-v3-large")
    bench.exchange()
    return bench.training()


def csac(pictures: Path) -> Run:
    return _calibrating(pictures).training(round=2)


def csac_evaluated(pictures: Path) -> Run:
    """With its share of the evaluations: some 4,535 pictures after a round, in which three silos take 200 steps of 64."""
    bench = _calibrating(pictures)
    train, model = bench.training(round=2), {MODEL: bench.parts["photo"][MODEL]}

    def run() -> int:
        trained = train()
        shown = samples(bench.data, "cartoon", round(trained * 4535 / (3 * 200 * 64)))
        count(bench.algorithm.predictor(model, CPU), shown)
        return trained

    return run


def _calibrating(pictures: Path) -> Bench:
    # what a round does once is shared by 200 steps in the released code; by no more here than a turn can afford
    short = {"acquisition_epochs": 1, "acquisition_steps": 1, "batch_size": 32, "steps_per_epoch": 2 * STEPS}
    bench = Bench(pictures, "csac", "resnet-18", augment="csac", **short)
    bench.exchange()
    return bench


def fedsr(pictures: Path) -> Run:
    return Bench(pictures, "fedsr", "resnet-18", augment="domainbed", batch_size=32).training()


def fedsr_batch(pictures: Path) -> Run:
    bench = Bench(pictures, "fedsr", "resnet-18", augment="domainbed")
    train = bench.algorithm.augmented(bench.silo()).train

    def fetch() -> int:
        return len(next(train.batches(32, torch.randperm(len(train)))).labels)

    return fetch


def fedadg(pictures: Path) -> Run:
    return _adversarial(pictures, "resnet-18")


def fedadg_alexnet(pictures: Path) -> Run:
    return _adversarial(pictures, "alexnet")


def _adversarial(pictures: Path, backbone: str) -> Run:
    return Bench(pictures, "fedadg", backbone, augment="fedadg", classification_epochs=1, epochs=2).training()


def feddg(pictures: Path) -> Run:
    bench = Bench(pictures, "feddg", "small-cnn")
    bench.exchange()
    silo = bench.silo()
    bench.algorithm.begin(bench.algorithm.network, silo)
    images = next(silo.train.batches(32)).images

    def mix() -> int:
        return len(bench.algorithm.transform(images, *bench.algorithm._bank))

    return mix


def evaluation(pictures: Path) -> Run:
    bench = Bench(pictures, "fedavg", "mobilenet-v3-large")
    target = samples(bench.data, "cartoon")

    def evaluate() -> int:
        return count(bench.algorithm.predictor({MODEL: bench.parts["photo"][MODEL]}, CPU), target).total

    return evaluate
