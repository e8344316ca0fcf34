"""The run form: every field on its own, and on top of each other."""

from __future__ import annotations

import pytest

from components.errors import InputError
from components.form import form_values
from components.spec import parse_spec


def test_an_empty_form_is_an_empty_spec() -> None:
    assert form_values() == {}


def test_fields_go_on_top_of_the_spec_text_and_overrides_on_top_of_both() -> None:
    text = "algorithm: fedavg\nrounds: 7\nquorum: 0.5\nhyper: {lr: 0.1, epochs: 2}\n"
    found = form_values("fedprox", "", "", 3, -1, '{"hyper.lr": 0.2, "seed": 9}', text)
    assert found == {"algorithm": "fedprox", "rounds": 3, "quorum": 0.5, "hyper": {"lr": 0.2, "epochs": 2}, "seed": 9}


def test_zero_rounds_and_a_negative_seed_mean_as_in_the_spec() -> None:
    assert form_values(rounds=0, seed=-1, spec="rounds: 4\nseed: 5") == {"rounds": 4, "seed": 5}
    assert form_values(seed=0) == {"seed": 0}


def test_a_data_set_keeps_its_options_unless_it_is_another() -> None:
    text = "dataset: {name: pacs, path: /data, image_size: 96}"
    assert form_values(dataset="pacs", spec=text)["dataset"] == {"name": "pacs", "path": "/data", "image_size": 96}
    assert form_values(dataset="vlcs", spec=text)["dataset"] == {"name": "vlcs"}


@pytest.mark.parametrize(
    "overrides",
    ['{"hyper.lr": 0.01, "rounds": 2}', "hyper: {lr: 0.01}\nrounds: 2", "hyper.lr=0.01\nrounds=2", '{"hyper": {"lr": 0.01}, "rounds": 2}'],
)
def test_ways_to_write_overrides(overrides: str) -> None:
    assert form_values(overrides=overrides) == {"hyper": {"lr": 0.01}, "rounds": 2}


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ({"overrides": "{"}, "overrides: not valid YAML at line"),
        ({"overrides": "- a"}, "overrides: expected a mapping of fields, found a list"),
        ({"overrides": "{}"}, "overrides: expected fields and values"),
        ({"spec": "a: ["}, "spec: not valid YAML"),
        ({"spec": "just words"}, "spec: expected a mapping of fields, found a str"),
        ({"algorithm": "fedavgg"}, "algorithm 'fedavgg': did you mean 'fedavg'?"),
        ({"overrides": "roundz=3"}, "unknown field 'roundz': did you mean 'rounds'?"),
        ({"overrides": "hyper.lr: &a 1\nrounds: *a"}, "an alias"),
    ],
)
def test_what_is_wrong_is_one_line(form: dict[str, str], line: str) -> None:
    with pytest.raises(InputError) as error:
        parse_spec(form_values(**form))  # type: ignore[arg-type]
    assert line in str(error.value)
    assert "\n" not in str(error.value)
