"""Whole runs of the installed command: to the end, interrupted, killed, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pipelines.commands import command, finish, invoke

# 15 rounds of two steps: long enough to be interrupted half-way, short enough for a test
TINY = ["rounds=15", "algorithm=fedavg", "hyper.epochs=1", "hyper.steps_per_epoch=2", "threads=1"]
SETTINGS = [*(word for setting in TINY for word in ("--set", setting)), "--no-report"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Run folder, the JSON it printed, and what went to stderr."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert invoke("init", folder / "spec.yaml").exit_code == 0
    process = command("run", folder / "spec.yaml", *SETTINGS, "--baseline", "fedprox", "--json", "--out", folder / "run")
    code, out, err = finish(process)
    assert code == 0, err
    return folder / "run", json.loads(out), err


def test_json_is_the_result_file(undisturbed: tuple[Path, dict[str, Any], str]) -> None:
    folder, result, err = undisturbed
    assert json.loads((folder / "result.json").read_text()) == result
    assert {"run", "algorithm", "target", "digest", "accuracy", "history", "seconds", "bytes", "rejected"} <= set(result)
    assert result["baseline"]["algorithm"] == "fedprox" and len(result["baseline"]["digest"]) == 64
    assert sum(line.startswith("round ") for line in err.splitlines()) == 2 * 15
    assert "\x1b" not in err and "weights  random initialisation" in err


def test_resume_of_a_finished_run_prints_it_again(undisturbed: tuple[Path, dict[str, Any], str]) -> None:
    folder, result, _ = undisturbed
    ended = invoke("resume", folder, "--json", "--no-report")
    again = json.loads(ended.stdout)
    assert ended.exit_code == 0
    assert (again["digest"], again["accuracy"], again["baseline"]) == (result["digest"], result["accuracy"], result["baseline"])


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the run did not get that far"
        time.sleep(0.01)


def session_members(leader: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return members


def assert_nothing_is_left(process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 5
    while session_members(process.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert session_members(process.pid) == []


def test_interrupted_before_the_run_began(tmp_path: Path) -> None:
    process = command("run", *SETTINGS, "--out", tmp_path / "run")
    wait_for(lambda: len(session_members(process.pid)) >= 3, process)  # the planner's process is on its way, and still imports torch
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process) == (130, "", "error: interrupted; nothing was written\n")
    assert_nothing_is_left(process)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed_ends_as_if_undisturbed(
    stop: signal.Signals, tmp_path: Path, undisturbed: tuple[Path, dict[str, Any], str]
) -> None:
    out = tmp_path / "run"
    process = command("run", *SETTINGS, "--out", out)
    wait_for((out / "store" / "global" / "runs" / "run" / "rounds" / "2").exists, process)
    began = time.monotonic()
    os.killpg(process.pid, stop) if stop == signal.SIGINT else process.send_signal(stop)  # Ctrl-C reaches the whole group
    code, _, err = finish(process)
    assert (code, time.monotonic() - began < 5) == (130, True)
    assert err.splitlines()[-1] == f"error: interrupted; continue with: siloflow resume {out}"
    assert_nothing_is_left(process)
    ended = invoke("resume", out, "--json", "--no-report")
    assert ended.exit_code == 0 and json.loads(ended.stdout)["digest"] == undisturbed[1]["digest"]


def test_a_killed_silo_is_named_at_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    endless = ["--set", "hyper.steps_per_epoch=1000000", "--set", "algorithm=fedavg"]
    process = command("run", *endless, "--baseline", "none", "--out", out)
    rounds = out / "store" / "global" / "runs" / "run" / "rounds"
    wait_for((rounds / "0" / "join" / "broadcast.json").exists, process)
    log = str(out / "logs" / "chalk.log")
    silo = next(p for p in session_members(process.pid) if os.path.realpath(f"/proc/{p.pid}/fd/1") == log)
    wait_for(lambda: silo.cpu_percent(0.2) > 20, process)
    silo.kill()
    began = time.monotonic()
    code, _, err = finish(process, 30)
    assert (code, time.monotonic() - began < 4) == (3, True)
    assert "silo chalk: its process ended (killed by SIGKILL); last lines of" in err.splitlines()[-1]
    assert "Traceback" not in err
