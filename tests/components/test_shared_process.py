"""Silos that one process plays in turn end with the same bits as silos that have a process each."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.silo import Role
from components.worker import KEPT_ROLES, Player
from tests.federations import ALGORITHMS, Run, Start, values


class Shared(Run):
    """Every silo is played beside the one before it. As in a crowded process, none remembers its earlier steps."""

    def role(self, name: str) -> Role:
        if name not in self.silos:
            return super().role(name)
        last = self._roles.get("last silo")
        role = super().role(name) if last is None else Role(last.federation.beside(name), name)
        self._roles.pop(name, None)
        self._roles["last silo"] = role
        return role


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "deepall"])  # which has one silo
def test_who_plays_a_silo_changes_no_bit(algorithm: str, pictures: Path, tmp_path: Path) -> None:
    spec = values(pictures, algorithm, {"persist_optimizer": True})
    apart, shared = Run(spec, tmp_path / "apart" / "run"), Shared(spec, tmp_path / "shared" / "run")
    assert apart.digest == shared.digest
    first, second = (shared.role(name).federation for name in ("ash", "birch"))
    assert first.algorithm is not second.algorithm
    assert first.data is second.data
    assert first.algorithm.network is second.algorithm.network  # type: ignore[attr-defined]


def test_a_process_forgets_the_silos_it_played_long_ago(start: Start) -> None:
    run = start(silos_per_domain=4)
    player = Player(None, {**run.planned, "folder": str(run.folder)})  # type: ignore[arg-type]
    seen = []
    for name in run.silos:
        player.become(name)
        assert player.role.name == name
        seen.append(player.role)
    assert len(player._roles) == KEPT_ROLES < len(seen)
    player.become(run.silos[-2])
    assert player.role is seen[-2]
    player.become(run.silos[0])
    assert player.role is not seen[0]
