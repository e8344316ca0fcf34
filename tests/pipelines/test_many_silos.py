"""The local engine with more silos than processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import local
from pipelines.local import LocalEngine
from pipelines.workers import Job, Worker, Workers
from tests.federations import draw_pictures, values


class Quiet:
    """A view that remembers who worked."""

    def __init__(self) -> None:
        self.worked: set[tuple[str, str]] = set()

    began = finished = planned = progress = warn = lambda *_, **__: None

    def done(self, worker: str, action: str, outcome: object) -> None:
        self.worked.add((worker, action))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    pictures = draw_pictures(tmp_path_factory.mktemp("pictures") / "images")
    return values(pictures, "fedccrl", {"participants": 3}, silos_per_domain=2, threads=1)


def test_as_many_processes_as_work_at_once_and_the_same_model(
    spec: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = LocalEngine(spec, tmp_path / "resident" / "run", Quiet()).run()
    monkeypatch.setattr(local, "MOST_RESIDENT", 5)
    for at_once in (1, 2):
        view, folder = Quiet(), tmp_path / str(at_once) / "run"
        result = LocalEngine(spec, folder, view, at_once).run()
        assert result["digest"] == resident["digest"]
        others = {"planner", "server", "evaluator"}
        logs = {path.stem for path in (folder / "logs").iterdir()}
        silos = logs - others
        assert logs > others and silos <= {f"silos.{number}" for number in range(1, at_once + 1)}
        assert {name for name, action in view.worked if action == "validate"} == {
            f"{d}-{n}" for d in ("ash", "birch", "cedar") for n in (1, 2)
        }


def test_a_role_never_has_two_jobs_at_once() -> None:
    workers = Workers(Path(), pool=("silos.1", "silos.2"), pooled={"a", "b", "c"})
    assert (workers.free("a"), workers.free("server")) == ("silos.1", "server")
    workers.running["silos.1"] = Worker(None, None, Job("a", "silo", {}))  # type: ignore[arg-type]
    assert (workers.free("a"), workers.free("b")) == (None, "silos.2")
    workers.running["silos.2"] = Worker(None, None, Job("b", "validate", {}))  # type: ignore[arg-type]
    assert (workers.free("b"), workers.free("c"), workers.free("server")) == (None, None, "server")
