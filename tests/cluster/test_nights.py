"""The pipeline `nightly` on a real Kubeflow Pipelines: a calendar starts it, its report is shown, and a red night is red."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from minio import Minio

from pipelines.kfp_client import API, Api
from pipelines.kfp_host import connect
from pipelines.kfp_options import Access
from tests.cluster.browser import Browser
from tests.cluster.nights import Nights
from tests.cluster.pipeline_runs import SPACE, RunOnCluster, silos_file
from tests.cluster.release import Release, forward, kubectl, until
from tests.nights import BENCHMARK, FIRST, RED, accepted_here
from tests.pipelines.commands import command, finish

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def given(release: Release, folder: Path) -> tuple[Path, list[str]]:
    """The package, and a small benchmark with its baseline for its form."""
    (folder / "silos.yaml").write_text(json.dumps(silos_file()))
    code, _, said = finish(command("compile", folder / "silos.yaml", "--pipeline", "nightly", "-o", folder / "nightly.yaml"))
    assert code == 0, said
    form = {"benchmark": BENCHMARK, "baseline": accepted_here(folder)}
    return folder / "nightly.yaml", [word for name, value in form.items() for word in ("--set", f"{name}={json.dumps(value)}")]


class Night(RunOnCluster):
    """A run of the pipeline, started now or found."""

    def __init__(self, host: str, identity: str) -> None:
        self.host, self.id = host, identity

    def shown(self) -> dict[str, bytes]:
        """What KFP kept of the task nightly: artifacts by name."""
        with forward(SPACE, "svc/minio-service", 9000) as endpoint:
            secret = json.loads(kubectl("-n", SPACE, "get", "secret", "mlpipeline-minio-artifact", "-o", "json"))["data"]
            keys = {name: base64.b64decode(secret[name.replace("_", "")]).decode() for name in ("access_key", "secret_key")}
            client = Minio(endpoint=endpoint, secure=False, region="us-east-1", **keys)
            found = client.list_objects("mlpipeline", prefix=f"v2/artifacts/siloflow-nightly/{self.id}/nightly/", recursive=True)
            names = [str(one.object_name) for one in found]
            return {Path(name).name: client.get_object("mlpipeline", name).read() for name in names}

    def tasks(self) -> dict[str, str]:
        api = connect(Access(host=self.host))
        details: Any = api.get(f"{API}/runs/{self.id}")["run_details"]["task_details"]
        return {one["display_name"]: one["state"] for one in details}


def submit(package: Path, *words: str) -> dict[str, Any]:
    code, out, said = finish(command("submit", package, "--host", os.environ["KFP_HOST"], "--json", *words), 600)
    assert code == 0, said
    return {"host": os.environ["KFP_HOST"], **json.loads(out)}


def test_the_first_night_is_kept_and_not_green(given: tuple[Path, list[str]], release: Release) -> None:
    package, form = given
    started = submit(package, *form)
    night = Night(started["host"], started["run_id"])
    assert night.wait() == "FAILED"
    assert f"error: {FIRST}" in night.logs("--task", "verdict")
    assert Nights(release).verdicts() == ["no baseline"]


def test_a_calendar_starts_the_second_which_sees_the_first(given: tuple[Path, list[str]], release: Release) -> None:
    package, form = given
    Nights(release).cost(5)
    made = submit(package, *form, "--cron", "*/20 * * * * *")
    api = connect(Access(host=made["host"]))
    calendar = f"{API}/recurringruns/{made['recurring_run_id']}"
    try:
        run = until(lambda: _started_by(api, made["recurring_run_id"]), "the calendar")
        api.post(f"{calendar}:disable", {})  # deleting it would take the runs it started along
        night = Night(made["host"], run["run_id"])
        ended = night.wait()
    finally:
        api.delete(calendar)
    assert ended == "SUCCEEDED", night.logs()
    assert "the night is green" in night.logs("--task", "verdict")
    assert Nights(release).verdicts()[:2] == ["no baseline", "passed"]  # the calendar may have started another
    page = night.shown()["page"].decode()
    assert "<html" in page and "fedavg" in page
    assert all(when["when"][:10] in page for when in Nights(release).read())


def _started_by(api: Api, calendar: str) -> dict[str, Any] | None:
    runs = api.pages(f"{API}/runs", "runs", {"page_size": 50, "sort_by": "created_at desc"})
    return next((one for one in runs if one.get("recurring_run_id") == calendar), None)


def test_a_red_night_is_red_and_shown(given: tuple[Path, list[str]], release: Release, browser: Browser) -> None:
    package, form = given
    Nights(release).cost(0.01)
    started = submit(package, *form)
    night = Night(started["host"], started["run_id"])
    assert night.wait() == "FAILED"
    assert f"error: {RED}" in night.logs("--task", "verdict")
    assert Nights(release).verdicts()[-1] == "failed"
    assert b"fedavg" in night.shown()["page"]
    states = night.tasks()
    assert (states["nightly"], states["verdict"]) == ("SUCCEEDED", "FAILED")
    browser.show(f"#/runs/details/{night.id}", "verdict")
    browser.artifact("page", "red-night")
    code, _, said = finish(command("watch", night.id, "--host", night.host), 600)
    assert (code, RED in said) == (3, True), said
