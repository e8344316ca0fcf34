"""`siloflow submit` and its sisters on a real Kubeflow Pipelines (KFP_HOST), with a small pipeline that has our task names and log lines.

The steps only print, in an image with Python and kfp (KFP_STEP_IMAGE), so that this is about the server and not about training.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.kfp_client import API, Api
from pipelines.kfp_host import connect
from pipelines.kfp_options import Access
from tests.cluster.printing import compile_pipeline
from tests.pipelines.commands import command, finish, invoke

pytestmark = pytest.mark.cluster

SECONDS = 900  # for a run of two rounds on a busy machine


@pytest.fixture(scope="module")
def host() -> str:
    return os.environ["KFP_HOST"]


@pytest.fixture(scope="module")
def api(host: str) -> Api:
    return connect(Access(host=host))


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory, api: Api) -> Iterator[Path]:
    name = f"siloflow-test-{uuid.uuid4().hex[:6]}"
    yield compile_pipeline(tmp_path_factory.mktemp("package") / "package.yaml", name)
    for pipeline in api.pages(f"{API}/pipelines", "pipelines", {"page_size": 100}):
        if pipeline["display_name"] == name:
            for version in api.pages(f"{API}/pipelines/{pipeline['pipeline_id']}/versions", "pipeline_versions", {"page_size": 100}):
                api.delete(f"{API}/pipelines/{pipeline['pipeline_id']}/versions/{version['pipeline_version_id']}")
            api.delete(f"{API}/pipelines/{pipeline['pipeline_id']}")


@pytest.fixture(scope="module")
def watched(packaged: Path, host: str) -> dict[str, Any]:
    """A run of two rounds, watched to its end."""
    process = command("submit", packaged, "--host", host, "--watch", "--json", "--set", "hyper.lr=0.01", "--experiment", "siloflow-tests")
    code, out, err = finish(process, timeout=SECONDS)
    assert code == 0, err
    return {**json.loads(out), "err": err}


def test_a_run_is_watched_to_its_end(watched: dict[str, Any]) -> None:
    assert watched["state"] == "SUCCEEDED"
    assert [(told["round"], told["accuracy"]) for told in watched["rounds"]] == [(1, 0.1), (2, 0.2)]
    assert "round 2/2 train  accuracy 20.0 %" in watched["err"]
    assert "warning" not in watched["err"].lower()


def test_logs_are_those_of_the_pods(watched: dict[str, Any], host: str) -> None:
    one = invoke("logs", watched["run_id"][:8], "--host", host, "--silo", "south").stdout
    assert [line for line in one.splitlines() if line.startswith("==>")] == ["==> south[0], done <==", "==> south[1], done <=="]
    assert "silo south: round 1" in one
    assert "silo south: round 2" in one
    assert "north" not in one
    assert '{"hyper": {"lr": 0.01}}' in invoke("logs", watched["run_id"], "--host", host, "--task", "plan").stdout
    assert "==> report, done <==" in invoke("logs", watched["name"], "--host", host).stdout


def test_it_is_listed(watched: dict[str, Any], host: str) -> None:
    listed = json.loads(invoke("runs", "--host", host, "--json").stdout)["runs"]
    run = next(run for run in listed if run["run_id"] == watched["run_id"])
    assert run["state"] == "SUCCEEDED"
    assert run["pipeline"] == watched["pipeline"]


def test_a_second_version_and_a_failing_silo(watched: dict[str, Any], packaged: Path, host: str, api: Api, tmp_path: Path) -> None:
    changed = tmp_path / "changed.yaml"
    changed.write_text(packaged.read_text(encoding="utf-8") + "# another\n", encoding="utf-8")
    process = command("submit", changed, "--host", host, "--watch", "--json", "--set", "run=south", "--set", "rounds=1")
    code, out, err = finish(process, timeout=SECONDS)
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].endswith("FAILED at south: silo south: data: expected a folder, found none; mount it")
    again = json.loads(invoke("submit", packaged, "--host", host, "--json", "--cron", "0 0 1 1 *").stdout)
    assert again["version_id"] == watched["version_id"]
    assert again["new"] is False
    api.delete(f"{API}/recurringruns/{again['recurring_run_id']}")
    assert again["version"] not in err.splitlines()[0]


def test_a_field_that_the_server_does_not_know(packaged: Path, host: str, tmp_path: Path) -> None:
    first, *rest = yaml.safe_load_all(packaged.read_text(encoding="utf-8"))
    first["root"]["inputDefinitions"]["parameters"]["algorithm"]["fromTheFuture"] = ["fedavg"]
    newer = tmp_path / "newer.yaml"
    newer.write_text(yaml.safe_dump_all([first, *rest]), encoding="utf-8")
    result = invoke("submit", newer, "--host", host)
    assert result.exit_code == 2
    assert "siloflow compile --server 2.14" in result.stderr


def test_cancel(packaged: Path, host: str, api: Api) -> None:
    run = json.loads(invoke("submit", packaged, "--host", host, "--json", "--set", "rounds=1", "--set", "seed=600").stdout)["run_id"]
    wait_for(lambda: api.get(f"{API}/runs/{run}").get("state") == "RUNNING")
    assert invoke("cancel", run, "--host", host).exit_code == 0
    code, _, err = finish(command("watch", run, "--host", host), timeout=SECONDS)
    assert code == 3
    assert "was cancelled" in err.splitlines()[-1]
    assert "has ended already" in invoke("cancel", run, "--host", host).stderr


def test_a_calendar_fires(packaged: Path, host: str, api: Api) -> None:
    made = invoke("submit", packaged, "--host", host, "--json", "--cron", "*/10 * * * * *", "--set", "rounds=1")
    assert made.exit_code == 0, made.stderr
    identity = json.loads(made.stdout)["recurring_run_id"]
    try:
        run = wait_for(
            lambda: next(
                (one for one in api.pages(f"{API}/runs", "runs", {"page_size": 50}) if one.get("recurring_run_id") == identity), None
            )
        )
        assert run["runtime_config"]["parameters"]["rounds"] == 1
    finally:
        api.delete(f"{API}/recurringruns/{identity}")
    invoke("cancel", run["run_id"], "--host", host)


@pytest.mark.skipif(not os.environ.get("KUBECONFIG"), reason="needs a KUBECONFIG")
def test_without_a_host_the_port_is_forwarded(watched: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KF_PIPELINES_ENDPOINT", raising=False)
    result = invoke("runs", "--json")
    assert result.exit_code == 0, result.stderr
    assert watched["run_id"] in {run["run_id"] for run in json.loads(result.stdout)["runs"]}
    wrong = invoke("runs", "--kfp-namespace", "default")
    assert wrong.exit_code == 2
    assert "no service ml-pipeline in namespace default" in wrong.stderr


def wait_for(look: Any) -> Any:
    until = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(2)
    return found
