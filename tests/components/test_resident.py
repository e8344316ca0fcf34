"""The loops of a resident run, each in a thread: the store is all they share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components import layout, resident
from components.errors import DeadlineError, InputError
from components.membership import announce, planned
from components.resident import conclude, evaluator_loop, server_loop, silo_loop, wait_for
from components.silo import Role
from tests.federations import DOMAINS, Run, draw_pictures, values


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's random stream belongs to the process: in a real run each role is one, here their steps take turns."""
    turn = threading.Lock()

    def in_turn(step: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*arguments: Any) -> Any:
            with turn:
                return step(*arguments)

        return taken

    for name in ("silo_step", "server_step", "validate_step", "evaluate_step"):
        monkeypatch.setattr(resident, name, in_turn(getattr(resident, name)))


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SILOFLOW_STATE", str(tmp_path / "state"))


class Roles:
    """Every role of one run in a thread of its own; what each ended with."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.store, self.run = (folder / "store").as_uri(), "run"
        announce(spec, self.store, self.run, DOMAINS)
        self.ended: dict[str, BaseException | None] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, loop: Callable[[Role], Any]) -> None:
        def play() -> None:
            try:
                for _ in loop(planned(self.store, self.run, name)):
                    pass
                self.ended[name] = None
            except BaseException as error:
                self.ended[name] = error

        self._threads.append(threading.Thread(target=play))
        self._threads[-1].start()

    def wait(self) -> dict[str, BaseException | None]:
        for thread in self._threads:
            thread.join(60)
        return self.ended


@pytest.mark.parametrize("algorithm", ["fedavg", "fedccrl", "csac", "power-of-choice"])
def test_the_same_bits_as_step_by_step(algorithm: str, pictures: Path, tmp_path: Path) -> None:
    spec = values(pictures, algorithm)
    undisturbed = Run(spec, tmp_path / "local").digest
    roles = Roles(spec, tmp_path)
    for silo in DOMAINS:
        roles.start(silo, silo_loop)
    roles.start(layout.EVALUATOR, evaluator_loop)
    roles.start(layout.SERVER, server_loop)
    assert set(roles.wait().values()) == {None}
    result = conclude(planned(roles.store, roles.run, layout.SERVER))
    assert result["digest"] == undisturbed
    assert result["accuracy"]["last"] is not None
    assert result["history"][-1]["validation"].keys() == set(DOMAINS)


def test_a_silo_that_gives_up_is_named_long_before_the_deadline(pictures: Path, tmp_path: Path) -> None:
    roles = Roles(values(pictures, deadline=50.0), tmp_path)

    def broken(role: Role) -> Any:
        def refuse(_: str) -> Any:
            raise InputError("'/data/birch': expected pictures, found none")

        role.samples = refuse  # type: ignore[method-assign]
        return silo_loop(role)

    started = time.monotonic()
    for silo in DOMAINS:
        roles.start(silo, broken if silo == "birch" else silo_loop)
    roles.start(layout.SERVER, server_loop)
    ended = roles.wait()
    assert time.monotonic() - started < 30
    assert isinstance(ended["birch"], InputError)
    reason = "round 0 join: silo birch: gave up: '/data/birch': expected pictures, found none"
    assert str(ended[layout.SERVER]) == reason
    assert str(ended["ash"]) == f"server: gave up: {reason}"
    # mended and started again, the server last, the run goes on as if nothing had happened
    for silo in DOMAINS:
        roles.start(silo, silo_loop)
    roles.start(layout.EVALUATOR, evaluator_loop)
    time.sleep(0.5)
    roles.start(layout.SERVER, server_loop)
    assert set(roles.wait().values()) == {None}
    again = conclude(planned(roles.store, roles.run, layout.SERVER))
    assert again["digest"] == Run(values(pictures, deadline=50.0), tmp_path / "local").digest


def test_a_silo_that_never_comes_is_named_at_the_deadline(pictures: Path, tmp_path: Path) -> None:
    roles = Roles(values(pictures, deadline=1.0), tmp_path)
    for silo in ("ash", "birch"):
        roles.start(silo, silo_loop)
    roles.start(layout.SERVER, server_loop)
    ended = roles.wait()
    assert isinstance(ended[layout.SERVER], DeadlineError)
    assert str(ended[layout.SERVER]).startswith("silo cedar: published nothing within 1 s")
    assert "silo cedar" in str(ended["ash"])


def test_a_quorum_goes_on_without_it(pictures: Path, tmp_path: Path) -> None:
    roles = Roles(values(pictures, deadline=1.5, quorum=0.6, rounds=1), tmp_path)
    for silo in ("ash", "birch"):
        roles.start(silo, silo_loop)
    roles.start(layout.EVALUATOR, evaluator_loop)
    roles.start(layout.SERVER, server_loop)
    assert set(roles.wait().values()) == {None}
    assert conclude(planned(roles.store, roles.run, layout.SERVER))["absent"] == ["cedar"]


def test_waiting_ends() -> None:
    looks = iter([None, None, "there"])
    assert wait_for(lambda: next(looks), 5) == "there"
    assert wait_for(lambda: None, 0.05) is None
