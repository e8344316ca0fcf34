"""Links between pages, to files and to headings lead somewhere; the index knows every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "helm/siloflow/README.md", ROOT / "images/README.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, without punctuation, a dash for each space."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), link
        assert ROOT in found.parents or found == ROOT, f"{link}: not in the repository"
        assert not anchor or anchor in anchors(found), link


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {link for link in LINK.findall(prose(index)) if link.endswith(".md")}
    assert {f"{page.name}" for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


def test_anchors_are_those_of_github() -> None:
    assert "exit-code-4-the-store-or-the-server-is-not-there-or-refuses" in anchors(ROOT / "docs" / "faq.md")
    assert "siloflow-data-check" in anchors(ROOT / "docs" / "cli.md")
