"""The report in a real browser: nothing fails, nothing is fetched, every figure shows something, tables sort, scripts are optional."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from components.report import LIMIT
from tests.report.browsing import CUT, MEASURE, PAPER, opened

COMMON = {
    "accuracy", "loss", "training", "rounds", "confusion", "confusions", "tsne-class", "tsne-domain", "weights", "drift", "timeline",
}  # fmt: skip
EXPECTED = {
    "fedavg": COMMON,
    "csac": COMMON | {"layers"},
    "fedadg": COMMON | {"reference"},
    "comparison": {"accuracy", "validation", "classes"},
}
PANELS = {"right-on-the-target", "wrong-on-the-target"}  # a model may have answers of one kind only
NAMES = list(EXPECTED)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_fails_nothing_is_fetched_and_every_figure_shows_something(name: str, pages: dict[str, Path], browser: Browser) -> None:
    with opened(browser, pages[name]) as (tab, trouble):
        figures = {found[0].removeprefix("fig-"): found[1:] for found in tab.evaluate(MEASURE)}
        assert trouble == []
    assert EXPECTED[name] <= figures.keys() <= EXPECTED[name] | PANELS
    assert name == "comparison" or figures.keys() & PANELS
    for figure, (drawn, pictures, cells, height) in figures.items():
        assert drawn + pictures + cells >= 2, figure
        assert height > 80, figure


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_one_small_file(name: str, pages: dict[str, Path]) -> None:
    text = pages[name].read_text(encoding="utf-8")
    assert 20_000 < len(text.encode()) < LIMIT
    assert "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", NAMES)
def test_it_fits_the_screen(name: str, width: int, pages: dict[str, Path], browser: Browser) -> None:
    with opened(browser, pages[name], viewport={"width": width, "height": 800}) as (tab, _):
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", NAMES)
def test_on_paper_no_table_is_cut_off(name: str, pages: dict[str, Path], browser: Browser) -> None:
    with opened(browser, pages[name], viewport=PAPER) as (tab, _):
        tab.emulate_media(media="print")
        assert tab.evaluate(CUT) == []


KEYS = "(at) => [...document.querySelectorAll('#table-classes tbody tr')].map((row) => row.cells[at].dataset.k)"


def test_tables_are_sorted_by_their_headings_with_mouse_and_keyboard(pages: dict[str, Path], browser: Browser) -> None:
    with opened(browser, pages["fedavg"]) as (tab, trouble):
        heading = tab.locator("#table-classes thead th").nth(3)
        before = [float(key) for key in tab.evaluate(KEYS, 3)]
        heading.locator("button").click()
        assert [float(key) for key in tab.evaluate(KEYS, 3)] == sorted(before)
        assert heading.get_attribute("aria-sort") == "ascending"
        tab.keyboard.press("Enter")
        assert [float(key) for key in tab.evaluate(KEYS, 3)] == sorted(before, reverse=True)
        assert heading.get_attribute("aria-sort") == "descending"
        names = tab.locator("#table-classes thead th").nth(0)
        names.locator("button").click()
        names.locator("button").click()
        assert tab.evaluate(KEYS, 0) == ["square", "down", "across"]
        assert heading.get_attribute("aria-sort") is None
        unsortable = "[...document.querySelectorAll('table thead th')].filter((head) => !head.querySelector('button')).length"
        assert tab.evaluate(unsortable) == 0
        assert trouble == []


def test_numbers_are_sorted_as_numbers_and_gaps_come_last(pages: dict[str, Path], browser: Browser) -> None:
    """10 comes after 9; a dash is no number."""
    fill = "(keys) => keys.forEach((key, at) => { document.querySelectorAll('#table-classes tbody tr')[at].cells[1].dataset.k = key; })"
    with opened(browser, pages["fedavg"]) as (tab, _):
        tab.evaluate(fill, ["", "10", "9"])
        tab.locator("#table-classes thead th").nth(1).locator("button").click()
        assert tab.evaluate(KEYS, 1) == ["9", "10", ""]


def test_the_essentials_need_no_scripts(pages: dict[str, Path], browser: Browser) -> None:
    with opened(browser, pages["csac"], java_script_enabled=False) as (tab, _):
        assert tab.locator(".verdict strong").inner_text().endswith("%")
        assert [card.inner_text() for card in tab.locator(".card h3").all()] == [
            "Last round",
            "Best source validation",
            "Oracle not a result",
        ]
        assert tab.locator("figure svg path").count() > 50
        assert all(picture.is_visible() for picture in tab.locator("figure").all())
        assert tab.locator("#table-left tbody tr").count() == 3 * 4  # silos x join, acquire, calibrate, validate
        assert "algorithm: csac" in tab.locator("#spec-text").inner_text()
        assert not tab.locator("#theme").is_visible()


def test_light_and_dark_follow_the_system_until_the_reader_chooses(pages: dict[str, Path], browser: Browser) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, pages["fedavg"], color_scheme="light") as (tab, _):
        light = tab.evaluate(colour)
        tab.emulate_media(color_scheme="dark")
        dark = tab.evaluate(colour)
        assert light != dark
        tab.locator("#theme").click()
        assert tab.evaluate(colour) == light
        tab.emulate_media(media="print")
        assert not tab.locator("nav").is_visible() and not tab.locator(".copy").is_visible()
        assert [head.inner_text() for head in tab.locator("#table-rounds th[scope=col]").all()][:2] == ["round", "unseen domain"]


def test_the_spec_is_copied_and_a_legend_dims_the_rest(pages: dict[str, Path], browser: Browser) -> None:
    with opened(browser, pages["fedavg"], permissions=["clipboard-read", "clipboard-write"]) as (tab, trouble):
        tab.locator("button.copy").click()
        tab.locator("button.copy", has_text="Copied").wait_for(timeout=2000)
        assert "algorithm: fedavg" in tab.evaluate("navigator.clipboard.readText()")
        tab.locator("#fig-accuracy .legend li").nth(2).focus()
        assert tab.locator("#fig-accuracy.dimming").count() == 1
        faded = "getComputedStyle(document.querySelector('#fig-accuracy path.target')).opacity < 0.5"
        waited = [tab.wait_for_timeout(50) for _ in range(40) if not tab.evaluate(faded)]
        assert len(waited) < 40
        assert trouble == []


def test_text_of_a_silo_is_shown_and_not_run(site: Path, pages: dict[str, Path], browser: Browser, tmp_path: Path) -> None:
    """What a silo writes into a manifest is quoted in the report: it must stay text."""
    from components.report.gather import gather
    from components.report.look import Insight
    from components.report.page import run_page

    record = gather(site / "runs" / "fedavg")
    evil = '"><img src=x onerror="document.title=1"><script>document.title=2</script>'
    record.notes.append(evil)
    record.broadcasts[-1] = record.broadcasts[-1].model_copy(update={"missing": [evil]})
    record.plan["environment"] = {evil: evil}
    lies = {"began": 1e308, "seconds": {evil: -1e300, "compute": 1e300}, "metrics": {evil: 1e308}, "received_bytes": 10**18}
    record.updates[-1] = record.updates[-1].model_copy(update=lies)
    record.rounds[2].train_loss = {"ash": 1e308, "birch": -1e308, evil: 0.5}
    page = tmp_path / "evil.html"
    page.write_text(run_page(record, Insight(classes=(evil, "b"))), encoding="utf-8")
    with opened(browser, page) as (tab, trouble):
        assert tab.locator("#missing").inner_text().count("onerror") == 1
        assert tab.locator("img[src=x]").count() == 0
        assert tab.title().startswith("fedavg")
        assert trouble == []
