"""A local run with metrics, without a Prometheus: what the engine says reaches the view first and then the recorder."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.errors import DeadlineError
from components.metrics import Recorder
from pipelines.exporter import Exporting
from tests.federations import draw_pictures, values
from tests.metrics.prometheus_tools import free_port
from tests.pipelines.commands import command, finish

PLAN = {"run": "r", "spec": {"target": "yew"}, "silos": ["ash"]}


class Listener:
    """Notes every call, under the name of who is called."""

    seconds = 3.0

    def __init__(self, name: str, heard: list[tuple[Any, ...]]) -> None:
        self._name, self._heard = name, heard

    def __getattribute__(self, call: str) -> Any:
        if call.startswith("_") or call == "seconds":
            return super().__getattribute__(call)
        return lambda *given: self._heard.append((self._name, call, *given))

    def __enter__(self) -> None:
        self._heard.append((self._name, "enter"))

    def __exit__(self, *_: object) -> None:
        self._heard.append((self._name, "exit"))


class Heard(Listener, Recorder):
    """A recorder that notes every call."""


def test_the_view_is_told_first_and_the_recorder_what_it_needs() -> None:
    heard: list[tuple[Any, ...]] = []
    both = Exporting(Listener("view", heard), Heard("recorder", heard))  # type: ignore[arg-type]
    outcome = {"retries": 2}
    with both:
        both.planned(PLAN)
        both.began(1, "train", ["ash"])
        both.done("ash", "silo", outcome)
        both.done("server", "server", {})
        both.done("ash", "validate", {})
        both.done("evaluator", "evaluate", {})
        both.warn("careful")
        both.finished({"x": 1})
    assert [call for call in heard if call[0] == "recorder"] == [
        ("recorder", "planned", "r", {"target": "yew"}, ["ash"]),
        ("recorder", "silo_step", outcome),
        ("recorder", "retried", "ash", 2),
        ("recorder", "server_step", {}),
        ("recorder", "counted", {}, "validation", "ash"),
        ("recorder", "counted", {}, "target", "yew"),
        ("recorder", "finished", {"x": 1}),
    ]
    assert heard.index(("view", "finished", {"x": 1})) < heard.index(("recorder", "finished", {"x": 1}))
    assert [call[1] for call in heard if call[0] == "view"] == [
        "enter", "planned", "began", "done", "done", "done", "done", "warn", "finished", "exit"
    ]  # fmt: skip
    assert both.seconds == 3.0


def test_a_failed_run_is_recorded_and_fails_all_the_same() -> None:
    heard: list[tuple[Any, ...]] = []
    error = DeadlineError("silo ash: gone")
    with pytest.raises(DeadlineError), Exporting(Listener("view", heard), Heard("recorder", heard)):  # type: ignore[arg-type]
        raise error
    assert heard[-1] == ("recorder", "failed", error)


def test_a_wrong_gateway_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    code, _, said = finish(command("run", "--out", tmp_path / "run", "--pushgateway", "ftp://me:secret@host"))
    assert (code, said) == (2, "error: pushgateway: expected an address such as http://gateway:9091, found 'ftp://host'\n")
    assert not (tmp_path / "run").exists()


def test_a_taken_port_and_a_gateway_that_is_down_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(values(draw_pictures(tmp_path / "pictures"), rounds=1, threads=1)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, gateway = taken.getsockname()[1], f"http://127.0.0.1:{free_port()}"
        options = ["--metrics-port", str(port), "--pushgateway", gateway, "--json", "--no-report"]
        code, printed, said = finish(command("run", spec, "--out", tmp_path / "run", *options))
    assert code == 0, said
    assert json.loads(printed)["rounds"] == 1
    warnings = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2, said
    assert warnings[0].startswith(f"warning: metrics: port {port} cannot be used (Address already in use)")
    assert warnings[1].startswith(f"warning: pushgateway {gateway}: took no outcome of this run")
