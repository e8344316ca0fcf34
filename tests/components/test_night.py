"""A night in a pod: the command is called as it is, its report and figures are shown, and a red night is red only in the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kfp.dsl import Metrics

from components.nightly import night
from components.nightly.component import nightly, verdict

STORE = "s3://store.example:9000/fed?tls=false"
ROWS: list[dict[str, Any]] = [
    {"algorithm": "fedavg", "target": "paper", "seed": 0, "status": "failed", "exit_code": 3},
    {"algorithm": "fedavg", "target": "paper", "seed": 0, "status": "done", "accuracy": {"last": 0.5, "oracle": 0.9}},
    {"algorithm": "fedavg", "target": "paper", "seed": 1, "status": "done", "accuracy": {"last": 0.7, "oracle": 0.9}},
    {"algorithm": "fedavg", "target": "neon", "seed": 0, "status": "failed", "exit_code": 3},
    {"algorithm": "fedavg", "target": "tiny", "seed": 0, "status": "done", "exact": True, "accuracy": {"last": 0.1}},
]
PERF = [{"name": "fedavg: CPU seconds a round", "unit": "s", "value": 1.5, "range": "± 0.1", "extra": ""}]
COMMAND = """#!/bin/sh
printf '%s\\n' "$@" > "$TOLD"
cp "$2" "$TOLD.spec" 2>/dev/null
echo "error: an earlier thing" >&2
echo "error: gate speed: expected at most 1.15, found 1.31" >&2
if [ "$REPORTS" = 1 ]; then
    mkdir -p "$4" && cp "$NIGHT"/* "$4"
fi
exit "$CODE"
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a `siloflow` that only writes down its words does so."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/siloflow").write_text(COMMAND)
    (tmp_path / "bin/siloflow").chmod(0o755)
    folder = tmp_path / "night"
    folder.mkdir()
    (folder / night.RESULTS).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / night.PERF).write_text(json.dumps(PERF))
    (folder / night.REPORT).write_text("<html>the night</html>")
    for name, value in (("TOLD", tmp_path / "told"), ("NIGHT", folder), ("CODE", 0), ("REPORTS", 1)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "told"


def run(tmp_path: Path, **given: Any) -> tuple[Any, dict[str, Any], Path]:
    page, metrics = tmp_path / "page.html", Metrics(uri=str(tmp_path / "metrics"))
    words = {"store": STORE, "job": "job-1", "benchmark": {}, "baseline": {}, **given}
    ended = nightly.python_func(**words, metrics=metrics, page=SimpleNamespace(path=str(page)))
    return ended, metrics.metadata, page


def test_it_is_the_one_command_on_the_files_of_the_image(told: Path, tmp_path: Path) -> None:
    ended, metrics, page = run(tmp_path)
    words = told.read_text().splitlines()
    out = words[words.index("--out") + 1]
    assert ["siloflow", *words] == night.command(night.FOLDER / night.SPEC, out, STORE, night.FOLDER / night.BASELINE)
    assert Path(out).name == "job-1"
    assert page.read_text() == "<html>the night</html>"
    assert metrics == {"exit_code": 0, "accuracy fedavg/paper": pytest.approx(0.6), "fedavg: CPU seconds a round": 1.5}
    assert ended == (0, "gate speed: expected at most 1.15, found 1.31")


def test_a_benchmark_that_is_given_takes_the_place_of_the_images(told: Path, tmp_path: Path) -> None:
    run(tmp_path, benchmark={"name": "own", "targets": ["paper"]}, baseline={"cells": {}})
    words = told.read_text().splitlines()
    assert json.loads(Path(words[1]).read_text()) == {"name": "own", "targets": ["paper"]}
    assert json.loads(Path(words[words.index("--gate") + 1]).read_text()) == {"cells": {}}


def test_a_red_night_is_shown_and_then_red(
    told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CODE", "6")
    (code, why), metrics, page = run(tmp_path)
    assert (code, metrics["exit_code"]) == (6, 6)
    assert page.exists()
    assert "error: gate speed" in capfd.readouterr().err  # the log of the task has all that the command said
    with pytest.raises(SystemExit) as ended:
        verdict.python_func(code=code, why=why)
    assert ended.value.code == 6
    assert capfd.readouterr().err == "error: gate speed: expected at most 1.15, found 1.31\n"


def test_a_green_night_is_green(capfd: pytest.CaptureFixture[str]) -> None:
    verdict.python_func(code=0, why="")
    assert capfd.readouterr().out == "the night is green\n"


@pytest.mark.parametrize(("script", "code"), [("exit 4", 4), ("kill -9 $$", 137), ("exit 0", 1)])
def test_a_night_without_a_report_fails_as_the_command_did(
    script: str, code: int, told: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin/siloflow").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(SystemExit) as ended:
        run(tmp_path)
    assert ended.value.code == code
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: ")
