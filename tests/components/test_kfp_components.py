"""The Python functions of the KFP components, called as a unit, and their pages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kfp.dsl import ClassificationMetrics, Metrics, Model

from components.evaluate.component import evaluate, evaluator_resident
from components.plan_run.component import plan, plan_benchmark, plan_resident
from components.report.component import compare, report
from components.server_step.component import server_resident, server_step
from components.silo_step.component import silo_resident, silo_step
from pipelines.component_pages import COMPONENTS, pages
from tests.federations import DOMAINS, TARGET, Run, draw_pictures, values


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SILOFLOW_STATE", str(tmp_path / "state"))
    return (tmp_path / "store").as_uri()


def form(pictures: Path, **fields: Any) -> dict[str, Any]:
    spec = yaml.safe_dump(values(pictures, rounds=1))
    return {"algorithm": "", "dataset": "", "target": "", "rounds": 0, "seed": -1, "overrides": "", "spec": spec, **fields}


def test_a_run_by_its_components(store: str, pictures: Path, tmp_path: Path) -> None:
    common = {"store": store, "run": "", "job": "job-1"}
    steps = plan.python_func(**common, silos=[*DOMAINS, TARGET], most=0, **form(pictures))
    assert steps == ["0/join", "1/train", "1/validate"]
    metrics = Metrics(uri=str(tmp_path / "metrics"))
    for step in steps:
        for silo in (*DOMAINS, TARGET):  # the target's silo has nothing to do
            silo_step.python_func(**common, silo=silo, step=step)
        server_step.python_func(**common, step=step, metrics=metrics)
    assert metrics.metadata["round"] == 1
    assert 0 <= metrics.metadata["accuracy"] <= 1
    model, confusion = Model(uri=str(tmp_path / "model")), ClassificationMetrics(uri=str(tmp_path / "confusion"))
    evaluate.python_func(**common, model=model, metrics=metrics, confusion=confusion)
    assert model.metadata["digest"] == Run(values(pictures, rounds=1), tmp_path / "local").digest
    assert metrics.metadata["accuracy_last"] == metrics.metadata["accuracy"]
    rows = confusion.metadata["confusionMatrix"]["struct"]["rows"] if "struct" in confusion.metadata["confusionMatrix"] else None
    rows = rows or confusion.metadata["confusionMatrix"]["rows"]
    assert sum(sum(row["row"]) for row in rows) == 3 * 14
    page = SimpleNamespace(path=str(tmp_path / "page.html"))
    report.python_func(**common, page=page)
    assert model.metadata["digest"] in Path(page.path).read_text()


@pytest.mark.parametrize("most", [2, 0])
def test_a_form_that_is_wrong_ends_with_code_two(most: int, store: str, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {} if most else {"algorithm": "fedavgg"}
    with pytest.raises(SystemExit) as ended:
        plan.python_func(store=store, run="run-1", job="", silos=list(DOMAINS), most=most, **form(pictures, **wrong))
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: " + ("rounds 1: 3 steps" if most else "algorithm 'fedavgg'"))


def test_resident_components_wait_for_nobody_who_gave_up(store: str, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each alone: a silo that is not of the run ends at once, the others at their deadline, naming whom they missed."""
    changes = form(pictures, overrides="deadline: 0.3")
    runs = plan_resident.python_func(store=store, run="run-1", job="", silos=[*DOMAINS, TARGET], **changes)
    assert runs == ["run-1"]
    silo_resident.python_func(store=store, runs=runs, silo=TARGET)
    assert f"silo '{TARGET}': takes no part" in capsys.readouterr().out
    for call, line in (
        (lambda: evaluator_resident.python_func(store=store, runs=runs), "server: no broadcast of round 1 train within 0.6 s"),
        (
            lambda: server_resident.python_func(store=store, runs=runs, metrics=Metrics()),
            "silo ash, birch, cedar: published nothing within 0.3 s",
        ),
        (lambda: silo_resident.python_func(store=store, runs=runs, silo="ash"), "server: gave up: silo ash, birch, cedar"),
    ):
        with pytest.raises(SystemExit) as ended:
            call()
        assert ended.value.code == 3
        assert line in capsys.readouterr().err.splitlines()[-1]


def test_a_benchmark_is_checked_before_it_starts_and_ends_in_a_table(store: str, pictures: Path, tmp_path: Path) -> None:
    fields = form(pictures)
    for name in ("algorithm", "target"):
        del fields[name]
    common = {"store": store, "run": "bench", "job": "", "silos": [*DOMAINS, TARGET], **fields}
    with pytest.raises(SystemExit):
        plan_benchmark.python_func(algorithms=["fedavg", "fedprax"], targets=[TARGET], **common)
    assert not (tmp_path / "store").exists()
    runs = plan_benchmark.python_func(algorithms=["fedavg", "fedprox"], targets=[TARGET, "ash"], **common)
    assert runs == ["bench-fedavg-yew", "bench-fedavg-ash", "bench-fedprox-yew", "bench-fedprox-ash"]
    page, metrics = SimpleNamespace(path=str(tmp_path / "page.html")), Metrics()
    compare.python_func(store=store, runs=runs, metrics=metrics, page=page)
    assert Path(page.path).read_text().count("<td>-</td>") == 4


def test_the_pages_are_up_to_date() -> None:
    found = pages()
    assert {path.parent.name for path in found} == {path.parent.name for path in COMPONENTS.glob("*/component.py")}
    for path, text in found.items():
        assert path.read_text() == text, "write them with: python -m pipelines.component_pages"
