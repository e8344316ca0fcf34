"""What a role keeps on its own volume between steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from components.errors import StoreError
from components.received import PrivateState


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    return PrivateState(tmp_path / "private" / "ash")


def value(state: PrivateState, round: int, position: int) -> float | None:
    found = state.before(round, position)
    return float(found["x"]) if found else None


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name[:9] for path in (tmp_path / "private" / "ash").iterdir())


def test_a_step_starts_from_what_the_last_earlier_step_left(state: PrivateState) -> None:
    assert state.before(1, 0) == {}
    for round, position, number in ((1, 0, 10.0), (1, 1, 11.0), (12, 0, 120.0)):
        state.save(round, position, {"x": torch.tensor(number)})
    assert [value(state, *step) for step in ((1, 0), (1, 1), (2, 0), (12, 0), (12, 1), (100, 0))] == [None, 10.0, 11.0, 11.0, 120.0, 120.0]


def test_types_shapes_and_bits_come_back(state: PrivateState) -> None:
    kept = {"a": torch.randn(3, 2, dtype=torch.float64), "b": torch.tensor(7), "c": torch.zeros(0, 4)}
    state.save(1, 0, kept)
    found = state.before(2, 0)
    assert found.keys() == kept.keys()
    assert all(found[name].dtype == kept[name].dtype and torch.equal(found[name], kept[name]) for name in kept)


def test_a_repeated_step_finds_the_state_it_first_started_from(state: PrivateState, tmp_path: Path) -> None:
    for round in range(1, 6):
        state.save(round, 0, {"x": torch.tensor(float(round))})
        state.prune()
        assert value(state, round, 0) == (round - 1 if round > 1 else None)
        assert value(state, round + 1, 0) == round
    assert files(tmp_path) == ["000004.00", "000005.00"]


def test_a_repeated_step_replaces_what_its_first_attempt_saved(state: PrivateState, tmp_path: Path) -> None:
    """On a device that does not repeat its sums bit for bit, the two differ, and only the second was published."""
    state.save(1, 0, {"x": torch.tensor(1.0)})
    for attempt in range(20):
        state.save(2, 0, {"x": torch.tensor(float(attempt))})
        state.prune()
        assert value(state, 3, 0) == attempt
        assert value(state, 2, 0) == 1.0
    assert files(tmp_path) == ["000001.00", "000002.00"]


def test_nothing_to_keep_writes_nothing(state: PrivateState, tmp_path: Path) -> None:
    state.save(1, 0, {})
    state.prune()
    assert not (tmp_path / "private").exists()


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: content[:-1] + bytes([content[-1] ^ 1]), lambda content: b""]
)
def test_a_damaged_file_is_noticed(state: PrivateState, tmp_path: Path, damage: object) -> None:
    state.save(1, 0, {"x": torch.arange(4.0)})
    (path,) = (tmp_path / "private" / "ash").iterdir()
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StoreError, match="does not match its checksum; restore the volume or start a new run") as caught:
        state.before(2, 0)
    assert "\n" not in str(caught.value)
