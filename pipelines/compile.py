"""`siloflow compile`: silos.yaml and a spec become a package for Kubeflow Pipelines. The same input gives the same bytes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

import yaml

from components.errors import InputError
from components.spec import check_name
from pipelines.form import MEANING, Form, form_of
from pipelines.silos import SilosFile

Kind = Literal["stepwise", "resident", "benchmark", "nightly"]
KINDS = ("stepwise", "resident", "benchmark", "nightly")
SERVERS = ("2.14", "2.17")
ARGO_OBJECT = 1 << 20  # bytes: etcd takes no larger one
# Bytes that one more step adds to Argo's object, once Argo has compressed it: for the iteration itself and for each of its tasks.
# A run of four steps with three silos on Argo 3.6 added 5.1 to 8.5 KB a step (tests/cluster/test_pipelines.py prints it); here 7.9.
PER_ITERATION, PER_TASK = 1500, 1600


def most_steps(file: SilosFile, package_bytes: int) -> int:
    """Steps of a stepwise run after which Argo's object would be too large: what is compiled, then so much a step."""
    return max(0, (ARGO_OBJECT - 2 * package_bytes) // (PER_ITERATION + PER_TASK * (len(file.silos) + 1)))


def compiled(file: SilosFile, values: Mapping[str, Any], kind: str, server: str) -> list[Any]:
    """The package: what is to be done, and on what kind of pods."""
    check_name("--pipeline", kind, KINDS)
    check_name("--server", server, SERVERS)
    package = _package(file, form_of(values), kind, server != SERVERS[0])
    if kind == "stepwise":
        most = most_steps(file, len(as_yaml(package)))
        _refuse_too_many(file, values, most)
        package[0]["root"]["dag"]["tasks"]["plan"]["inputs"]["parameters"]["most"]["runtimeValue"]["constant"] = most
    return package


def _refuse_too_many(file: SilosFile, values: Mapping[str, Any], most: int) -> None:
    """Exchanges per round are the algorithm's business; each round has at least one, and joining and counting are steps too."""
    rounds = int(values.get("rounds", 10))
    if rounds + 2 > most:
        raise InputError(
            f"rounds {rounds}: expected at most {max(0, most - 2)} in a stepwise run with {len(file.silos)} silos (Argo keeps a run in an "
            "object of 1 MiB); compile with --pipeline resident, which has no such limit"
        )


def _package(file: SilosFile, form: Form, kind: str, newer: bool) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.protobuf.json_format import MessageToDict

        pipeline = import_module(f"pipelines.{kind}").build(file, form, newer)
        # not KFP's own writer: its header of comments is not valid YAML where a default has several lines
        documents = [tree for tree in map(MessageToDict, (pipeline.pipeline_spec, pipeline.platform_spec)) if tree]
    _describe(documents[0], newer)
    if not newer and len(documents) > 1:
        documents[1] = _without(documents[1], "optional")
    return documents


def _describe(pipeline: dict[str, Any], newer: bool) -> None:
    """What the form says of its fields; newer servers show a list to choose from."""
    from fl_algorithms.data import DATASETS
    from fl_algorithms.registry import ALGORITHMS

    choices = {"algorithm": sorted(ALGORITHMS), "dataset": sorted(DATASETS)}
    for name, field in pipeline["root"]["inputDefinitions"]["parameters"].items():
        field["description"] = MEANING[name]
        if newer and name in choices:
            field["literals"] = choices[name]


def _without(tree: Any, key: str) -> Any:
    """A strict older server refuses fields that it does not know."""
    if isinstance(tree, dict):
        return {name: _without(value, key) for name, value in tree.items() if name != key}
    return [_without(value, key) for value in tree] if isinstance(tree, list) else tree


def as_yaml(documents: list[Any]) -> str:
    return yaml.dump_all(documents, sort_keys=True, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=200)


def as_manifests(package: list[Any], namespace: str | None) -> list[Any]:
    """The package as custom resources Pipeline and PipelineVersion, for servers that keep pipelines in Kubernetes."""
    pipeline, *platform = package
    name, description = pipeline["pipelineInfo"]["name"], pipeline["pipelineInfo"].get("description", "")
    version = f"{name}-{hashlib.sha256(as_yaml(package).encode()).hexdigest()[:12]}"
    where = {"namespace": namespace} if namespace else {}
    common = {"apiVersion": "pipelines.kubeflow.org/v2beta1"}
    spec: dict[str, Any] = {"displayName": version, "description": description, "pipelineName": name, "pipelineSpec": pipeline}
    if platform:
        spec["platformSpec"] = platform[0]
    return [
        {**common, "kind": "Pipeline", "metadata": {"name": name, **where}, "spec": {"displayName": name, "description": description}},
        {**common, "kind": "PipelineVersion", "metadata": {"name": version, **where}, "spec": spec},
    ]
