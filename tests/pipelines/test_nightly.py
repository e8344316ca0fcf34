"""Three ways to start the night, one command: GitHub's workflow, the chart's CronJob, the pipeline."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from components import layout
from components.nightly import night
from pipelines.bench_run import Outcome, tell
from pipelines.compile import compiled
from pipelines.gates import Gate
from pipelines.workers import granted_cores
from tests.helm.chart import found
from tests.images.dockerfile import ROOT
from tests.nights import BENCHMARK, RED, accepted_here, as_if_nights_had_cost
from tests.pipelines.commands import SILOFLOW, invoke
from tests.pipelines.test_compile import SILOS, file_of, pods

WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["benchmark"]["steps"]


def step(name: str) -> dict[str, Any]:
    return next(one for one in STEPS if one.get("name") == name)


# ---- GitHub


def test_the_workflow_runs_the_command_in_a_clone(tmp_path: Path) -> None:
    """Its shell line is run, with a `siloflow` that prints its words."""
    program = tmp_path / "siloflow"
    program.write_text('#!/bin/sh\nprintf "%s\\n" siloflow "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "OUT": "night 7"}
    said = subprocess.run(["bash", "-e", "-c", step("Benchmark")["run"]], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    expected = night.command(f"bench/{night.SPEC}", "night 7", (tmp_path / "history").as_uri(), f"bench/{night.BASELINE}")
    assert said.stdout.splitlines() == expected
    assert (ROOT / "bench" / night.SPEC).is_file()


def test_it_runs_every_night_and_when_asked_to() -> None:
    when = WORKFLOW[True]  # YAML's word for `on`
    assert [list(one) for one in when["schedule"]] == [["cron"]]
    assert "workflow_dispatch" in when
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_every_action_is_pinned_to_a_commit_that_names_its_version() -> None:
    lines = [line for line in (ROOT / ".github/workflows/nightly.yml").read_text().splitlines() if "uses:" in line]
    assert len(lines) == sum("uses" in one for one in STEPS) == 5
    for line in lines:
        assert re.fullmatch(r"\s*(- )?uses: actions/[a-z/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_history_and_results_are_kept_of_a_red_night_too() -> None:
    restored, saved, kept = (step(name) for name in ("Restore the history", "Save the history", "Keep the results"))
    assert restored["with"]["path"] == saved["with"]["path"] == "history"
    assert saved["with"]["key"] == restored["with"]["key"]
    assert saved["with"]["key"].startswith(restored["with"]["restore-keys"])  # the next night finds it
    assert "run_id" in saved["with"]["key"]  # and a cache is never overwritten
    assert (saved["if"], kept["if"], step("Show the table")["if"]) == ("always()",) * 3
    files = {Path(line).name for line in kept["with"]["path"].splitlines()}
    assert files == {night.RESULTS, night.PERF, night.REPORT}
    order = [one.get("name") for one in STEPS]
    assert order.index("Restore the history") < order.index("Benchmark") < order.index("Save the history") < order.index("Keep the results")


def test_the_night_has_a_name_of_its_own() -> None:
    assert {"github.run_id", "github.run_attempt"} <= set(re.findall(r"[a-z]+\.[a-z_]+", WORKFLOW["jobs"]["benchmark"]["env"]["OUT"]))


# ---- the chart


def container(feature: str) -> dict[str, Any]:
    (cron,) = found(feature, "CronJob")
    one: dict[str, Any] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    return one


def test_the_chart_runs_the_command_on_the_files_of_the_image() -> None:
    store = "s3://siloflow-store.fl.svc:9000/fed?tls=false"
    expected = night.command(night.FOLDER / night.SPEC, "/tmp/$(POD_NAME)", store, night.FOLDER / night.BASELINE)
    assert ["siloflow", *container("nightly")["args"]] == expected  # the image's entry point is `siloflow`
    own = container("nightly-own")
    assert ["siloflow", *own["args"]] == night.command("/config/nightly.yaml", "/results/$(POD_NAME)", store, "/config/baseline.json")
    assert {"name": "results", "mountPath": "/results"} in own["volumeMounts"]
    assert container("nightly-command")["command"] == ["siloflow", "doctor"]


def test_the_chart_gives_it_the_servers_keys_and_nobody_elses() -> None:
    (cron,) = found("nightly-own", "CronJob")
    (keys,) = [one for one in cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["volumes"] if one["name"] == "credentials"]
    assert [source["secret"]["name"] for source in keys["projected"]["sources"]] == ["keys-of-server"]
    assert [item["path"] for item in keys["projected"]["sources"][0]["secret"]["items"]] == ["server/access_key", "server/secret_key"]
    (config,) = found("nightly-own", "ConfigMap")
    assert yaml.safe_load(config["data"]["nightly.yaml"])["name"] == "own"


def test_a_red_night_is_not_tried_again() -> None:
    """A second try would be another night in the history; an accident is worth one."""
    (cron,) = found("nightly", "CronJob")
    job = cron["spec"]["jobTemplate"]["spec"]
    ignored, failed = job["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (failed["action"], failed["onExitCodes"]) == ("FailJob", {"containerName": "nightly", "operator": "In", "values": [2, 6]})
    assert job["backoffLimit"] == 1


# ---- the pipeline


def test_the_pipeline_is_one_night_with_the_servers_keys_and_a_verdict() -> None:
    documents = compiled(file_of(), {}, "nightly", "2.14")
    assert documents[0]["pipelineInfo"]["name"] == "siloflow-nightly"
    tasks = pods(documents)
    assert set(tasks) == {"nightly", "verdict"}
    _, settings = tasks["nightly"]
    assert {one["secretName"] for one in settings["secretAsVolume"]} == {"siloflow-server", "store-ca"}
    dag = documents[0]["root"]["dag"]["tasks"]
    assert dag["nightly"]["inputs"]["parameters"]["store"]["runtimeValue"]["constant"] == file_of().store
    assert dag["verdict"]["dependentTasks"] == ["nightly"]
    assert dag["nightly"]["retryPolicy"]["maxRetryCount"] == 2  # a deleted pod costs a try, never the night
    assert "maxRetryCount" not in dag["verdict"]["retryPolicy"]
    assert not any(task["cachingOptions"].get("enableCache") for task in dag.values())
    form = documents[0]["root"]["inputDefinitions"]["parameters"]
    assert {name: field["defaultValue"] for name, field in form.items()} == {"benchmark": {}, "baseline": {}}


def test_kfp_can_load_what_the_command_writes(tmp_path: Path) -> None:
    from kfp import components

    (tmp_path / "silos.yaml").write_text(SILOS)
    answer = invoke("compile", tmp_path / "silos.yaml", "--pipeline", "nightly", "-o", tmp_path / "p.yaml", "--server", "2.17")
    assert answer.exit_code == 0, answer.stderr
    assert components.load_component_from_file(str(tmp_path / "p.yaml")).name == "siloflow-nightly"


@pytest.mark.timeout(900)  # some seconds of a machine that has nothing else to do
def test_the_package_under_kfp_local_shows_a_green_night_and_a_red_one(tmp_path: Path) -> None:
    """With the real command: the second night sees the first in the store, and the third a history that was much faster."""
    store, history = (tmp_path / "store").as_uri(), tmp_path / "store/global" / layout.history_key(BENCHMARK["name"])
    form = {"benchmark": BENCHMARK, "baseline": accepted_here(tmp_path, "--history", store)}
    (tmp_path / "silos.yaml").write_text(yaml.safe_dump({"store": store, "silos": [{"name": "ash"}]}))
    assert invoke("compile", tmp_path / "silos.yaml", "--pipeline", "nightly", "-o", tmp_path / "p.yaml").exit_code == 0
    ended = []
    for number, factor in enumerate((5, 0.01)):
        history.write_text(json.dumps(as_if_nights_had_cost(json.loads(history.read_text()), factor)))
        ended.append(run_locally(tmp_path, f"out-{number}", form))
    green, red = ended
    assert green.returncode == 0, green.stdout[-3000:] + green.stderr[-2000:]
    assert "the night is green" in green.stdout
    assert red.returncode != 0
    assert f"error: {RED}" in red.stdout
    assert [one["verdict"] for one in json.loads(history.read_text())["nights"]] == ["not gated", "passed", "failed"]
    assert all("fedavg" in page.read_text() for page in tmp_path.glob("out-*/*/nightly/page"))
    assert len(list(tmp_path.glob("out-*/*/nightly/page"))) == 2


def run_locally(folder: Path, out: str, form: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    runner = Path(__file__).with_name("run_package.py")
    path = f"{Path(SILOFLOW).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, runner, folder / "p.yaml", folder / out, json.dumps(form)],
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["--set", "rounds=3"], ["--spec", "spec.yaml"]])
def test_a_spec_is_refused_where_it_would_do_nothing(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("silos.yaml").write_text(SILOS)
    answer = invoke("compile", "silos.yaml", "--pipeline", "nightly", *words)
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert f"{words[0]}: expected none with --pipeline nightly" in answer.stderr


# ---- in a pod


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
def test_no_more_cells_at_once_than_the_pod_has_cores(
    files: dict[str, str], granted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.workers.cores", lambda: 8)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert granted_cores(tmp_path) == granted


# ---- what Prometheus is told


def test_a_gate_that_had_nothing_to_compare_with_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("pipelines.bench_run.push_night", lambda *words: told.append(words) or ["pushgateway: gone"])
    monkeypatch.setenv("SILOFLOW_PIPELINE", "nightly")
    gates = [
        Gate("speed", "fedavg", "no baseline", "", ""), Gate("exact", "x", "passed", "", ""),
        Gate("accuracy", "a", "failed", "", ""), Gate("accuracy", "b", "passed", "", ""),
    ]  # fmt: skip
    console = Console(record=True, file=io.StringIO())
    tell("http://gateway", "night-1", Outcome([], gates, "failed"), 6, console)
    assert told == [("http://gateway", "nightly", "night-1", [], {"exact": True, "accuracy": False}, 6)]
    assert console.export_text() == "warning: pushgateway: gone\n"
