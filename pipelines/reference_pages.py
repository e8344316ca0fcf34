"""docs/algorithms.md and docs/cli.md, from the registry and the commands themselves: `python -m pipelines.reference_pages` writes them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import typer

from fl_algorithms.registry import ALGORITHMS, Entry
from pipelines.catalogue import declared, exchanges, shown
from pipelines.cli import app

DOCS = Path(__file__).parents[1] / "docs"
BASE = "fedavg"  # every other algorithm has its hyper-parameters as well
WRITTEN = "<!-- Written by `make docs`; a test fails when it is out of date. -->"
ALGORITHMS_HEAD = """\
# Algorithms

What `siloflow algorithms` and `siloflow algorithms NAME` print, on one page. Choose one with `algorithm: NAME` in the spec or
`--set algorithm=NAME`, its hyper-parameters with `hyper.NAME`. A preset is an algorithm with other defaults: the setting that a paper or
its released code uses, or a row of its ablation; it is chosen by its name in the same way.

How to add one: [tutorial-your-own-algorithm.md](tutorial-your-own-algorithm.md). What a word means: [concepts.md](concepts.md)."""
COMMANDS_HEAD = """\
# Commands

What `siloflow --help` and `siloflow COMMAND --help` print, on one page. Results go to stdout, everything else to stderr. How a
command ends, and what to do then: [faq.md](faq.md)."""


def pages() -> dict[Path, str]:
    """Path of each page, and what belongs into it. Loads every algorithm, and with them torch."""
    return {DOCS / "algorithms.md": _algorithms_page(), DOCS / "cli.md": _commands_page()}


def _page(head: str, lines: Iterator[str]) -> str:
    return "\n".join([WRITTEN, "", head, "", *lines]).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[_cell(text) for text in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [list(columns), ["---"] * len(columns), *cells]] + [""]


def _cell(text: str) -> str:
    """A bar would end the cell; outside of code, <name> would be taken for HTML."""
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(parts))


# ---- algorithms


def _algorithms_page() -> str:
    return _page(ALGORITHMS_HEAD, _algorithms())


def _algorithms() -> Iterator[str]:
    families = _families()
    yield from _table(["algorithm", "in a line"], [(f"[`{name}`](#{name})", ALGORITHMS[name].summary) for name in families])
    yield f"`{BASE}` lists the hyper-parameters that every algorithm has; the others list those they add, or whose default they change."
    yield ""
    for name, presets in families.items():
        yield from _algorithm(name, presets)


def _families() -> dict[str, list[str]]:
    """Every algorithm and its presets: the first name of a class in the registry, and the others. `BASE` first, combinations last."""
    first: dict[str, str] = {}
    for name, entry in ALGORITHMS.items():
        first.setdefault(entry.location, name)
    names = sorted(first.values(), key=lambda name: (name != BASE, "+" in ALGORITHMS[name].location, name))
    return {name: [other for other, entry in ALGORITHMS.items() if first[entry.location] == name != other] for name in names}


def _algorithm(name: str, presets: Sequence[str]) -> Iterator[str]:
    entry = ALGORITHMS[name]
    cls = entry.load()
    yield from [f"## {name}", "", " ".join(inspect.cleandoc(cls.__doc__ or "").split()), ""]
    yield f"- **Paper**: {cls.paper}"
    yield f"- **Leaves the silo**: {cls.leaves_silo}"
    yield f"- **Exchanges**: {exchanges(cls, cls.Hyper(**entry.defaults))}"
    yield ""
    rows = _hyper_parameters(entry, None if name == BASE else ALGORITHMS[BASE])
    yield from _table(["hyper-parameter", "default", "allowed", "meaning"], rows) if rows else []
    if presets:
        yield from _table(["preset", "in a line", "differs in"], [_preset(preset, entry) for preset in presets])


def _hyper_parameters(entry: Entry, common: Entry | None) -> list[list[str]]:
    """Of those that `common` has too, only the ones with another default."""
    hints = get_type_hints(entry.load().Hyper, include_extras=True)
    known = _defaults(common) if common is not None else {}
    rows = []
    for name, default in _defaults(entry).items():
        if name in known and known[name] == default:
            continue
        kind, bounds, meaning = declared(hints[name])
        rows.append([f"`{name}`", f"`{shown(default)}`", f"{kind} {bounds}".strip(), meaning])
    return rows


def _defaults(entry: Entry) -> dict[str, Any]:
    return {field.name: entry.defaults.get(field.name, field.default) for field in dataclasses.fields(entry.load().Hyper)}


def _preset(name: str, entry: Entry) -> list[str]:
    before, after = _defaults(entry), _defaults(ALGORITHMS[name])
    differs = [f"`{field}={shown(value)}`" for field, value in after.items() if before[field] != value]
    return [f"`{name}`", ALGORITHMS[name].summary, ", ".join(differs) or "nothing"]


# ---- commands


def _commands_page() -> str:
    return _page(COMMANDS_HEAD, _commands(typer.main.get_command(app)))


def _commands(root: Any) -> Iterator[str]:
    found = dict(_leaves("siloflow", root))
    links = [(f"[`{name}`](#{name.replace(' ', '-')})", _paragraphs(command.help)[0]) for name, command in found.items()]
    yield from _table(["command", "in a line"], links)
    for name, command in found.items():
        yield from _command(name, command)


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """What can be called, by its whole name; groups are not."""
    inner: Mapping[str, Any] | None = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, one in inner.items():
        yield from _leaves(f"{name} {word}", one)


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]
    usage = [f"{'' if one.required else '['}{one.metavar}{'' if one.required else ']'}" for one in arguments]
    yield from [f"## {name}", "", f"`{' '.join([name, *(['[OPTIONS]'] if options else []), *usage])}`", ""]
    yield from (line for paragraph in _paragraphs(command.help) for line in (paragraph, ""))
    rows = [_parameter(one) for one in (*arguments, *options)]
    yield from _table(["name", "default", "meaning"], rows) if rows else []


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n")]


def _parameter(one: Any) -> list[str]:
    is_option = one.param_type_name == "option"
    flag = is_option and one.is_flag
    value = "" if flag else f" {one.metavar or 'VALUE'}"
    name = f"`{', '.join(sorted(one.opts, key=len, reverse=True))}{value}`" if is_option else f"`{one.metavar}`"
    default = "required" if one.required else "" if one.default in (None, False) else f"`{one.default}`"
    return [name, default, " ".join(filter(None, [one.help, _range(one), f"Environment: `{one.envvar}`." if one.envvar else ""]))]


def _range(one: Any) -> str:
    """Where the bounds lie depends on the version of typer."""
    holder = one if hasattr(one, "min") else one.type
    low, high = getattr(holder, "min", None), getattr(holder, "max", None)
    if low is None and high is None:
        return ""
    return f"({low:g} to {high:g})" if None not in (low, high) else f"(at least {low:g})" if low is not None else f"(at most {high:g})"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
