"""The table of values in the chart's README, from the comments of values.yaml. `python -m tests.helm.readme` writes it again."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.helm.chart import CHART

PAGE = CHART / "README.md"
BEGIN, END = "<!-- python -m tests.helm.readme -->\n", "<!-- end -->\n"


def rows() -> list[tuple[str, str, str]]:
    """(value, default, meaning) in the order of the file; a value without a comment of its own is a KeyError."""
    described = _comments()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return [(path, json.dumps(_at(values, path)), meaning) for path, meaning in described.items()]


def _comments() -> dict[str, str]:
    found: dict[str, str] = {}
    parents: list[str] = []
    comment = ""
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        depth = (len(line) - len(line.lstrip())) // 2
        if text.startswith("# -- "):
            comment = text.removeprefix("# -- ")
        elif text and not text.startswith("#"):
            parents = [*parents[:depth], text.partition(":")[0]]
            if comment:
                found[".".join(parents)] = comment
            comment = ""
    return found


def _at(values: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def leaves(values: Any, path: str = "") -> list[str]:
    """Every value that has no further ones below; a mapping with a comment of its own counts as one."""
    described = _comments()
    if isinstance(values, dict) and values and path not in described:
        return [leaf for key, value in values.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))]
    return [path]


def table() -> str:
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, meaning in rows():
        lines.append(f"| `{path}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
