"""README of every KFP component, from the component itself and its metadata.yaml: `python -m pipelines.component_pages` writes them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

COMPONENTS = Path(__file__).parents[1] / "components"


def pages() -> dict[Path, str]:
    """Path of each README, and what belongs into it."""
    return {path.with_name("README.md"): _page(path) for path in sorted(COMPONENTS.glob("*/metadata.yaml"))}


def _page(metadata: Path) -> str:
    about: dict[str, Any] = yaml.safe_load(metadata.read_text(encoding="utf-8"))
    module = import_module(f"components.{metadata.parent.name}.component")
    needs = ", ".join(f"{one['name']} {one['version']}" for one in about["dependencies"]["kubeflow"])
    head = [
        f"# {about['name']}",
        "",
        about["description"],
        "",
        f"{about['stability'].capitalize()}; needs {needs}. Runs in the product's image.",
        "",
    ]
    return "\n".join(head + [line for name in about["components"] for line in _component(name, getattr(module, name))])


def _component(name: str, component: Any) -> list[str]:
    spec, descriptions = component.component_spec, _descriptions(component)
    lines = [f"## `{name}`", "", str(component.description or "").strip(), "", "| | name | type | |", "|---|---|---|---|"]
    for kind, fields in (("input", spec.inputs or {}), ("output", spec.outputs or {})):
        for field, described in fields.items():
            lines.append(f"| {kind} | `{field}` | {_type(described.type)} | {descriptions.get(field, '')} |")
    return [*lines, ""]


def _type(name: str) -> str:
    return name.removeprefix("system.").partition("@")[0]


def _descriptions(component: Any) -> dict[str, str]:
    """The docstring's `Args`, where KFP itself takes them from."""
    lines = (component.python_func.__doc__ or "").partition("Args:")[2].splitlines()
    return {name.strip(): text.strip() for name, colon, text in (line.partition(":") for line in lines) if colon}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
