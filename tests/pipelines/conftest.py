"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.pipelines.kfp_server import KfpServer, package, running_kfp


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Workers inherit the environment of the process they are forked from, so it is set before the first of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Kubeflow Pipelines is known but the one that a test names."""
    for name in ("ENDPOINT", "UI_ENDPOINT", "SA_TOKEN_PATH", "DEFAULT_EXPERIMENT_NAME", "OVERRIDE_EXPERIMENT_NAME"):
        monkeypatch.delenv(f"KF_PIPELINES_{name}", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))


@pytest.fixture
def kfp() -> Iterator[KfpServer]:
    with running_kfp() as server:
        yield server


@pytest.fixture
def packaged(nowhere: None, tmp_path: Path) -> Path:
    """A package of a plan, a loop with two silos and a server, and a report."""
    path = tmp_path / "siloflow.yaml"
    path.write_text(yaml.safe_dump(package()) + "---\nplatforms: {}\n", encoding="utf-8")
    return path
