"""The local engine on an old run, and two engines on one run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from components import layout
from pipelines.lock import only_engine
from tests.federations import Run, draw_pictures, values
from tests.pipelines.commands import command, finish

HOLD = """
import pathlib, sys, time
from pipelines.lock import only_engine
with only_engine(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_engines_on_one_run(tmp_path: Path) -> None:
    """The second is refused in one line; a killed one leaves nothing that would block the next."""
    run = Run(values(draw_pictures(tmp_path / "pictures"), threads=1, rounds=1), tmp_path / "run")
    first = subprocess.Popen([sys.executable, "-c", HOLD, run.folder], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert first.stdout is not None and first.stdout.readline()
        code, _, said = finish(command("resume", run.folder))
    finally:
        first.kill()
        first.communicate()
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith(f"error: run folder {run.folder}: another process is at work on this run")
    with only_engine(run.folder):
        pass


def test_a_run_is_resumed_though_what_a_missing_silo_would_need_has_expired(tmp_path: Path) -> None:
    spec = values(draw_pictures(tmp_path / "pictures"), rounds=4, keep_rounds=1, quorum=0.5, threads=1)
    run = Run(spec, tmp_path / "run")
    digest = run.digest
    for step in ("train", layout.VALIDATE):
        for path in (tmp_path / "run" / "store" / "silo-ash" / layout.step_key("run", 2, step)).iterdir():
            path.unlink()
    code, printed, said = finish(command("resume", tmp_path / "run", "--json", "--no-report"))
    assert code == 0, said
    assert json.loads(printed)["digest"] == digest
    assert "silo ash lost in round 2: round 1: what the server broadcast then has expired" in said
    assert "silo ash could not validate round 2: round 2: what the server broadcast then has expired" in said
