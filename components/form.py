"""The run form of a pipeline as a spec: what a person typed there is checked like the command line, with the same messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from components.errors import InputError
from components.spec import apply_overrides, flat, parse_mapping


def form_values(
    algorithm: str = "", dataset: str = "", target: str = "", rounds: int = 0, seed: int = -1, overrides: str = "", spec: str = ""
) -> dict[str, Any]:
    """The spec text, on top of it the fields that were filled in, on top of these the overrides.

    Empty (for `rounds` 0, for `seed` -1) means: as in the spec text, or the default.
    """
    values = parse_mapping(spec, "spec") if spec.strip() else {}
    if dataset:
        given = values.get("dataset")
        kept = given if isinstance(given, dict) and given.get("name") == dataset else {}
        values["dataset"] = {**kept, "name": dataset}
    filled = {"algorithm": algorithm, "target": target, "rounds": rounds or None, "seed": None if seed < 0 else seed}
    values |= {name: value for name, value in filled.items() if value not in ("", None)}
    return apply_overrides(values, _settings(overrides))


def _settings(text: str) -> list[str]:
    """`{"hyper.lr": 0.01}`, `hyper: {lr: 0.01}` or `hyper.lr=0.01`, as for --set; several of the last kind in lines of their own."""
    if not text.strip():
        return []
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if all("=" in line.partition(":")[0] for line in lines):
        return lines
    mapping: Mapping[str, Any] = parse_mapping(text, "overrides")
    if not mapping:
        raise InputError("overrides: expected fields and values, such as hyper.lr: 0.01, found none; leave the field empty")
    return [f"{name}={json.dumps(value)}" for name, value in flat(dict(mapping)).items()]
