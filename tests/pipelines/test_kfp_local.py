"""The package that is shipped, run under kfp.local: the same bits as the local engine, and the artifacts that the UI shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.federations import Run, draw_pictures, values
from tests.pipelines.commands import invoke

RUNNER = Path(__file__).with_name("run_package.py")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")


def package(folder: Path, spec: dict[str, Any], kind: str = "stepwise") -> Path:
    """Compiled from files, as a user would."""
    silos = {"store": (folder / "store").as_uri(), "silos": [{"name": "ash"}, {"name": "birch"}]}
    (folder / "silos.yaml").write_text(yaml.safe_dump(silos))
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    answer = invoke("compile", folder / "silos.yaml", "--spec", folder / "spec.yaml", "-o", folder / "p.yaml", "--pipeline", kind)
    assert answer.exit_code == 0, answer.stderr
    return folder / "p.yaml"


def run_locally(packaged: Path, folder: Path, **arguments: Any) -> subprocess.CompletedProcess[str]:
    places = {"SILOFLOW_STATE": str(folder / "state"), "SILOFLOW_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, RUNNER, packaged, folder / "out", json.dumps({"run": "run-1", **arguments})],
        cwd=folder, env={**os.environ, **places}, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip


def artifact(folder: Path, task: str, name: str) -> Path:
    return next(folder.glob(f"out/*/{task}/{name}"))


@pytest.mark.timeout(600)  # a process for every task, each of which imports torch
@pytest.mark.parametrize(("algorithm", "rounds"), [("fedccrl", 1), ("csac", 2)])
def test_the_same_digest_as_the_local_engine(algorithm: str, rounds: int, pictures: Path, tmp_path: Path) -> None:
    spec = values(pictures, algorithm, rounds=rounds, sources=["ash", "birch"])
    done = run_locally(package(tmp_path, spec), tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    result = json.loads((tmp_path / "store/global/runs/run-1/result.json").read_text())
    assert result["digest"] == Run(spec, tmp_path / "local").digest
    assert result["accuracy"]["last"] is not None
    assert result["history"][-1]["validation"].keys() == {"ash", "birch"}
    assert artifact(tmp_path, "evaluate", "model").stat().st_size > 10_000
    page = artifact(tmp_path, "report", "page").read_text()
    assert "<html" in page
    assert result["digest"] in page
    told = [json.loads(line.split("siloflow-round ")[1]) for line in done.stdout.splitlines() if "siloflow-round " in line]
    assert [one["exchange"] for one in told][-1] == "validate"
    assert told[-1]["accuracy"] == result["accuracy"]["last"]


def test_a_form_that_is_wrong_ends_in_the_first_task_with_the_line_of_the_command(pictures: Path, tmp_path: Path) -> None:
    done = run_locally(package(tmp_path, values(pictures)), tmp_path, algorithm="fedavgg", overrides="")
    assert done.returncode != 0
    assert "error: algorithm 'fedavgg': did you mean 'fedavg'?" in done.stdout
    assert "'silo-step'" not in done.stdout
    assert not (tmp_path / "store").exists()


def test_later_steps_fail_at_once_when_one_is_missing(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from components import tasks
    from components.membership import announce

    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"SILOFLOW_{name}", str(tmp_path / name))
    store = (tmp_path / "store").as_uri()
    announce(values(pictures), store, "run-1", ["ash", "birch", "cedar"])
    for call in (lambda: tasks.silo_task(store, "run-1", "ash", "2/train"), lambda: tasks.server_task(store, "run-1", "2/train")):
        with pytest.raises(SystemExit) as ended, tasks.ending():
            call()
        assert ended.value.code in (3, 4)


def test_too_many_steps_are_refused_by_the_plan(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from components.errors import InputError
    from components.tasks import plan_task

    monkeypatch.setenv("SILOFLOW_STATE", str(tmp_path / "state"))
    spec = yaml.safe_dump(values(pictures))
    with pytest.raises(InputError, match="rounds 50: 52 steps for 3 silos, expected at most 40 in a stepwise run"):
        plan_task((tmp_path / "store").as_uri(), "run-1", ["ash", "birch", "cedar"], ("", "", "", 50, -1, "", spec), 40)
