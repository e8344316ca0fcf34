"""Algorithms by name: one on top of another."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from components.errors import InputError
from components.federation import resolve_hyper
from fl_algorithms.csac import CSAC
from fl_algorithms.fedavg import FedAvg
from fl_algorithms.fedavgm import FedAvgM
from fl_algorithms.fedprox import FedProx
from fl_algorithms.ga import GA
from fl_algorithms.power_of_choice import PowerOfChoice
from fl_algorithms.registry import ALGORITHMS, Entry
from tests.federations import SMALL_TASK

COMBINED = {name: entry for name, entry in ALGORITHMS.items() if "+" in entry.location}


def test_the_left_one_is_on_top_of_the_right_one() -> None:
    cls = ALGORITHMS["ga-fedprox"].load()
    assert cls.__mro__[1:4] == (GA, FedProx, FedAvg)
    assert cls.__name__ == "GAFedProx"
    assert cls.Hyper.__mro__[1:4] == (GA.Hyper, FedProx.Hyper, FedAvg.Hyper)
    assert ALGORITHMS["ga-fedprox"].load() is cls


def test_exchanges_of_both() -> None:
    cls = Entry("power_of_choice:PowerOfChoice+fedccrl:FedCCRL", "").load()
    assert [exchange.name for exchange in cls(cls.Hyper(), SMALL_TASK).exchanges(0)] == ["join"]
    algorithm = cls(cls.Hyper(), dataclasses.replace(SMALL_TASK, backbone="small-cnn", image_size=16))
    assert [exchange.name for exchange in algorithm.exchanges(1)] == ["loss", "statistics", "train"]


def test_hyper_parameters_of_both_each_with_the_default_of_who_declares_it() -> None:
    hyper = ALGORITHMS["power-of-choice-fedavgm"].load().Hyper()
    assert (hyper.server_momentum, hyper.selector, hyper.weighting) == (0.6, "pow-d", "uniform")
    # CSAC declares its own lr and batch size; power-of-choice only inherits them and must not bring FedAvg's back
    mixed = Entry("power_of_choice:PowerOfChoice+csac:CSAC", "").load().Hyper
    assert (mixed().lr, mixed().batch_size, mixed().weighting) == (CSAC.Hyper().lr, CSAC.Hyper().batch_size, "uniform")
    assert mixed(lr=0.5).lr == 0.5


def test_the_ranges_of_both_are_checked() -> None:
    assert resolve_hyper("ga-fedprox", {"mu": 0.5})["gap_step"] == 0.2
    for given, message in (({"mu": -1}, "hyper.mu"), ({"gap_step": 2}, "hyper.gap_step"), ({"gap_stepp": 1}, "gap_step")):
        with pytest.raises(InputError, match=message):
            resolve_hyper("ga-fedprox", given)


def test_a_combination_says_what_leaves_the_silo_once() -> None:
    cls = Entry("power_of_choice:PowerOfChoice+ga:GA", "").load()
    assert cls.leaves_silo.count(FedAvg.leaves_silo) == 1
    for one in (PowerOfChoice, GA):
        assert one.leaves_silo.removeprefix(FedAvg.leaves_silo) in cls.leaves_silo
        assert one.paper in cls.paper
        assert one.__doc__ is not None
        assert one.__doc__ in cls.__doc__


def own(cls: type, inherited: type) -> set[str]:
    """What a class adds to those it is derived from."""
    fields = typing.get_type_hints(cls) if dataclasses.is_dataclass(cls) else vars(cls)
    known: Any = typing.get_type_hints(inherited) if dataclasses.is_dataclass(inherited) else dir(inherited)
    return {name for name in fields if name not in known and not name.startswith("__")}


@pytest.mark.parametrize("name", COMBINED)
def test_no_two_of_a_combination_mean_different_things_by_one_name(name: str) -> None:
    bases = ALGORITHMS[name].load().__bases__
    for i, first in enumerate(bases):
        for second in bases[i + 1 :]:
            assert not own(first, FedAvg) & own(second, FedAvg)
            assert not own(first.Hyper, FedAvg.Hyper) & own(second.Hyper, FedAvg.Hyper)


def test_three_at_once() -> None:
    cls = Entry("ga:GA+power_of_choice:PowerOfChoice+fedavgm:FedAvgM", "").load()
    assert cls.__mro__[1:4] == (GA, PowerOfChoice, FedAvgM)
    assert {"gap_step", "selector", "server_momentum"} <= {field.name for field in dataclasses.fields(cls.Hyper)}


AUGMENTED = {  # specs/PROTOCOLS.md, section 6: the released code of these settings
    "csac": ["csac-official", "deepall-in-csac", "feddg-in-csac"],
    "fedadg": ["fedadg-official", "fedadg-official-vlcs"],
    "domainbed": ["deepall-in-domainbed", "fediir-officehome", "fediir-official", "fediir-pacs", "fediir-vlcs", "fedsr-official"],
    "ga": ["ga-official"],
    "ccst": ["ccst-officehome", "ccst-official", "deepall-in-ccst"],
}


def test_settings_of_released_code_augment_as_it_does_and_nothing_else_augments() -> None:
    found: dict[str, list[str]] = {}
    for name in sorted(ALGORITHMS):
        found.setdefault(resolve_hyper(name, {})["augment"], []).append(name)
    assert {recipe: names for recipe, names in found.items() if recipe != "none"} == AUGMENTED
    assert {"csac", "fedadg", "fedavg", "fedccrl", "fedccrl-official", "fediir-rotated-mnist", "fedsr", "ga"} <= set(found["none"])
