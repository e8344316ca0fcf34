"""docs/tutorial-your-own-algorithm.md is followed in a copy of the product: its files written, its line registered, its commands run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, read_page
from tests.docs.shell import Desk

PAGE = ROOT / "docs" / "tutorial-your-own-algorithm.md"
REGISTRY_LINE = re.compile(r'^    "fedlogit": Entry\(.*\),$', re.MULTILINE)
REGISTRY_HEAD = "ALGORITHMS: dict[str, Entry] = {\n"
COPIED = ("fl_algorithms", "components", "pipelines", "tests")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Desk:
    """A copy of the product that has the page's registry line; its modules are found before the installed ones."""
    folder = tmp_path_factory.mktemp("clone")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    registry = folder / "fl_algorithms" / "registry.py"
    (line,) = REGISTRY_LINE.findall(PAGE.read_text(encoding="utf-8"))
    text = registry.read_text(encoding="utf-8")
    assert text.count(REGISTRY_HEAD) == 1
    registry.write_text(text.replace(REGISTRY_HEAD, f"{REGISTRY_HEAD}{line}\n"), encoding="utf-8")
    return Desk(folder, cache, PYTHONPATH=str(folder))


@pytest.mark.timeout(900)
def test_the_page_can_be_followed_to_a_federation_that_equals_fedavg(clone: Desk) -> None:
    printed = {step.text: clone.follow(step) for step in read_page(PAGE).steps if getattr(step, "mark", None) is None}
    described = printed["siloflow algorithms fedlogit"]
    assert "gamma" in described and "arXiv:1803.06373" in described and "the trained model" in described
    assert any("3 passed" in text for text in printed.values())
    penalised, same = (json.loads((clone.folder / "runs" / name / "result.json").read_text()) for name in ("fedlogit", "same"))
    assert (penalised["algorithm"], same["algorithm"], same["baseline"]["algorithm"]) == ("fedlogit", "fedlogit", "fedavg")
    assert same["digest"] == same["baseline"]["digest"]
    assert penalised["digest"] != same["digest"], "the penalty does something"


def test_contributing_shows_the_same_algorithm() -> None:
    """Its sketch may be shorter; what it says must be lines of the page."""
    sketch = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    page = PAGE.read_text(encoding="utf-8")
    lines = [line.strip() for line in sketch.splitlines() if line.strip()]
    assert len(lines) > 5
    assert [line for line in lines if line not in page] == []
