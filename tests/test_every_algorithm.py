"""Every algorithm and preset of the registry: a short run on an embedded data set must learn, within any federation it serves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from components.received import read_update
from fl_algorithms.registry import ALGORITHMS
from tests.federations import Run, draw_pictures, values

BASE = sorted(name for name, entry in ALGORITHMS.items() if not entry.defaults and "+" not in entry.location)
# A short run: what the papers train for hours, and how fast, is replaced; what makes the preset itself is not.
SHORT: dict[str, Any] = {
    "optimizer": "adam", "lr": 2e-3, "schedule": "constant", "batch_size": 32, "epochs": 1, "steps_per_epoch": 16, "participants": None,
    "acquisition_epochs": 1, "acquisition_steps": 16, "classification_epochs": 1, "candidates": None, "label_smoothing": 0.0,
    "bn_buffers": "average", "augment": "none",
}  # fmt: skip
SILOS_PER_DOMAIN = {"krum": 2, "multi-krum": 2}  # with one malicious silo they need five


@pytest.fixture(scope="module", autouse=True)
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(threads)


def short(algorithm: str) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(ALGORITHMS[algorithm].load().Hyper)}
    return {name: value for name, value in SHORT.items() if name in known}


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_learns(algorithm: str, tmp_path: Path) -> None:
    """Finite losses, and source validation at least three times as good as guessing one of ten digits."""
    spec = {
        "algorithm": algorithm, "hyper": short(algorithm), "dataset": "rotated-digits", "sources": ["r15", "r30", "r45"], "target": "r0",
        "rounds": 2, "evaluate_every": 2, "device": "cpu", "silos_per_domain": SILOS_PER_DOMAIN.get(algorithm, 1),
    }  # fmt: skip
    result = Run(spec, tmp_path / "run").result()
    losses = [loss for row in result["history"] for loss in row["train_loss"].values()]
    assert losses and all(math.isfinite(loss) for loss in losses)
    assert not result["rejected"]
    assert result["history"][-1]["validation_accuracy"] > 0.3


@pytest.mark.parametrize("silos_per_domain", [1, 2, 17])
@pytest.mark.parametrize("algorithm", BASE)
def test_number_of_silos(algorithm: str, silos_per_domain: int, tmp_path: Path, pictures: Path) -> None:
    """2, 6 and 51 silos of a few images each; each publishes exactly what its exchange declares."""
    sources = ["ash", "birch"] if silos_per_domain == 1 else ["ash", "birch", "cedar"]
    spec = values(pictures, algorithm, short(algorithm), sources=sources, silos_per_domain=silos_per_domain, rounds=1)
    run = Run(spec, tmp_path / "run")
    federation = run.federation

    def inspect(broadcast: Any) -> None:
        upload = federation.exchange(broadcast.round, broadcast.exchange).upload
        for silo in broadcast.accepted:
            update = read_update(federation, silo, broadcast.round, broadcast.exchange)
            assert update is not None and update.tensors.keys() == upload.keys()

    run.go(after_exchange=inspect)
    assert not run.finish()["rejected"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")
