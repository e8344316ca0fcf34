"""Killed again and again, at a different place each time, a run ends with the same bits. `make chaos` tries many more places."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.kill import ALGORITHMS, Kill, Trial
from tests.chaos.processes import Bed
from tests.minio_server import MinioServer, Unavailable, running_minio, skip_or_fail

# One after the other on the same run: each start is killed, the next one goes on. Seven for every algorithm.
WITH_PRIVATE_STATE = [
    Kill("self", "birch", ("inside", "private")),
    Kill("all", "server", ("after", "reading")),
    Kill("engine", "ash", ("after", "private")),
    Kill("all", "server", share=0.4),
]
WITHOUT = [
    Kill("self", "planner", ("inside", "plan"), 3),
    Kill("all", "cedar", ("before", "payload")),
    Kill("self", "evaluator", ("inside", "evaluation")),
    Kill("stop", "server", share=0.4),
]
ON_S3 = [
    Kill("self", "birch", ("inside", "payload")),
    Kill("store", "server", ("inside", "payload")),
    Kill("engine", "server", ("inside", "result")),
]
ON_S3_TOO = [
    Kill("self", "server", ("after", "payload")),
    Kill("all", "ash", ("inside", "manifest")),
    Kill("self", "cedar", ("inside", "counts")),
]
CHAINS = {
    "csac": (WITH_PRIVATE_STATE, ON_S3),
    "fedadg": (WITH_PRIVATE_STATE, ON_S3_TOO),
    "fedavg": (WITHOUT, ON_S3),
    "fedccrl": (WITHOUT, ON_S3_TOO),
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Bed:
    return Bed(tmp_path_factory.mktemp("chaos"))


@pytest.fixture(scope="module")
def mortal() -> Iterator[MinioServer]:
    """Not the server of the other tests: this one gets killed."""
    try:
        with running_minio() as server:
            yield server
    except Unavailable as reason:
        skip_or_fail(f"S3 TESTS: {reason}")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_killed_on_a_folder(algorithm: str, bed: Bed) -> None:
    suffer_and_recover(Trial(bed, algorithm), CHAINS[algorithm][0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_killed_on_s3(algorithm: str, bed: Bed, mortal: MinioServer) -> None:
    suffer_and_recover(Trial(bed, algorithm, mortal), CHAINS[algorithm][1])


def suffer_and_recover(trial: Trial, kills: list[Kill]) -> None:
    for kill in kills:
        assert trial.suffer(kill) == "", kill
    assert trial.recover()[1] == ""


def test_the_sample_is_large_enough() -> None:
    assert sum(len(kills) for chains in CHAINS.values() for kills in chains) >= 25
