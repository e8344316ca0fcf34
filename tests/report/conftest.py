"""Small finished runs and a real browser to look at their reports with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from components.report import write_comparison, write_report
from tests.federations import Run, draw_pictures, values
from tests.minio_server import skip_or_fail

# no name is resolved: whatever the page asked a network for would be an error on its console
OFFLINE = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the pictures and runs of three algorithms: one plain, one with weights by layer, one with a reference."""
    root = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(root / "cache"))
        pictures = draw_pictures(root / "pictures")
        hyper = {"fedadg": {"epochs": 1, "classification_epochs": 1}}
        for name in ("fedavg", "csac", "fedadg"):
            Run(values(pictures, name, hyper.get(name)), root / "runs" / name).result()
        yield root


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Path]:
    """The page of each run, and the one that compares them."""
    made = {name: site / f"{name}.html" for name in ("fedavg", "csac", "fedadg", "comparison")}
    for name in ("fedavg", "csac", "fedadg"):
        assert write_report(site / "runs" / name, made[name]) == []
    assert write_comparison([site / "runs" / name for name in ("fedavg", "csac", "fedadg")], made["comparison"]) == []
    return made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = subprocess.run([Path(__file__).parents[1] / "get-chromium", "--cached"], capture_output=True, text=True, check=False)
    if found.returncode:
        skip_or_fail(f"REPORT TESTS: {found.stderr.strip()}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.stdout.strip(), args=OFFLINE)
        yield browser
        browser.close()


Damage = Callable[[str], Path]


@pytest.fixture
def copied(site: Path, tmp_path: Path) -> Damage:
    """A copy of a run's folder, to be damaged."""
    import shutil

    def copy(name: str) -> Path:
        return Path(shutil.copytree(site / "runs" / name, tmp_path / name))

    return copy
