"""`siloflow report`, and the page that a run ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipelines import report_commands
from pipelines.report_commands import PAGE
from tests.federations import Run, draw_pictures, values
from tests.pipelines.commands import command, finish, invoke


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    (folder / "spec.yaml").write_text(yaml.safe_dump(values(draw_pictures(folder / "pictures"), rounds=1, threads=1)))
    return folder / "spec.yaml"


@pytest.fixture(scope="module")
def finished(spec: Path) -> Path:
    run = Run(yaml.safe_load(spec.read_text()), spec.parent / "finished")
    run.result()
    return run.folder


def test_a_run_ends_with_its_report_and_stdout_is_still_the_result_alone(spec: Path, tmp_path: Path) -> None:
    code, out, err = finish(command("run", spec, "--json", "--out", tmp_path / "run"))
    assert code == 0, err
    assert json.loads(out)["rounds"] == 1
    assert err.splitlines()[-1].split() == ["report", str(tmp_path / "run" / PAGE)]
    assert "fedavg" in (tmp_path / "run" / PAGE).read_text()
    shown = (tmp_path / "run" / PAGE).stat().st_mtime_ns
    ended = invoke("resume", tmp_path / "run")
    assert ended.exit_code == 0 and (tmp_path / "run" / PAGE).stat().st_mtime_ns == shown, "a finished run is only shown again"


def test_no_report_and_a_report_that_fails_do_not_fail_the_run(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = invoke("run", spec, "--no-report", "--out", tmp_path / "run")
    assert ended.exit_code == 0 and not (tmp_path / "run" / PAGE).exists() and "  report  " not in ended.stdout
    monkeypatch.setattr(report_commands, "PAGE", "store")  # a folder is in the way
    ended = invoke("resume", tmp_path / "run")
    warnings = [line for line in ended.stdout.splitlines() if "warning" in line]
    assert ended.exit_code == 0 and len(warnings) == 1
    assert warnings[0].startswith("warning: no report: report ") and "cannot be written" in warnings[0]


def test_of_one_run_and_of_two(finished: Path, tmp_path: Path) -> None:
    ended = invoke("report", finished)
    assert (ended.exit_code, ended.stdout) == (0, f"{finished / PAGE}\n"), ended.stderr
    both = invoke("report", finished, finished, "-o", tmp_path / "both.html")
    assert (both.exit_code, both.stdout) == (0, f"{tmp_path / 'both.html'}\n"), both.stderr
    assert "2 runs" in (tmp_path / "both.html").read_text()


def test_what_is_missing_is_said(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    folder.mkdir()
    (folder / "result.json").write_bytes((finished / "result.json").read_bytes())
    ended = invoke("report", folder)
    assert ended.exit_code == 0 and (folder / PAGE).exists()
    assert all(line.startswith("missing: ") for line in ended.stderr.splitlines()) and "spec.yaml" in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "run folder"),
        (["."], "expected spec.yaml and result.json of a run"),
        ([".", "-o", "."], "expected a file, found a folder"),
        ([], "Missing argument"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = invoke("report", *words)
    assert ended.exit_code == 2
    assert said in ended.stderr and ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
