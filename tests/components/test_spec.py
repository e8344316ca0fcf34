"""The spec: one line for whatever is wrong with it, one digest for every way of writing it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from components import plan
from components.errors import InputError
from components.federation import Federation, resolve
from components.spec import MAX_SPEC_BYTES, FederationSpec, apply_overrides, parse_spec, read_spec
from tests.federations import values


def refusal(given: Mapping[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        resolve(parse_spec(given))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


# ---- what is wrong, in one line


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"algorithm": "fedcrl"}, "algorithm 'fedcrl': did you mean 'fedccrl'?"),
        ({"algorithm": "magic"}, "algorithm 'magic': expected one of ccst, "),
        ({"dataset": "styled-digit"}, "dataset 'styled-digit': did you mean 'styled-digits'?"),
        ({"dataset": {"name": "imagenet"}}, "dataset 'imagenet': expected one of "),
        ({"backbone": "small-cn"}, "backbone 'small-cn': did you mean 'small-cnn'?"),
        ({"backbone": "transformer-9000"}, "backbone 'transformer-9000': expected one of "),
        ({"target": "papr"}, "target 'papr': did you mean 'paper'?"),
        ({"sources": ["chalks"], "target": "neon"}, "sources 'chalks': did you mean 'chalk'?"),
        ({"sources": ["chalk", "neon"], "target": "neon"}, "target 'neon': is also a source"),
        ({"sources": []}, "sources: none left"),
        ({"round": 3}, "unknown field 'round': did you mean 'rounds'?"),
        ({"dataset": {"name": "folder", "pth": "x"}}, "unknown field 'dataset.pth': did you mean 'path'?"),
        ({"partition": {"rul": "domain"}}, "unknown field 'partition.rul': did you mean 'rule'?"),
        ({"dataset": {}}, "dataset.name: missing"),
        ({"rounds": 0}, "rounds: input should be greater than or equal to 1, found '0'"),
        ({"rounds": 2.5}, "rounds: "),
        ({"rounds": "many"}, "rounds: "),
        ({"quorum": 1.5}, "quorum: input should be less than or equal to 1"),
        ({"quorum": float("nan")}, "quorum: "),
        ({"deadline": float("inf")}, "deadline: input should be a finite number"),
        ({"validation": 1}, "validation: input should be less than 1"),
        ({"seed": -1}, "seed: "),
        ({"device": "tpu"}, "device: input should be 'auto', 'cpu' or 'cuda', found 'tpu'"),
        ({"hyper": 3}, "hyper: "),
        ({"hyper": {"learning_rate": 1}, "algorithm": "fedavg"}, "unknown field 'hyper.learning_rate' of fedavg: "),
        ({"hyper": {"momentun": 0}, "algorithm": "fedprox"}, "unknown field 'hyper.momentun' of fedprox: did you mean 'momentum'?"),
        ({"hyper": {"mu": 1}, "algorithm": "fedavg"}, "unknown field 'hyper.mu' of fedavg: "),
        ({"hyper": {"lr": -0.1}}, "hyper.lr: input should be greater than 0, found '-0.1'"),
        ({"hyper": {"lr": 0}, "algorithm": "csac"}, "hyper.lr: input should be greater than 0, found '0'"),
        ({"hyper": {"lr": float("inf")}}, "hyper.lr: "),
        ({"hyper": {"lr": float("nan")}}, "hyper.lr: "),
        ({"hyper": {"lr": "fast"}}, "hyper.lr: "),
        ({"hyper": {"momentum": 1}, "algorithm": "fedavg"}, "hyper.momentum: input should be less than 1, found '1'"),
        ({"hyper": {"bn_buffers": "melted"}}, "hyper.bn_buffers: input should be 'average', 'pooled', 'local' or 'frozen'"),
        ({"hyper": {"participants": 9}, "algorithm": "fedavg"}, "hyper.participants: 9 silos a round, but the federation has 3"),
        ({"hyper": {"participants": 3, "candidates": 2}, "algorithm": "power-of-choice"}, "hyper.candidates: 2, expected between "),
        ({"hyper": {"participants": 2}, "algorithm": "csac"}, "hyper.participants: csac trains every silo"),
        ({"hyper": {"bn_buffers": "local"}, "algorithm": "csac"}, "hyper.bn_buffers: csac fuses every tensor"),
        ({"hyper": {"bn_buffers": "pooled"}, "algorithm": "csac"}, "hyper.bn_buffers: csac fuses every tensor"),
        ({"sources": ["paper"], "algorithm": "csac"}, "algorithm csac: needs at least 2 silos"),
        ({"sources": ["paper"], "algorithm": "fedccrl"}, "algorithm fedccrl: needs at least 2 silos"),
        ({"hyper": {"participants": 1}, "algorithm": "fedccrl"}, "algorithm fedccrl: needs at least 2 silos"),
        ({"algorithm": "deepall", "store": "s3://store.example/runs"}, "algorithm 'deepall': pools the images of all silos"),
        ({"hyper": {"layers": ["layer4"]}, "algorithm": "mixstyle"}, "hyper.layers: expected stages of small-cnn (layer1, "),
        ({"hyper": {"layers": []}, "algorithm": "mixstyle"}, "hyper.layers: "),
        ({"hyper": {"probabilistic": False}, "algorithm": "fedsr"}, "hyper.alpha_cmi: expected 0 with probabilistic=false"),
        ({"dataset": "folder"}, "dataset.path: folder needs a "),
        ({"dataset": {"name": "styled-digits", "image_size": 64}}, "dataset.image_size: styled-digits does not take it"),
    ],
)  # fmt: skip
def test_refusals_name_the_field_and_what_is_allowed(given: dict[str, Any], expected: str) -> None:
    assert refusal({"target": "pencil", **given}).startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected a mapping of fields, found nothing"),
        (b"- a\n- b\n", "expected a mapping of fields, found a list"),
        (b"just text", "expected a mapping of fields, found a str"),
        (b"1: 2\n", "expected a mapping of fields, found a dict"),
        (b"rounds: [1\nseed: 3", "not valid YAML at line 2"),
        (b"a: !!python/object/apply:os.system ['true']", "not valid YAML at line 1"),
        (b"rounds: \xff", "expected UTF-8 text, found byte 0xff at offset 8"),
        (b"[" * MAX_SPEC_BYTES, "not valid YAML"),
        (b"a: &a [*a]", "not valid YAML"),
        (b"rounds: " + b"1" * 10_000, "not valid YAML"),
        (b"#" * (MAX_SPEC_BYTES + 1), f"{MAX_SPEC_BYTES + 1} bytes, expected at most {MAX_SPEC_BYTES}"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_file_that_is_no_spec(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "spec.yaml").write_bytes(content)
    with pytest.raises(InputError) as caught:
        parse_spec(apply_overrides(read_spec(tmp_path / "spec.yaml"), []))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_spec(path)


# ---- overrides


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rounds=20", {"rounds": 20}),
        ("hyper.lr=1e-3", {"hyper": {"lr": 0.001}}),
        ("hyper.lr=.5", {"hyper": {"lr": 0.5}}),
        ("hyper.milestones=[3, 7]", {"hyper": {"milestones": [3, 7]}}),
        ("hyper.persist_optimizer=true", {"hyper": {"persist_optimizer": True}}),
        ("weights=null", {"weights": None}),
        ("target=a=b", {"target": "a=b"}),
        ("dataset.path=/data/pacs", {"dataset": {"path": "/data/pacs"}}),
        ("target=", {"target": None}),
    ],
)
def test_override(override: str, expected: dict[str, Any]) -> None:
    assert apply_overrides({}, [override]) == expected


def test_overrides_go_on_top_and_leave_the_rest() -> None:
    given = {"dataset": "folder", "hyper": {"lr": 1, "epochs": 2}, "rounds": 3}
    assert apply_overrides(given, ["dataset.path=x", "hyper.lr=0.1", "hyper.lr=0.2"]) == {
        "dataset": {"name": "folder", "path": "x"}, "hyper": {"lr": 0.2, "epochs": 2}, "rounds": 3,
    }  # fmt: skip
    assert given == {"dataset": "folder", "hyper": {"lr": 1, "epochs": 2}, "rounds": 3}


@pytest.mark.parametrize("text", ["rounds", "=3", "", "rounds:3", "rounds=[1"])
def test_an_override_that_is_none(text: str) -> None:
    with pytest.raises(InputError, match="--set") as caught:
        apply_overrides({}, [text])
    assert "\n" not in str(caught.value)


# ---- digest and round trip


def shuffled(value: Any, random: Any) -> Any:
    if isinstance(value, dict):
        items = list(value.items())
        random.shuffle(items)
        return {key: shuffled(inner, random) for key, inner in items}
    return value


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order_of_keys(random: Any) -> None:
    given = {
        "algorithm": "fedprox",
        "hyper": {"mu": 0.1, "lr": 0.01, "epochs": 2},
        "dataset": {"name": "styled-digits"},
        "rounds": 4,
        "target": "neon",
    }
    assert resolve(parse_spec(shuffled(given, random))).digest() == resolve(parse_spec(given)).digest()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"dataset": "styled-digits"}, {"dataset": {"name": "styled-digits"}}, True),
        ({}, {"target": "paper"}, True),
        ({}, {"hyper": {"lambda1": 0.1}}, True),
        ({"hyper": {"lr": 1}}, {"hyper": {"lr": 1.0}}, True),
        ({"hyper": {"milestones": [3]}}, {"hyper": {"milestones": (3,)}}, True),
        ({}, {"target": "neon"}, False),
        ({}, {"hyper": {"lambda1": 0.2}}, False),
        ({}, {"seed": 1}, False),
        ({}, {"rounds": 11}, False),
        ({"algorithm": "fedccrl"}, {"algorithm": "fedccrl-official"}, False),
    ],
)
def test_the_digest_is_that_of_the_meaning(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert (resolve(parse_spec(one)).digest() == resolve(parse_spec(other)).digest()) == same


@pytest.mark.parametrize("algorithm", ["csac", "csac-official", "fedavg", "fedccrl", "fedccrl-official", "fedprox", "power-of-choice"])
def test_a_resolved_spec_survives_yaml_and_json_and_resolves_to_itself(tmp_path: Path, algorithm: str) -> None:
    spec = resolve(parse_spec({"algorithm": algorithm, "hyper": {"lr": 1e-5, "milestones": [3, 7], "weight_decay": 1e-22}}))
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False))
    for again in (parse_spec(read_spec(tmp_path / "spec.yaml")), FederationSpec.model_validate(json.loads(spec.model_dump_json()))):
        assert again.digest() == spec.digest()
        assert resolve(again) == resolve(spec)
        assert resolve(again).digest() == spec.digest()


def test_resolving_fills_in_every_choice() -> None:
    spec = resolve(parse_spec({"algorithm": "fedccrl-official", "hyper": {"lambda1": 0.3}}))
    assert (spec.target, spec.sources) == ("paper", ("pencil", "neon", "chalk"))
    assert (spec.hyper["lambda1"], spec.hyper["lambda2"], spec.hyper["ratio"], spec.hyper["classification"]) == (0.3, 0.1, 0.1, "sum")


@pytest.mark.parametrize(
    "fields", [{}, {"silos_per_domain": 4}, {"partition": {"rule": "lambda", "silos": 7}}, {"store": "file:///exchange"}]
)
def test_a_centralised_reference_is_one_silo_with_all_sources_whatever_the_partition(fields: dict[str, Any]) -> None:
    spec = resolve(parse_spec({"algorithm": "deepall", **fields}))
    federation = Federation(spec, "check", Path())
    assert federation.silos == ["silo-01"]
    assert set(federation.share("silo-01").train) == set(spec.sources or ())
    assert resolve(spec) == spec
    divided = resolve(parse_spec({"algorithm": "fedavg", **fields}))
    assert len(Federation(divided, "check", Path()).silos) == {"silos_per_domain": 12, "partition": 7}.get(next(iter(fields), ""), 3)


# ---- the schema


def test_every_field_of_the_schema_is_described() -> None:
    schema = FederationSpec.model_json_schema()
    for owner in (schema, *schema["$defs"].values()):
        assert owner["additionalProperties"] is False
        for name, field in owner["properties"].items():
            assert len(field.get("description", "")) > 8, name


# ---- a run folder belongs to one spec


def test_the_same_spec_continues_and_another_is_refused_by_field(pictures: Path, tmp_path: Path) -> None:
    def planned(**fields: Any) -> dict[str, Any]:
        return plan.plan(values(pictures, **fields), tmp_path / "run", lambda *_, **__: None)

    first = planned()
    assert planned() == first
    for changed, field in (({"rounds": 9}, "rounds is 2 there, 9 here"), ({"hyper": {"lr": 0.5}}, "hyper.lr is 0.001 there, 0.5 here")):
        with pytest.raises(InputError, match=f"belongs to another spec: {field}"):
            planned(**changed)


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        plan.plan(values(pictures), tmp_path, lambda *_, **__: None)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "fields",
    [{"target": "ash", "sources": ["ash"]}, {"weights": "nowhere.safetensors"}, {"silos_per_domain": 500}, {"algorithm": "fedcrl"}],
)
def test_wrong_input_writes_nothing(pictures: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        plan.plan({**values(pictures), **fields}, tmp_path / "run", lambda *_, **__: None)
    assert list(tmp_path.iterdir()) == []
