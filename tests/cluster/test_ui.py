"""What a researcher sees in the web interface of Kubeflow Pipelines (KFP_UI), in a real browser. The pictures go to docs/img."""

from __future__ import annotations

import pytest

from pipelines.kfp_client import API
from pipelines.kfp_host import connect
from pipelines.kfp_options import Access
from tests.cluster.browser import Browser
from tests.cluster.pipeline_runs import RunOnCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(5400)]


def test_the_run_form_has_our_fields(fedavg: RunOnCluster, browser: Browser) -> None:
    run = connect(Access(host=fedavg.host)).get(f"{API}/runs/{fedavg.id}")
    version = run["pipeline_version_reference"]
    browser.show(
        f"#/runs/new?experimentId={run['experiment_id']}&pipelineId={version['pipeline_id']}"
        f"&pipelineVersionId={version['pipeline_version_id']}",
        "rounds",
    )
    browser.page.set_viewport_size({"width": 1400, "height": 1440})
    browser.shot("run-form")
    text = browser.page.inner_text("body")
    assert all(field in text for field in ("algorithm", "dataset", "target", "rounds", "seed", "overrides", "spec"))
    browser.page.set_viewport_size({"width": 1400, "height": 900})


def test_the_graph_shows_the_loop(fedavg: RunOnCluster, browser: Browser) -> None:
    browser.show(f"#/runs/details/{fedavg.id}", "report", "run-graph")
    text = browser.page.inner_text("body")
    assert all(task in text for task in ("plan", "step", "evaluate", "report"))


def test_metrics_confusion_matrix_and_report(fedavg: RunOnCluster, browser: Browser) -> None:
    place = f"#/runs/details/{fedavg.id}"
    browser.show(place, "evaluate")
    assert "accuracy_last" in browser.artifact("metrics", "metrics")
    browser.show(place, "evaluate")
    assert "Confusion Matrix" in browser.artifact("confusion", "confusion")
    browser.show(place, "report")
    browser.artifact("page", "report")
    assert [frame for frame in browser.page.frames if "siloflow" in frame.title()]
