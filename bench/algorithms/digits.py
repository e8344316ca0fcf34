"""FedSR's step on pictures of 28 px, where the convolutions do not hide what getting a batch costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.algorithms.product import CPU, Accepted, Run
from fl_algorithms.contract import Server, Silo, Task
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples

PICTURES, MEAN, STD = 1000, (0.1307,), (0.3081,)  # a domain of the rotated digits


def drawn() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (PICTURES, 28, 28), np.uint8), draw.integers(0, 10, PICTURES)


def reference(_: Path) -> Run:
    from bench.reference.representation import fedsr_digits

    return fedsr_digits(*drawn())


def product(_: Path) -> Run:
    """A silo's round, which is five steps."""
    entry = ALGORITHMS["fedsr"]
    algorithm: Any = entry.load()(entry.load().Hyper(**entry.defaults), Task("mnist-cnn", 10, 1, 28, MEAN, STD))
    received = algorithm.initialise(Server(0, 2, 0, {}, {}, {}), Accepted({})).parts
    pixels, labels = drawn()
    train = Samples([(pixels[..., None], labels, np.arange(PICTURES))], MEAN, STD, CPU)
    silo = Silo("digits", 1, 2, 0, CPU, train, received, {}, lambda *_, **__: None)

    def round() -> int:
        algorithm.train(silo)
        return int(algorithm.hyper.steps_per_epoch * algorithm.hyper.batch_size)

    return round
