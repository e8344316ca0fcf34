"""Load and age, scaled down: many silos on one server, several runs in one store, many rounds in one run (tests/chaos/load.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.load import MODELS, aged, server_step, shared_store

SILOS, RUNS, ROUNDS = 10, 3, 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


def test_memory_of_the_server_does_not_follow_the_number_of_silos() -> None:
    assert server_step(SILOS, "resnet-18")["models"] <= MODELS


def test_nor_on_s3(s3_url: str) -> None:
    assert server_step(SILOS, "resnet-18", s3_url)["models"] <= MODELS


def test_runs_at_once_in_one_folder(tmp_path: Path) -> None:
    at_once, alone = shared_store(RUNS, tmp_path, (tmp_path / "store").as_uri())
    assert at_once == alone
    assert len(set(alone)) == RUNS


def test_runs_at_once_on_s3(tmp_path: Path, s3_url: str) -> None:
    at_once, alone = shared_store(RUNS, tmp_path, s3_url)
    assert at_once == alone
    assert len(set(alone)) == RUNS


def test_many_rounds_leave_memory_files_threads_and_the_store_as_they_were(tmp_path: Path) -> None:
    found = aged(ROUNDS, 20, tmp_path)
    assert found["grown"] == []
    assert found["rounds"] == found["counted"] == ROUNDS
    assert found["models"] < 16  # those of 3 rounds, and of up to 10 more while somebody still counts
