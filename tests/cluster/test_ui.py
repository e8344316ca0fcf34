"""What a researcher sees in the web interface of Kubeflow Pipelines (KFP_UI), in a real browser. The pictures go to docs/img."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.kfp_client import API
from pipelines.kfp_host import connect
from pipelines.kfp_options import Access
from tests.cluster.pipeline_runs import RunOnCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(5400)]

PICTURES = Path(__file__).parents[2] / "docs" / "img"
FLAGS = (
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
)
PATIENCE = 120_000  # ms; the machine may be busy


class Browser:
    def __init__(self, page: object) -> None:
        self.page, self.home = page, os.environ.get("KFP_UI", "http://127.0.0.1:3000")

    def show(self, path: str, text: str, picture: str | None = None) -> None:
        """Open the page, wait for the text, take a picture."""
        self.page.goto(f"{self.home}/{path}")
        self.page.reload()
        self.page.get_by_text(text).first.wait_for(timeout=PATIENCE)
        if picture:
            self.shot(picture)

    def shot(self, name: str) -> None:
        self.page.wait_for_timeout(4_000)  # the graph settles
        self.page.screenshot(path=PICTURES / f"kfp-{name}.png")

    def artifact(self, name: str, picture: str) -> str:
        """Open the panel of an artifact in the graph and how it is shown; the text that is then on the page."""
        self.page.wait_for_timeout(3_000)
        self.page.get_by_text(name, exact=True).first.click()
        self.page.get_by_text("Visualization", exact=True).first.click(timeout=PATIENCE)
        self.shot(picture)
        return str(self.page.inner_text("body"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=[f"--{flag}" for flag in FLAGS]
        )
        yield Browser(chromium.new_page(viewport={"width": 1400, "height": 900}))
        chromium.close()


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
