"""What Grafana needs of a dashboard, looked at without Grafana. That every query has data is in test_prometheus."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from components.metrics import METRICS, OUTCOME, PREFIX
from tests.metrics.dashboards import FOLDER, NAMES, dashboard, panels, queries

UNITS = {"none", "percentunit", "s", "Bps", "bytes"}
KINDS = {"stat", "timeseries", "table", "state-timeline"}


def test_these_are_all() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)
    boards = [dashboard(name) for name in NAMES]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_a_place_a_source_and_a_unit(name: str) -> None:
    board = dashboard(name)
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[0] == "datasource"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["type"] in KINDS
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(set(references)) == len(references)
        assert {part["datasource"]["uid"] for part in [panel, *panel["targets"]]} == {"${datasource}"}
        for expr in queries(panel):
            assert set(re.findall(r"\$(\w+)", expr)) <= {*variables, "__rate_interval", "__range"}, expr


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_lies_on_another_or_outside(name: str) -> None:
    places = [panel["gridPos"] for panel in dashboard(name)["panels"]]
    for place in places:
        assert place["x"] >= 0 and place["w"] > 0 and place["h"] > 0 and place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_only_metrics_that_exist_are_asked_for_and_all_of_them_are_shown() -> None:
    asked = {name for _, panel in panels() for expr in queries(panel) for name in re.findall(rf"\b{PREFIX}\w+", expr)}
    known = {PREFIX + name for name in {**METRICS, **OUTCOME}}
    assert {re.sub(r"_(sum|count|bucket)$", "", name) for name in asked} <= known
    not_shown = {"build_info", "run_active", "runs_total", "rounds_total", "deadline_seconds"}  # for rules and for people who ask
    assert known - {re.sub(r"_(sum|count|bucket)$", "", name) for name in asked} == {PREFIX + name for name in not_shown}


def test_shares_are_drawn_from_0_to_1() -> None:
    for _, panel in panels():
        defaults = panel["fieldConfig"]["defaults"]
        if defaults["unit"] == "percentunit" and not any(" - " in expr for expr in queries(panel)):
            assert (defaults["min"], defaults["max"]) == (0, 1), panel["title"]
