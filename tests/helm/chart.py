"""The chart as its tests see it: rendered by a real Helm, without a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.minio_server import skip_or_fail

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "siloflow"
FEATURES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
KUBERNETES = "1.35.0"
TWO_SILOS = {"silos": [{"name": "hospital-a"}, {"name": "hospital-b"}]}


@cache
def helm_binary() -> str:
    found = subprocess.run([ROOT / "tests" / "get-helm", "--cached"], capture_output=True, text=True, check=False)
    if found.returncode:
        skip_or_fail(f"CHART TESTS: {found.stderr.strip()}")
    return found.stdout.strip()


def helm(*words: str | Path, input: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm_binary(), *map(str, words)], input=input, capture_output=True, text=True, timeout=60, check=False)


def template(*words: str | Path, values: Any = None, chart: Path = CHART, kubernetes: str = KUBERNETES) -> subprocess.CompletedProcess[str]:
    """`values` is given as a file would be, on top of the ones that `words` name."""
    given = () if values is None else ("-f", "-")
    command = ("template", "siloflow", chart, "--namespace", "fl", "--kube-version", kubernetes, *words, *given)
    return helm(*command, input=json.dumps(values) if given else None)


def values_of(feature: str) -> Path:
    return CHART / "ci" / f"{feature}-values.yaml"


@cache
def rendered(feature: str) -> str:
    answer = template("-f", values_of(feature))
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def found(feature: str, kind: str, name: str | None = None) -> list[dict[str, Any]]:
    return [one for one in objects(rendered(feature)) if one["kind"] == kind and name in (None, one["metadata"]["name"])]


def pods(object: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every pod that the object is or makes, as metadata and spec."""
    spec = object.get("spec", {})
    if object["kind"] == "Pod":
        yield object
    elif object["kind"] == "CronJob":
        yield spec["jobTemplate"]["spec"]["template"]
    elif "template" in spec:
        yield spec["template"]
