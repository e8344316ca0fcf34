"""What can be chosen: algorithms, data sets and networks, described from their own declarations."""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rich.console import Console
from rich.table import Table
from rich.text import Text

from components.errors import InputError
from components.spec import allowed_range, check_name
from fl_algorithms.data import DATASETS, open_dataset
from fl_algorithms.errors import Unusable
from fl_algorithms.registry import ALGORITHMS


def list_names(console: Console, entries: Iterable[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 3))
    for name, summary in entries:
        table.add_row(Text(name, style="cyan", no_wrap=True), summary)
    console.print(table)


# ---- algorithms


def describe_algorithm(console: Console, name: str) -> None:
    """Loads the algorithm, and with it torch."""
    check_name("algorithm", name, ALGORITHMS)
    entry = ALGORITHMS[name]
    cls = entry.load()
    _rows(
        console,
        [
            (name, entry.summary),
            ("paper", cls.paper),
            ("in short", inspect.cleandoc(cls.__doc__ or "")),
            ("leaves the silo", cls.leaves_silo),
            ("exchanges", exchanges(cls, cls.Hyper(**entry.defaults))),
        ],
    )
    table = Table(box=None, padding=(0, 3, 0, 0), title="hyper-parameters, set with --set hyper.NAME=VALUE", title_justify="left")
    table.add_column("name", header_style="dim", style="cyan", no_wrap=True)
    table.add_column("default", header_style="dim", no_wrap=True)
    table.add_column("meaning", header_style="dim")
    hints = get_type_hints(cls.Hyper, include_extras=True)
    for field in dataclasses.fields(cls.Hyper):
        kind, bounds, meaning = declared(hints[field.name])
        allowed = Text(f" ({kind}{' ' if bounds else ''}{bounds})", style="dim")
        table.add_row(field.name, shown(entry.defaults.get(field.name, field.default)), Text.assemble(meaning, allowed))
    console.print()
    console.print(table)


def exchanges(cls: Any, hyper: Any) -> str:
    """Asked of the algorithm itself, for the example's task: names and bytes as they will be on the wire."""
    from fl_algorithms.contract import Task

    algorithm = cls(hyper, Task("small-cnn", 10, 3, 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), domains=3))
    first, later = (", ".join(map(_upload, algorithm.exchanges(round))) for round in (1, 2))
    rounds = f"{first} in every round" if first == later else f"{first} in round 1, then {later}"
    return f"{rounds} (bytes that a silo uploads with small-cnn on 10 classes)"


def _upload(exchange: Any) -> str:
    """`statistics 24 B/row` or `train 399,000 B`."""
    whole = rows = 0
    for shape in exchange.upload.values():
        size = shape.dtype.itemsize * math.prod(length for length in shape.shape if length is not None)
        whole, rows = (whole, rows + size) if None in shape.shape else (whole + size, rows)
    amounts = [f"{whole:,} B" if whole or not rows else "", f"{rows:,} B a row" if rows else ""]
    return f"{exchange.name} {' + '.join(filter(None, amounts))}"


def declared(hint: Any) -> tuple[str, str, str]:
    """Type, range and meaning, from `Annotated[type, bounds..., "meaning"]`."""
    kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return _type_name(kind), allowed_range(hint), next((item for item in metadata if isinstance(item, str)), "")


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " | ".join(map(_type_name, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {_type_name(get_args(kind)[0])}"
    return "null" if kind is type(None) else str(kind.__name__)


def shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(list(value)) if isinstance(value, (list, tuple)) else str(value)


# ---- data sets


def describe_dataset(console: Console, name: str) -> None:
    check_name("dataset", name, DATASETS)
    info = DATASETS[name]
    rows = [(name, info.summary)]
    rows += [(f"dataset.{option}", meaning) for option, meaning in info.options.items()]
    if not info.needs_path:
        try:
            data = open_dataset(name)
        except Unusable as error:
            raise InputError(str(error)) from None
        rows += [("domains", ", ".join(data.domains)), ("classes", f"{len(data.classes)}: {', '.join(data.classes)}")]
        rows += [("images", f"{data.image_size} px, {data.channels} {'channel' if data.channels == 1 else 'channels'}")]
    _rows(console, rows)


def _rows(console: Console, rows: list[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 3))
    for place, (name, value) in enumerate(rows):
        table.add_row(Text(name, style="bold cyan" if place == 0 else "dim", no_wrap=True), value)
    console.print(table)
