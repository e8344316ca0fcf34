"""Checks an object against the types of the Kubernetes API, as the official client has them: no cluster, no download.

Unknown fields, wrong types and missing required fields are told with their path. Kinds that are not Kubernetes' own are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kubernetes import client

_PLAIN: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def known(object: dict[str, Any]) -> bool:
    return hasattr(client, _model_name(object))


def mistakes(object: dict[str, Any]) -> list[str]:
    return list(_compare(object, _model_name(object), object["kind"]))


def _model_name(object: dict[str, Any]) -> str:
    version = object["apiVersion"].rpartition("/")[2]
    return version[0].upper() + version[1:] + object["kind"]


def _compare(value: Any, kind: str, path: str) -> Iterator[str]:
    if value is None or kind == "object":
        return
    if listed := re.fullmatch(r"list\[(.*)\]", kind):
        yield from _of_type(value, list, path) or (
            found for i, item in enumerate(value) for found in _compare(item, listed[1], f"{path}[{i}]")
        )
    elif mapped := re.fullmatch(r"dict\(str, (.*)\)", kind):
        yield from _of_type(value, dict, path) or _entries(value, mapped[1], path)
    elif kind in _PLAIN:
        yield from _of_type(value, _PLAIN[kind], path)
    elif hasattr(getattr(client, kind, None), "openapi_types"):
        yield from _of_type(value, dict, path) or _fields(value, getattr(client, kind), path)


def _entries(value: dict[str, Any], kind: str, path: str) -> Iterator[str]:
    quantities = path.endswith((".requests", ".limits", ".hard"))
    for key, item in value.items():
        yield from () if quantities and isinstance(item, (int, float)) else _compare(item, kind, f"{path}.{key}")


def _fields(value: dict[str, Any], model: Any, path: str) -> Iterator[str]:
    attributes = {name: attribute for attribute, name in model.attribute_map.items()}
    for name, item in value.items():
        if name not in attributes:
            yield f"{path}.{name}: unknown field"
        else:
            yield from _compare(item, model.openapi_types[attributes[name]], f"{path}.{name}")
    try:  # the client's own check of required fields
        model(**{attributes[name]: item for name, item in value.items() if name in attributes})
    except ValueError as error:
        yield f"{path}: {error}"


def _of_type(value: Any, kind: type | tuple[type, ...], path: str) -> list[str]:
    right = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    return [] if right else [f"{path}: expected {kind}, found {value!r}"]
