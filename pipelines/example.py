"""The federation that `siloflow run` shows when it is given no spec, and the commented file that `siloflow init` writes."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from components.spec import FederationSpec

EXAMPLE: dict[str, Any] = {
    "algorithm": "fedccrl",
    "hyper": {"epochs": 2},
    "dataset": {"name": "styled-digits"},
    "rounds": 6,
}
HYPER_EXAMPLE: dict[str, Any] = {"lr": 0.001, "epochs": 3, "batch_size": 32}  # every algorithm has these

HEADER = """\
# A federation, for `siloflow run FILE`. Every field is shown; one that you delete takes its default.
# Any of them can be set for one run: siloflow run FILE --set rounds=20 --set hyper.lr=0.01
"""


def commented(values: Mapping[str, Any]) -> str:
    """The spec as YAML with each field's description, choices and default above it, all taken from FederationSpec itself."""
    return HEADER + "".join(_entries(FederationSpec, FederationSpec.model_validate(values), ""))


def _entries(model: type[BaseModel], filled: BaseModel, indent: str) -> list[str]:
    lines: list[str] = []
    for name, field in model.model_fields.items():
        value = getattr(filled, name)
        lines.append(f"\n{indent}# {_meaning(field)}\n" if not indent else f"{indent}# {_meaning(field)}\n")
        if name == "hyper":
            lines.append(f"# for example: hyper: {_flow(HYPER_EXAMPLE)}\n")
        if isinstance(value, BaseModel):
            lines += [f"{indent}{name}:\n", *_entries(type(value), value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {_flow(value)}\n")
    return lines


def _meaning(field: FieldInfo) -> str:
    notes = []
    if choices := _choices(field.annotation):
        notes.append("one of " + ", ".join(choices))
    if field.is_required():
        notes.append("required")
    elif not isinstance(field.default, (BaseModel, dict)):
        notes.append(f"default {_flow(field.default)}")
    return f"{field.description} ({'; '.join(notes)})" if notes else str(field.description)


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [choice for option in get_args(annotation) for choice in _choices(option)]
    return []


def _flow(value: Any) -> str:
    """One line of YAML, without the end-of-document mark that a bare scalar gets."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10_000).removesuffix("\n").removesuffix("\n...")
