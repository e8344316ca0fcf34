"""What the figures draw: the numbers they were given, in a bounded number of bytes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from components.report.compare import compare_page
from components.report.figures import MOST_POINTS, Series, confusion_matrix, curves, percent, plain
from components.report.gather import gather
from components.report.record import Record, Round
from components.report.strips import layers, timeline
from components.report.svg import thin, ticks
from components.report.tables import Cell, amount, byte_count, seconds, table, words
from components.report.verdict import compared_with, verdict


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 2.2, [0, 0.5, 1, 1.5, 2, 2.5]),
        (-3.0, 12.0, [-5, 0, 5, 10, 15]),
        (4.0, 4.0, [4, 4.2, 4.4, 4.6, 4.8, 5.0]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_ticks_of_hopeless_numbers() -> None:
    assert len(ticks(float("nan"), float("nan"))) > 1 and len(ticks(0.0, float("inf"))) > 1


def test_thin_keeps_the_ends() -> None:
    assert thin(range(5), 10) == [0, 1, 2, 3, 4]
    assert thin(range(1000), 4) == [0, 333, 666, 999]


def test_a_curve_goes_where_its_numbers_are() -> None:
    drawn = curves("x", "X", "words", [Series("a", [(1, 0.0), (2, 0.5), (3, 1.0)], "c0")], percent, whole=True)
    path = re.search(r'class="ln c0" data-s="a" d="M([^"]+)"', drawn)
    assert path is not None
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]
    (x1, bottom), (x2, middle), (x3, top) = points
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2) and bottom - middle == pytest.approx(middle - top, abs=0.2)
    assert bottom > top
    assert "a, round 2: 50.0 %" in drawn


def test_a_long_run_is_drawn_in_few_points_and_many_silos_are_not_all_drawn() -> None:
    many = [Series(f"silo{i}", [(r, 1.0 / r) for r in range(1, 20_000)], f"c{i % 7}") for i in range(40)]
    drawn = curves("x", "X", "words", many, plain)
    assert len(drawn) < 12 * MOST_POINTS * 20
    assert "The first 12 are drawn, 28 are not." in drawn


def test_the_matrix_says_every_count() -> None:
    counts = np.array([[5, 1], [0, 7]])
    drawn = confusion_matrix("confusion", "words", counts, ["cat", "dog"])
    assert re.findall(r'class="num(?: on)?" text-anchor="middle">(\d+)<', drawn) == ["5", "1", "7"]
    assert "cat, said dog: 1 of 6 (16.7 %)" in drawn


def test_a_matrix_of_many_classes_stays_small() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (126, 126))
    drawn = confusion_matrix("confusion", "words", counts, [str(i) for i in range(126)])
    assert 50_000 < len(drawn) < 600_000


def test_boxes_of_the_timeline_are_as_long_as_the_stages(site: Path) -> None:
    record = gather(site / "runs" / "fedavg")
    for place, broadcast in enumerate(record.broadcasts):
        record.broadcasts[place] = broadcast.model_copy(update={"began": 1000.0 + 10 * place, "seconds": {"check": 4.0, "combine": 2.0}})
    record.updates = []
    drawn = timeline(record)
    assert drawn is not None
    boxes = {
        name: [tuple(map(float, box)) for box in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", path)]
        for path, name in re.findall(r'data-s="[^"]*" d="([^"]*)"><title>([^<]*)</title>', drawn)
    }
    assert boxes.keys() == {"check", "combine"} and len(boxes["check"]) == len(record.broadcasts) == 3
    assert [width for _, width in boxes["check"]] == pytest.approx([2 * width for _, width in boxes["combine"]], abs=0.3)
    starts = [x for x, _ in boxes["check"]]
    assert starts[1] - starts[0] == pytest.approx(2.5 * boxes["check"][0][1], rel=0.01)


def test_runs_before_these_were_recorded_have_no_timeline_and_no_layers(site: Path) -> None:
    record = gather(site / "runs" / "csac")
    assert timeline(record) is not None and layers(record) is not None
    record.updates = [update.model_copy(update={"began": None}) for update in record.updates]
    record.broadcasts = [broadcast.model_copy(update={"began": None}) for broadcast in record.broadcasts]
    for entry in record.rounds.values():
        entry.layer_weights = {}
    assert timeline(record) is None and layers(record) is None


def test_layers_of_a_large_network_over_many_rounds_stay_small() -> None:
    names = [f"body.layer{i}.weight" for i in range(200)]
    record = Record("r")
    for number in range(1, 300):
        weights = {name: {f"silo{k}": 1 / 6 for k in range(6)} for name in names}
        record.rounds[number] = Round(number, weights=dict.fromkeys([f"silo{k}" for k in range(6)], 1 / 6), layer_weights=weights)
    drawn = layers(record)
    assert drawn is not None and 10_000 < len(drawn) < 400_000


def test_tables_escape_words_and_keep_keys_apart_from_what_is_shown() -> None:
    drawn = table("t", ["<a>", "b"], [[words("<x>"), amount(0.5, "50 %", 0.5)], [Cell("<b>y</b>", "y"), amount(None, "")]], numeric=[1])
    assert "&lt;a&gt;" in drawn and "&lt;x&gt;" in drawn and "<b>y</b>" in drawn
    assert 'data-k="0.5" style="--v:0.500">50 %' in drawn and 'data-k="">–<' in drawn


def test_words_for_amounts() -> None:
    assert [byte_count(n) for n in (0, 1500, 2_400_000, 25_000_000)] == ["0", "1.5 kB", "2.40 MB", "25.0 MB"]
    assert [seconds(s) for s in (1.24, 168, 7300)] == ["1.2 s", "2 min 48 s", "2 h 01 min"]


def test_a_run_is_compared_with_fedavg_beside_it_only_on_the_same_federation(site: Path) -> None:
    record = gather(site / "runs" / "csac")
    found = compared_with(record)
    assert found is not None and (found.algorithm, found.where) == ("fedavg", "run fedavg beside it, trained with another optimizer, lr")
    beside = gather(site / "runs" / "fedavg")
    assert beside.result is not None and found.accuracy == beside.result.accuracy
    assert "than fedavg" in verdict(record, 3) or "the same as fedavg" in verdict(record, 3)
    same = {name: beside.spec["hyper"][name] for name in ("optimizer", "lr")}
    record.spec = {**record.spec, "hyper": {**record.spec["hyper"], **same}}
    alike = compared_with(record)
    assert alike is not None and alike.where == "run fedavg beside it"
    for field, value in (("seed", 1), ("rounds", 9), ("validation", 0.5), ("target", "else")):
        record.spec, before = {**record.spec, field: value}, record.spec
        assert compared_with(record) is None
        record.spec = before
    assert compared_with(beside) is None


def test_the_headline_is_never_the_oracle(site: Path) -> None:
    record = gather(site / "runs" / "fedavg")
    assert record.result is not None
    record.result = record.result.model_copy(update={"accuracy": {"last": 0.25, "best_validation": None, "oracle": 0.99}})
    said = verdict(record, 3)
    assert "<strong>25.0 %</strong>" in said and "not a result" in said


def test_a_comparison_says_how_much_the_best_has_over_fedavg(site: Path) -> None:
    records = [gather(site / "runs" / name) for name in ("csac", "fedadg", "fedavg")]
    for record, score in zip(records, (0.5, 0.2, 0.4), strict=True):
        assert record.result is not None
        record.result = record.result.model_copy(update={"accuracy": {"last": score, "best_validation": 0.9, "oracle": 0.9}})
    assert "<strong>50.0 %</strong>, " in compare_page(records) and "10.0 points</span> more than fedavg." in compare_page(records)
    assert "30.0 points</span> more than fedadg." in compare_page(records[:2])
