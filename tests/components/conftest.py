"""Fixtures of the tests that run a whole federation in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.federations import Run, Start, draw_pictures, values


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def image_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def settled(image_cache: Path) -> Iterator[None]:
    """Decoded pictures stay out of the user's cache; one thread, so that every machine does the same sums."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(image_cache))
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


@pytest.fixture
def start(pictures: Path, tmp_path: Path) -> Start:
    """Plans a run in a folder of its own; all are called `run`, so that only the spec can make a difference."""
    number = itertools.count()

    def begin(algorithm: str = "fedavg", hyper: dict[str, Any] | None = None, **fields: Any) -> Run:
        return Run(values(pictures, algorithm, hyper, **fields), tmp_path / str(next(number)) / "run")

    return begin
