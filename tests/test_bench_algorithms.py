"""The benchmark of the algorithms' steps: both sides still run, on pictures that are made up, and do the same work."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path

import pytest
import torch

from bench.algorithms import __main__ as main
from bench.algorithms import digits, femnist, pictures, product, silos
from bench.algorithms.__main__ import ROWS
from bench.algorithms.side import MODULES
from bench.algorithms.table import document
from bench.reference import networks, others, representation
from fl_algorithms.models import build_model


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SILOFLOW_PACS", str(tmp_path / "nowhere"))
    monkeypatch.setattr(pictures, "DOMAINS", {"photo": 5, "cartoon": 1})
    assert pictures.lay_out(tmp_path / "pictures") == "generated"
    return tmp_path / "pictures"


def test_every_row_has_two_sides() -> None:
    for row in set(ROWS) - {"femnist", "fedsr-digits"}:
        name, module = row.replace("-", "_"), importlib.import_module(f"bench.reference.{MODULES[row.partition('-')[0]]}")
        assert callable(getattr(product, name)) and callable(getattr(module, name))


def test_both_sides_of_a_row_take_the_same_images(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert product.feddg(made_up)() == others.feddg(made_up)() == 32
    monkeypatch.setattr(femnist, "WRITERS", 2)
    monkeypatch.setattr(femnist, "PICTURES", 70)
    total = sum(len(labels) for _, labels in femnist.drawn().values())
    assert femnist.product(made_up)() == femnist.reference(made_up)() == total
    assert femnist.stacked(made_up)() == femnist.in_turn(made_up)() == femnist.grouped(made_up)() == 2 * 64
    with torch.random.fork_rng():
        assert representation.fedsr_batch(made_up)() == product.fedsr_batch(made_up)() == 32
        assert (digits.reference(made_up)(), digits.product(made_up)()) == (64, 5 * 64)


def test_a_reference_is_no_smaller_and_no_larger_than_the_product() -> None:
    """Of the networks that both sides of a row train."""
    sizes = {
        "resnet-18": (networks.Split(512, 7), 3), "alexnet": (networks.Wide(7), 3), "mnist-cnn": (networks.Thin(512, 10), 1),
    }  # fmt: skip
    for backbone, (network, channels) in sizes.items():
        classes = 10 if channels == 1 else 7
        ours = build_model(backbone, classes, channels, 224 if channels == 3 else 28)
        own = network.width**2 + network.width if backbone != "resnet-18" else 0  # the reference's hidden or last encoding layer
        assert sum(p.numel() for p in network.parameters()) - own == sum(p.numel() for p in ours.parameters())


def test_two_silos_are_compared_with_the_neighbouring_one_and_with_bare_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that becomes slower all the time, and twice as slow in between, two silos cost what one does."""
    calls: list[int] = []

    def seconds(count: int) -> float:
        calls.append(count)
        return (10.0 + len(calls) / 100) * (2 if len(calls) in (5, 6) else 1)

    monkeypatch.setattr(silos, "slowest_silo", lambda _, count: seconds(count))
    monkeypatch.setattr(silos, "slowest_loop", lambda count: seconds(count) * count)
    found = silos.together(Path(), 3)
    assert calls == [1, 2, 1, 2, 2, 1, 2, 1, 1, 2, 1, 2]
    assert found["ratio"] == pytest.approx(1, abs=0.01) and found["bare_ratio"] == pytest.approx(2, abs=0.02)
    assert len(found["ratios"]) == len(found["bare_ratios"]) == 3


def test_a_bare_loop_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silos, "BARE", silos.BARE.replace("224", "32").replace(f"range({silos.STEPS})", "range(1)"))
    assert 0 < silos.slowest_loop(2) < 60


def test_the_page_names_what_was_not_reached() -> None:
    row = {"row": "fedavg", "step": "an epoch", "reference_ms": 2.0, "product_ms": 1.5, "ratio": 0.75, "reach": 0.7}
    row |= {"reached": False, "machine": "a machine"}
    page = document({"a kind": {"pictures": "PACS", "rows": [row, {**row, "reached": True}]}})
    assert "| an epoch | 2.0 | 1.5 | 0.75 | 0.7, not reached |" in page
    assert "| an epoch | 2.0 | 1.5 | 0.75 | 0.7 |" in page


def test_the_page_says_how_far_a_row_of_convolutions_could_go() -> None:
    row = {"row": "fedadg", "step": "a round", "reference_ms": 100.0, "product_ms": 80.0, "ratio": 0.8, "reach": 0.7}
    row |= {"reached": False, "machine": "a machine"}
    alone = {"forwards_ms": 15.0, "both_ms": 40.0, "direct_forwards_ms": 20.0, "direct_both_ms": 60.0, "direct_speed": 0.9}
    page = document({"a kind": {"pictures": "PACS", "rows": [row], "convolutions": alone}})
    assert "its ratios would be: fedadg 0.50." in page


def test_a_measurement_leaves_other_cpus_and_rows_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(main, "ROOT", tmp_path)
    row = {"row": "fedavg", "step": "an epoch", "reference_ms": 2.0, "product_ms": 1.5, "ratio": 0.75, "reach": 0.8, "reached": True}
    runs = (("one", [row, {**row, "row": "feddg", "step": "mixing"}]), ("other", [row]), ("one", [{**row, "ratio": 0.5}]), ("one", []))
    for number, (kind, rows) in enumerate(runs):
        monkeypatch.setattr(main, "vectors", lambda kind=kind: kind)
        main.write({"pictures": "PACS", "machine": f"run {number}", "rows": copy.deepcopy(rows)})
    kept = json.loads((tmp_path / "docs" / "performance-algorithms.json").read_text())
    assert {kind: [(row["row"], row["ratio"]) for row in found["rows"]] for kind, found in kept.items()} == {
        "one": [("fedavg", 0.5), ("feddg", 0.75)],
        "other": [("fedavg", 0.75)],
    }
    page, summary = ((tmp_path / "docs" / f"{name}.md").read_text() for name in ("performance-algorithms", "performance"))
    assert page.count("\n## ") == 2 and "Rows: run 2; run 0." in page and "Rows: run 1." in page
    assert "| an epoch | 0.5 | 0.75 |" in summary and "one: run 2; run 0; other: run 1." in summary
