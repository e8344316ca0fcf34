"""The dashboards as data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "helm/siloflow/dashboards"
NAMES = ("federation", "nightly", "silo")


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in NAMES:
        for panel in dashboard(name)["panels"]:
            yield name, panel


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def filled_in(expr: str, window: str) -> str:
    """As Grafana sends it, with All chosen everywhere."""
    return re.sub(r"\$\w+", ".*", expr.replace("$__rate_interval", window).replace("$__range", window))
