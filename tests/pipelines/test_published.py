"""The papers' values as data: complete, as printed, and comparable only where nothing of the setting differs."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fl_algorithms.registry import ALGORITHMS
from pipelines.published import Published, lines, lookup

TABLES = Path(__file__).parents[3] / "shared" / "specs" / "TABLES.csv"
FEDCCRL: dict[str, Any] = {
    "image_size": 224, "backbone": "mobilenet-v3-large", "weights": "mobilenet_v3_large-5c1a4163.pth", "rounds": 10, "silos_per_domain": 2,
    "optimizer": "adam", "lr": 1e-3, "batch_size": 32, "epochs": 3, "steps_per_epoch": None, "hyper": {"persist_optimizer": True},
}  # fmt: skip
CSAC: dict[str, Any] = {
    "image_size": None, "backbone": "mnist-cnn", "weights": None, "rounds": 41, "silos_per_domain": 1,
    "optimizer": "sgd", "lr": 0.01, "batch_size": 64, "epochs": 5, "steps_per_epoch": 20, "selection": "oracle",
}  # fmt: skip
FILES = {"fedadg": "000", "csac": "001", "csac-later": "002", "feddann": "003", "fedccrl": "004"}


def only(found: list[Published], source: str) -> Published:
    (one,) = [one for one in found if one.source == source]
    return one


def test_the_same_setting_is_comparable() -> None:
    first = lookup("fedccrl", "pacs", "photo", FEDCCRL)[0]
    assert first == Published(93.83, None, "FedCCRL, Table 1", ())
    assert lookup("fedccrl", "pacs", None, FEDCCRL)[0].value == 82.46
    assert lookup("fedccrl-difp-ra", "minidomainnet", None, FEDCCRL | {"image_size": None, "batch_size": 128})[0].differs == ()


def test_an_oracle_is_comparable_with_an_oracle_only() -> None:
    ours = lookup("csac", "rotated-mnist", "m75", CSAC | {"hyper": {"epochs": 5}})[0]
    assert (ours.value, ours.error, ours.source, ours.differs) == (90.73, 0.25, "CSAC, Table III", ())
    last = lookup("csac", "rotated-mnist", "m75", {field: value for field, value in CSAC.items() if field != "selection"})[0]
    assert last.differs == ("selection best on the target, here last round",)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("backbone", "mobilenet-v2", "backbone mobilenet-v3-large, here mobilenet-v2"),
        ("weights", None, "weights mobilenet_v3_large-5c1a4163, here random"),
        ("weights", "mobilenet_v3_large-8738ca79.pth", "weights mobilenet_v3_large-5c1a4163, here mobilenet_v3_large-8738ca79.pth"),
        ("image_size", 128, "image_size 224, here 128"),
        ("silos_per_domain", 1, "silos_per_domain 2, here 1"),
        ("rounds", 5, "rounds 10, here 5"),
        ("optimizer", "sgd", "optimizer adam, here sgd"),
        ("lr", 0.01, "lr 0.001, here 0.01"),
        ("batch_size", 16, "batch_size 32, here 16"),
        ("epochs", 1, "epochs 3, here 1"),
        ("steps_per_epoch", 20, "steps_per_epoch one pass, here 20"),
        ("selection", "oracle", "selection last round, here best on the target"),
        ("target_subset", "test", "target_subset all, here test"),
        ("hyper", {"persist_optimizer": True, "lambda1": 5}, "lambda1 as by default, here 5"),
        ("hyper", {}, "persist_optimizer True, here as by default"),
    ],
)
def test_each_difference_is_named(field: str, value: Any, says: str) -> None:
    assert lookup("fedccrl", "pacs", "photo", FEDCCRL | {field: value})[0].differs == (says,)


def test_what_was_not_recorded_is_a_difference() -> None:
    assert "rounds 10, here not recorded" in lookup("fedavg", "pacs", "photo", {})[0].differs


def test_one_value_per_paper_closest_first() -> None:
    found = lookup("fedavg", "pacs", "sketch", FEDCCRL | {"weights": None})
    assert found[0].source == "FedCCRL, Table 1"
    assert {one.source: one.value for one in found} == {"FedCCRL, Table 1": 71.62, "CSAC, Table I": 81.19, "FedADG, Table 5": 60.52}
    resnet = lookup("fedavg", "pacs", "sketch", FEDCCRL | {"backbone": "resnet-18"})
    assert only(resnet, "FedADG, Table 5").value == 70.51  # of the two networks in that table
    assert all(one.differs for one in resnet)


def test_a_preset_is_its_method_with_other_hyper_parameters() -> None:
    assert lookup("ga-in-fedccrl", "pacs", "photo", FEDCCRL)[0].differs == ()
    assert any(text.startswith("gap_step") for text in lookup("ga", "pacs", "photo", FEDCCRL)[0].differs)
    assert {one.value for one in lookup("fedcmi", "pacs", "photo", FEDCCRL)} == {92.8}  # an ablation is a method of its own


def test_lists_and_folders_of_a_set_differ_in_what_they_hold_out() -> None:
    assert any(text == "dataset pacs-lists, here pacs" for text in only(lookup("feddg", "pacs", None, {}), "FedADG, Table 5").differs)


def test_a_variant_of_a_data_set_is_a_difference() -> None:
    found = lookup("fedavg", "femnist", "r15", {"protocol": "rotated-all"})
    assert found[0].source == "FedDANN, Table 4"
    assert "protocol rotated-1000, here rotated-all" in only(found, "FedDANN, Table 3").differs
    assert "protocol csac, here domainbed" in lookup("csac", "rotated-mnist", "m0", CSAC | {"protocol": "domainbed"})[0].differs


@pytest.mark.parametrize(
    ("algorithm", "dataset", "target"),
    [("no-such", "pacs", "photo"), ("fedavg", "no-such", None), ("fedavg", "pacs", "m0"), ("fedavg", "rotated-digits", None)],
)
def test_what_no_paper_has_is_an_empty_list(algorithm: str, dataset: str, target: str | None) -> None:
    assert lookup(algorithm, dataset, target, FEDCCRL) == []


def test_every_line_can_be_found() -> None:
    found = {(line.table, line.algorithm, line.target) for line in lines()}
    assert len(found) == len(lines()) == 605
    assert {line.algorithm for line in lines()} <= set(ALGORITHMS)
    assert all(0 < float(line.value) <= 100 for line in lines())
    assert Counter(line.table.split("-")[0] for line in lines()) == {"fedadg": 95, "csac": 241, "feddann": 116, "fedccrl": 153}


@pytest.mark.skipif(not TABLES.exists(), reason="the papers' tables are not beside this repository")
def test_every_value_is_as_printed() -> None:
    printed: dict[tuple[str, str, str], set[tuple[float, str]]] = {}
    for row in csv.DictReader(TABLES.open(encoding="utf-8")):
        key = (row["source_file"][:3], row["method"], row["column"])
        printed.setdefault(key, set()).add((round(float(row["value"]) * (100 if key[0] == "003" else 1), 6), row["std"]))
    for line in lines():
        paper = "csac-later" if line.table.startswith("csac-later") else line.table.split("-")[0]
        assert (round(float(line.value), 6), line.error) in printed[FILES[paper], line.method, line.column], line
