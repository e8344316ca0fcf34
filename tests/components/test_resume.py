"""The same spec gives the same model: again, in another order, in new processes, and after being killed at any moment."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.store.file import FileStore
from tests.federations import ALGORITHMS, DOMAINS, Run, Start, values


class Killed(BaseException):
    """Not an Exception: nothing may handle it."""


# ---- the same spec, the same digest


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_neither_repetition_nor_order_nor_a_new_process_changes_a_bit(start: Start, algorithm: str) -> None:
    resident = start(algorithm, rounds=3)
    digest = resident.digest
    backwards = start(algorithm, rounds=3)
    backwards.go(order=lambda silos: silos[::-1])
    assert backwards.finish()["digest"] == digest
    forgetful = start(algorithm, rounds=3)
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest


def test_another_seed_gives_another_model(start: Start) -> None:
    assert start(seed=1).digest != start(seed=2).digest


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_step_may_be_called_again(start: Start, algorithm: str) -> None:
    run = start(algorithm)
    result = run.result()
    before = {path: path.read_bytes() for path in run.stored()}
    run.restart()
    assert run.result() == result
    assert {path: path.read_bytes() for path in run.stored()} == before


# ---- killed anywhere


def kill_before(monkeypatch: pytest.MonkeyPatch, fatal: Callable[[tuple[str, str, str]], bool]) -> None:
    """Ends the process, as far as a test can, instead of the writes that `fatal` picks: to the store and to private volumes alike."""
    for operation in ("put", "delete"):
        original = getattr(FileStore, operation)

        def guarded(
            self: FileStore, bucket: str, key: str, *rest: Any, original: Callable[..., None] = original, operation: str = operation
        ) -> None:
            if fatal((operation, bucket, key)):
                raise Killed
            original(self, bucket, key, *rest)

        monkeypatch.setattr(FileStore, operation, guarded)


def finished_whatever_happens(begin: Callable[[], Run]) -> tuple[str, int]:
    """Digest of the run and how often it had to be started."""
    for starts in itertools.count(1):
        try:
            return begin().digest, starts
        except Killed:
            continue
    raise AssertionError


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_killed_before_each_write_in_turn(
    start: Start, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    digest = start(algorithm).digest
    seen: set[tuple[str, str, str]] = set()

    def first_attempt(write: tuple[str, str, str]) -> bool:
        return write not in seen and not seen.add(write)  # type: ignore[func-returns-value]

    kill_before(monkeypatch, first_attempt)
    found, starts = finished_whatever_happens(lambda: Run(values(pictures, algorithm), tmp_path / "killed" / "run"))
    assert found == digest
    assert starts == len(seen) + 1 > 20


@pytest.mark.parametrize("algorithm", ["fedavg", "csac"])
def test_killed_once_before_any_write(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    """What is on disk before a write is what a kill at that moment leaves: every such state must lead to the same end."""
    run = start(algorithm, sources=list(DOMAINS[:2]))
    states: list[Path] = []

    def keep_a_copy(_: tuple[str, str, str]) -> bool:
        states.append(tmp_path / f"state-{len(states)}" / "run")
        shutil.copytree(run.folder, states[-1])
        return False

    with monkeypatch.context() as patch:
        kill_before(patch, keep_a_copy)
        digest = run.digest
    assert len(states) > 20
    for state in states:
        assert Run.reopened(run, state).digest == digest, state


def test_persisted_optimiser_survives_a_restart_and_matters(start: Start) -> None:
    resident = start(hyper={"persist_optimizer": True}, rounds=3).digest
    forgetful = start(hyper={"persist_optimizer": True}, rounds=3)
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == resident
    assert start(hyper={"persist_optimizer": False}, rounds=3).digest != resident
