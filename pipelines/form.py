"""The run form of the pipelines: its fields, their defaults and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from components import VERSION
from components.spec import FederationSpec, parse_spec

OWN_FIELDS = ("algorithm", "dataset", "target", "rounds", "seed")  # the rest of a spec is in the field `spec`
MEANING = {
    "algorithm": "Algorithm or preset (siloflow algorithms lists them); empty: as in spec",
    "algorithms": "Algorithms or presets, as a list",
    "dataset": "Data set (siloflow datasets lists them); empty: as in spec",
    "target": "The domain that no silo has; empty: as in spec, or the data set's last",
    "targets": "Domains, each in turn the one that no silo has, as a list",
    "rounds": "Communication rounds; 0: as in spec",
    "seed": "Root of every random stream; -1: as in spec",
    "overrides": 'Further fields on top of all others, YAML or JSON, such as {"hyper.lr": 0.01, "quorum": 0.5}',
    "spec": "A spec as YAML text, for what has no field of its own",
    "benchmark": "A benchmark instead of the image's bench/nightly.yaml, as a mapping; empty: that one",
    "baseline": "Its baseline, as `siloflow gate --accept` writes it; empty: the image's bench/baseline.json",
    "run": "Name of the run in the exchange store; empty: KFP's id of the run. The name of an unfinished run continues it",
}


@dataclass(frozen=True)
class Form:
    """Defaults of the fields, from a spec."""

    algorithm: str
    dataset: str
    target: str
    rounds: int
    seed: int
    spec: str
    algorithms: list[str]
    targets: list[str]

    def description(self, kind: str) -> str:
        return f"Cross-silo federated domain generalization, {kind}; compiled by siloflow {VERSION}"


def form_of(values: Mapping[str, Any]) -> Form:
    """Fields of its own for what differs from run to run; the rest of the spec as text."""
    spec: FederationSpec = parse_spec(values)
    rest = {name: value for name, value in values.items() if name not in OWN_FIELDS}
    if isinstance(values.get("dataset"), dict) and len(values["dataset"]) > 1:
        rest["dataset"] = values["dataset"]
    text = yaml.safe_dump(rest, sort_keys=True, default_flow_style=True, width=10**6).strip() if rest else ""
    target = spec.target or ""
    return Form(
        spec.algorithm, spec.dataset.name, target, spec.rounds, spec.seed, text,
        list(dict.fromkeys(["fedavg", spec.algorithm])), [target] if target else [],
    )  # fmt: skip
