"""The page of a benchmark: who is best and by how much, the papers' values beneath, gates and nights; and in a real browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from components.report import LIMIT
from components.report.bench_page import bench_page
from components.report.bench_scores import Scores
from tests.report.browsing import CUT, MEASURE, PAPER, opened

ROOT = Path(__file__).parents[2]
SETTING = {"backbone": "small-cnn", "rounds": 4, "image_size": 32, "optimizer": "adam", "lr": 0.001, "batch_size": 32, "weights": None}
EVIL = '"><img src=x onerror="document.title=1"><script>document.title=2</script>'


def done(algorithm: str, target: str, seed: int, last: float, **changes: Any) -> dict[str, Any]:
    return {
        "bench": "nightly",
        "algorithm": algorithm,
        "target": target,
        "seed": seed,
        "status": "done",
        "error": None,
        "exit_code": 0,
        "exact": False,
        "dataset": "styled-digits",
        "setting": SETTING,
        "accuracy": {"last": last, "best_validation": last - 0.01, "oracle": last + 0.02},
        "validation": 0.9,
        "digest": f"{seed:064x}",
        "spec_digest": "5" * 64,
        "data": "d" * 64,
        "weights": "random",
        "seconds": 12.0,
        "cpu_seconds": 20.0 if algorithm == "fedavg" else 60.0,
        "bytes": {"up": 4_000_000, "down": 5_000_000},
        "commit": "c0ffee",
        "version": "1.0",
        "system": {"python": "3.11", "torch": "2.6", "processor": "some CPU", "cores": "2"},
        "when": "2026-11-17T02:00:00Z",
        **changes,
    }


def failed(algorithm: str, target: str, seed: int, error: str) -> dict[str, Any]:
    return done(algorithm, target, seed, 0.0) | {"status": "failed", "error": error, "exit_code": 3, "accuracy": None}


SCORES = {
    ("fedavg", "paper"): (0.30, 0.34),
    ("fedavg", "neon"): (0.40, 0.44),
    ("fedccrl", "paper"): (0.61, 0.65),
    ("fedccrl", "neon"): (0.50, 0.58),
}
ROWS = [
    *(done(*place, seed, value) for place, values in SCORES.items() for seed, value in enumerate(values)),
    done("csac", "paper", 0, 0.9),
    failed("csac", "neon", 0, "silo ash: missed its deadline of 5 s; look at its log"),
    done("fedavg", "paper", 7, 0.1, exact=True, digest="e" * 64),
]
OTHER = "FedCCRL, Table 1; other setting: backbone mobilenet-v3-large, here small-cnn; rounds 10, here 4"
PUBLISHED = {
    ("fedccrl", "paper"): [("93.8", OTHER)],
    ("fedccrl", None): [("82.5", OTHER), ("70.0 ± 0.3", "Some paper, Table 2; same setting")],
    ("fedavg", None): [("76.9", OTHER)],
}
GATES = [
    {"gate": "speed", "name": "fedavg", "verdict": "passed", "found": "5 s, 1.01 x", "expected": "at most 1.15 x 4.95 s (7 nights)"},
    {"gate": "accuracy", "name": "fedavg/paper", "verdict": "failed", "found": "32.0", "expected": "at least 60.1"},
    {"gate": "exact", "name": "Linux", "verdict": "no baseline", "found": "eeee", "expected": "a golden digest"},
]
NIGHTS = [
    {
        "when": f"2026-11-{day}T02:00:00Z",
        "commit": f"{day}" * 20,
        "version": "1.0",
        "system": {"processor": "some CPU"},
        "exact": "e" * 64,
        "verdict": "passed",
        "cells": {
            "fedavg/paper": {"mean": 0.3 + day / 1000, "error": 0.01, "seeds": 2},
            "fedavg/neon": {"mean": 0.5, "error": 0.01, "seeds": 2},
        },
        "perf": [
            {"name": "fedavg: CPU seconds a round", "unit": "s", "value": 5.0},
            {"name": "fedavg: uploaded a round", "unit": "bytes", "value": 1e6},
        ],
    }
    for day in range(10, 18)
]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    made = tmp_path / "report.html"
    made.write_text(bench_page("nightly", ROWS, PUBLISHED, NIGHTS, GATES), encoding="utf-8")
    return made


def test_the_figures_are_means_over_targets_then_seeds() -> None:
    scores = Scores(ROWS)
    assert scores.targets == ["paper", "neon"]
    assert scores.algorithms == ["fedccrl", "fedavg", "csac"]  # csac lacks a target, so it has no average
    assert scores.average("csac") is None
    cell = scores.cell("fedavg", "paper")
    assert cell is not None and (cell.mean, cell.seeds) == (pytest.approx(0.32), 2)
    assert cell.error == pytest.approx(0.02)  # stdev of .30 and .34 is .0283, over sqrt 2
    gain = scores.gain("fedccrl", "fedavg")
    assert gain is not None and gain.mean == pytest.approx((0.61 + 0.50 - 0.30 - 0.40 + 0.65 + 0.58 - 0.34 - 0.44) / 4)
    assert scores.gain("fedccrl", "fedavg", "oracle") is not None


def test_making_it_loads_no_torch() -> None:
    ask = "import sys, components.report.bench_page; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_page_in_a_browser(page: Path, browser: Browser) -> None:
    assert len(page.read_bytes()) < LIMIT
    with opened(browser, page) as (tab, trouble):
        assert (
            tab.locator(".verdict").inner_text() == "fedccrl gets the most: 58.5 % right on 2 unseen domains, 21.5 points more than fedavg."
        )
        assert (
            "Seed by seed the difference is 21.5 ± 1.0 points: more than two standard errors." in tab.locator(".under").first.inner_text()
        )
        assert tab.locator(".under").first.inner_text().endswith("Not ranked, since targets are missing: csac.")
        figures = {found[0].removeprefix("fig-"): found[1:] for found in tab.evaluate(MEASURE)}
        assert figures.keys() == {"standing", "cost-seconds", "cost-bytes", "trend-accuracy", "trend-seconds"}
        assert all(drawn >= 2 and height > 80 for drawn, _, _, height in figures.values())
        rows = [row.inner_text().split("\t") for row in tab.locator("#table-accuracy-last tbody tr").all()]
        assert rows[0] == ["fedccrl", "63.0 ± 2.0", "54.0 ± 4.0", "58.5 ± 3.0", "2"]
        assert rows[1] == ["FedCCRL, Table 1 other setting a", "93.8", "–", "82.5", ""]
        assert rows[2] == ["Some paper, Table 2 same setting", "–", "–", "70.0 ± 0.3", ""]
        assert rows[3] == ["fedavg", "32.0 ± 2.0", "42.0 ± 2.0", "37.0 ± 2.0", "2"]
        assert tab.locator("#differs-a").inner_text() == "a backbone mobilenet-v3-large, here small-cnn; rounds 10, here 4"
        assert tab.locator("#differs-b").count() == 0
        assert tab.locator("#table-accuracy-oracle .beneath").count() == 0
        assert "not a result" in tab.locator(".sheet", has=tab.locator("#table-accuracy-oracle")).inner_text()
        assert [chip.inner_text() for chip in tab.locator("#table-gates .chip").all()] == ["✗ failed", "? no baseline", "✓ passed"]
        assert tab.locator("#table-nights tbody tr").count() == 8
        assert "missed its deadline" in tab.locator("#table-failed").inner_text()
        assert tab.locator("#missing li").count() == 3
        assert "e" * 64 in tab.locator("#record").inner_text()
        assert trouble == []


def test_sorting_keeps_a_papers_row_beneath_its_algorithm(page: Path, browser: Browser) -> None:
    names = "[...document.querySelectorAll('#table-accuracy-last tbody tr')].map((row) => row.cells[0].firstChild.textContent.trim())"
    papers = ["FedCCRL, Table 1", "Some paper, Table 2"]
    with opened(browser, page) as (tab, trouble):
        assert tab.evaluate(names) == ["fedccrl", *papers, "fedavg", "FedCCRL, Table 1", "csac"]
        tab.locator("#table-accuracy-last thead th").nth(0).locator("button").click()
        assert tab.evaluate(names) == ["csac", "fedavg", "FedCCRL, Table 1", "fedccrl", *papers]
        tab.locator("#table-accuracy-last thead th").nth(1).locator("button").click()
        assert tab.evaluate(names) == ["fedavg", "FedCCRL, Table 1", "fedccrl", *papers, "csac"]
        assert trouble == []


@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_the_screen(width: int, page: Path, browser: Browser) -> None:
    with opened(browser, page, viewport={"width": width, "height": 800}) as (tab, _):
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_on_paper_no_table_is_cut_off(page: Path, browser: Browser) -> None:
    with opened(browser, page, viewport=PAPER) as (tab, _):
        tab.emulate_media(media="print")
        assert tab.evaluate(CUT) == []
        assert tab.locator("#table-gates thead th").first.inner_text() == "gate"


def test_the_essentials_need_no_scripts(page: Path, browser: Browser) -> None:
    with opened(browser, page, java_script_enabled=False) as (tab, _):
        assert tab.locator(".verdict strong").inner_text() == "58.5 %"
        assert all(figure.is_visible() for figure in tab.locator("figure").all())
        assert tab.locator("#table-cells tbody tr").count() == 10


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([failed("fedavg", "paper", 0, "no")], "No algorithm has finished on every target yet."),
        ([done("fedavg", "paper", 0, 0.5)], "fedavg gets 50.0 % right on paper."),
        (
            [done("fedprox", "paper", 0, 0.5), done("csac", "paper", 0, 0.4)],
            "fedprox gets the most: 50.0 % right on paper, 10.0 points more than csac.",
        ),
        (
            [done("fedprox", "paper", 0, 0.5), done("fedavg", "paper", 0, 0.5)],
            "fedprox gets the most: 50.0 % right on paper, the same as fedavg.",
        ),
        (
            [done("fedavg", "paper", 0, 0.5), done("ga", "paper", 0, 0.4)],
            "fedavg gets the most: 50.0 % right on paper, 10.0 points more than ga.",
        ),
    ],
)
def test_what_is_said_of_less(rows: list[dict[str, Any]], says: str, tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "less.html"
    page.write_text(bench_page("less", rows, {}, [], []), encoding="utf-8")
    with opened(browser, page) as (tab, trouble):
        assert tab.locator(".verdict").inner_text() == says
        assert "There is no history" in tab.locator("#nights").inner_text()
        assert "were not asked for" in tab.locator("#gates").inner_text()
        assert trouble == []


def test_seeds_that_do_not_tell_two_apart() -> None:
    rows = [done("ga", "paper", seed, value) for seed, value in enumerate((0.50, 0.60, 0.43))]
    rows += [done("fedavg", "paper", seed, value) for seed, value in enumerate((0.55, 0.45, 0.46))]
    assert "these seeds do not tell the two apart" in bench_page("close", rows, {}, [], [])
    assert "One seed says nothing about chance" in bench_page(
        "one", [done("ga", "paper", 0, 0.5), done("fedavg", "paper", 0, 0.4)], {}, [], []
    )


def test_whatever_is_in_a_row_is_shown_and_not_run(tmp_path: Path, browser: Browser) -> None:
    rows = [
        done(EVIL, EVIL, 0, 0.5, dataset=EVIL, system={EVIL: EVIL}, commit=EVIL, setting=SETTING | {"backbone": EVIL}),
        failed("ga", EVIL, 0, EVIL),
    ]
    gates = [{"gate": EVIL, "name": EVIL, "verdict": EVIL, "found": EVIL, "expected": EVIL}]
    nights = [
        {
            "when": EVIL,
            "commit": EVIL,
            "verdict": EVIL,
            "cells": {f"{EVIL}/{EVIL}": {"mean": 0.5}},
            "perf": [],
            "system": {"processor": EVIL},
        }
    ]
    page = tmp_path / "evil.html"
    page.write_text(bench_page(EVIL, rows, {(EVIL, EVIL): [(EVIL, f"{EVIL}; {EVIL}")]}, nights, gates), encoding="utf-8")
    with opened(browser, page) as (tab, trouble):
        assert tab.locator("img[src=x]").count() == 0
        assert tab.title().startswith("benchmark")
        assert trouble == []
