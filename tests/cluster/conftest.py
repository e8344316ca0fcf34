"""What the tests of pipelines share: one federation on the cluster, its packages, and a run that nothing disturbs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.browser import Browser, opened
from tests.cluster.pipeline_runs import RunOnCluster, compiled, installed
from tests.cluster.release import Release


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="session")
def release() -> Iterator[Release]:
    with installed() as found:
        yield found


@pytest.fixture(scope="session")
def stepwise(release: Release, folder: Path) -> Path:
    return compiled(folder, "stepwise")


@pytest.fixture(scope="session")
def resident(release: Release, folder: Path) -> Path:
    return compiled(folder, "resident")


@pytest.fixture(scope="session")
def fedavg(stepwise: Path) -> RunOnCluster:
    """A stepwise run that nothing disturbs; others look at its traces."""
    run = RunOnCluster(stepwise)
    assert run.wait() == "SUCCEEDED", run.logs()
    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as found:
        yield found
