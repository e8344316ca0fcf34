"""What the papers print for a method on a data set, and in what its setting is another one than ours.

The values are in published.csv, each with the method and the column as printed; how they were made is in published.yaml.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from fl_algorithms.registry import ALGORITHMS

UNKNOWN = "unknown"  # in published.yaml: neither the paper nor its code says
WORDS = {"selection": {"last": "last round", "best_validation": "best source validation", "oracle": "best on the target"}}


@dataclass(frozen=True)
class Published:
    """One printed value, in percent. Only where nothing `differs` is it comparable."""

    value: float
    error: float | None
    source: str  # "FedCCRL, Table 1"
    differs: tuple[str, ...]  # "backbone mobilenet-v3-large, here mobilenet-v2"


@dataclass(frozen=True)
class Line:
    """A line of published.csv. An empty target is the printed average."""

    table: str
    algorithm: str  # the name in the registry that comes closest
    target: str
    value: str
    error: str
    method: str
    column: str


def lookup(algorithm: str, dataset: str, target: str | None, setting: Mapping[str, Any]) -> list[Published]:
    """What is printed for the same method on the same target (None: the average over targets), one per source, closest setting first.

    `setting` is that of a row of results.jsonl. It may also have `protocol`, `target_subset` and `selection`, else the data set's own,
    all images and the last round are meant; and `hyper`: what was set of the algorithm's hyper-parameters, else nothing was.
    """
    here = {**_facts()["defaults"], **setting, "dataset": dataset}
    here["protocol"] = here["protocol"] or _facts()["own_protocol"].get(dataset)
    here["image_size"] = here.get("image_size") or _facts()["own_size"].get(dataset)
    found = [
        Published(float(line.value), float(line.error) if line.error else None, str(table["source"]), _differences(line, algorithm, here))
        for line in lines()
        if _method(line.algorithm) == _method(algorithm) and line.target == (target or "")
        for table in (_facts()["tables"][line.table],)
        if _family(table["dataset"]) == _family(dataset)
    ]
    closest: dict[str, Published] = {}
    for one in sorted(found, key=lambda one: (_silent(one), len(one.differs), one.source)):
        closest.setdefault(one.source, one)
    return list(closest.values())


@cache
def lines() -> tuple[Line, ...]:
    text = (files("pipelines") / "published.csv").read_text(encoding="utf-8")
    return tuple(Line(**row) for row in csv.DictReader(text.splitlines()))


@cache
def _facts() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((files("pipelines") / "published.yaml").read_text(encoding="utf-8"))
    return loaded


def _method(algorithm: str) -> str:
    for method, others in _facts()["same_method"].items():
        if algorithm in others:
            return str(method)
    return algorithm


def _silent(one: Published) -> bool:
    """What is not known of a setting cannot be close to ours."""
    return any(text.startswith("not printed") for text in one.differs)


def _family(dataset: str) -> str:
    """Folders and lists of a set hold the same images; what they hold out differs, and is named."""
    return dataset.removesuffix("-lists")


# ---- differences


def _differences(line: Line, algorithm: str, here: Mapping[str, Any]) -> tuple[str, ...]:
    table = _facts()["tables"][line.table]
    own = {**table.get("of", {}).get(_method(line.algorithm), {})}
    hyper = {**table.get("hyper", {}), **own.pop("hyper", {})}
    theirs = {"dataset": table["dataset"], **_facts()["defaults"], **table["setting"], **own}
    compared = [field for field in _facts()["fields"] if field in theirs]
    silent = [field for field in compared if theirs[field] == UNKNOWN]
    unlike = [_difference(field, theirs[field], here) for field in compared if field not in silent]
    return (
        *(text for text in unlike if text),
        *_other_hyper(line.algorithm, algorithm, hyper, here),
        *([f"not printed: {', '.join(silent)}"] if silent else []),
    )


def _difference(field: str, theirs: Any, here: Mapping[str, Any]) -> str:
    if field in here and _alike(field, theirs, here[field]):
        return ""
    return f"{field} {_shown(field, theirs)}, here {_shown(field, here[field]) if field in here else 'not recorded'}"


def _alike(field: str, theirs: Any, ours: Any) -> bool:
    if field == "weights" and theirs and ours:  # ours is a file's name, with its ending
        return str(ours).startswith(f"{theirs}.")
    return bool(theirs == ours)


def _shown(field: str, value: Any) -> str:
    if value is None:
        return {"weights": "random", "steps_per_epoch": "one pass"}.get(field, "none")
    return str(WORDS.get(field, {}).get(value, value))


def _other_hyper(theirs: str, ours: str, needed: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Hyper-parameters besides those that are fields of the setting. What neither names is the same default."""
    wanted, had = _hyper(theirs), _hyper(ours)
    wanted, had = {**wanted, **needed}, {**had, **(here.get("hyper") or {})}
    for name in sorted(wanted.keys() | had.keys()):
        if name not in _facts()["fields"] and (name not in wanted or name not in had or wanted[name] != had[name]):
            yield f"{name} {_brief(wanted, name)}, here {_brief(had, name)}"


def _brief(hyper: Mapping[str, Any], name: str) -> str:
    value = hyper.get(name, "as by default")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _hyper(algorithm: str) -> dict[str, Any]:
    return dict(ALGORITHMS[algorithm].defaults) if algorithm in ALGORITHMS else {}
