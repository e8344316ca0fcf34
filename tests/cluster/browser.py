"""The web interface of Kubeflow Pipelines (KFP_UI) in a real browser. Its pictures go to docs/img."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def opened() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=[f"--{flag}" for flag in FLAGS]
        )
        yield Browser(chromium.new_page(viewport={"width": 1400, "height": 900}))
        chromium.close()
