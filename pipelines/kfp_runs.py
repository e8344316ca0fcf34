"""What a person does with Kubeflow Pipelines: a package becomes a version, a version a run, a run has tasks, a task has a log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from components.errors import InputError, SiloflowError
from pipelines.kfp_client import API, Api, NotFoundError
from pipelines.kfp_package import Package, mapping

PAGE = 50
LOOK_BACK = 1000  # runs, when one is asked for by name
OURS = "siloflow-"  # how the names of our pipelines begin
ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# ---- packages


class Version(NamedTuple):
    """A package on the server."""

    pipeline_id: str
    version_id: str
    new: bool


def upload(api: Api, package: Package) -> Version:
    """The same package is never there twice."""
    pipeline, made = _pipeline(api, package)
    found = _version(api, pipeline, package.version)
    if found:
        return Version(pipeline, found, False)
    query = {
        "pipelineid": pipeline,
        "name": package.version,
        "display_name": package.version,
        "description": f"siloflow {package.compiled_by}",
    }
    try:
        answer = api.upload(f"{API}/pipelines/upload_version", query, package.content)
    except SiloflowError as error:
        with suppress(SiloflowError):
            found = _version(api, pipeline, package.version)  # someone was faster with the same package
            if made and not found:
                api.delete(f"{API}/pipelines/{pipeline}")  # nobody needs a pipeline without a version
        if not found:
            raise error from None
        return Version(pipeline, found, False)
    return Version(pipeline, str(answer["pipeline_version_id"]), True)


def _pipeline(api: Api, package: Package) -> tuple[str, bool]:
    found = _find_pipeline(api, package.name)
    if found:
        return found, False
    about = str(package.spec["pipelineInfo"].get("description") or "")
    body = {"display_name": package.name, "description": about, "namespace": api.namespace}
    try:
        return str(api.post(f"{API}/pipelines", {key: value for key, value in body.items() if value})["pipeline_id"]), True
    except InputError:
        found = _find_pipeline(api, package.name)
        if not found:
            raise
        return found, False


def _find_pipeline(api: Api, name: str) -> str:
    query = {"filter": _equals("display_name", name), "namespace": api.namespace, "page_size": PAGE}
    found = [item for item in api.pages(f"{API}/pipelines", "pipelines", query) if name in (item.get("display_name"), item.get("name"))]
    return str(found[0]["pipeline_id"]) if found else ""


def _version(api: Api, pipeline: str, name: str) -> str:
    query = {"filter": _equals("display_name", name), "page_size": PAGE}
    versions = api.pages(f"{API}/pipelines/{pipeline}/versions", "pipeline_versions", query)
    return next((str(item["pipeline_version_id"]) for item in versions if name in (item.get("display_name"), item.get("name"))), "")


def _equals(key: str, value: str) -> str:
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": key, "string_value": value}]})


# ---- runs


def experiment(api: Api, name: str) -> str:
    """The one of this name; made if there is none."""
    query = {"filter": _equals("display_name", name), "namespace": api.namespace, "page_size": PAGE}
    for item in api.pages(f"{API}/experiments", "experiments", query):
        if item.get("display_name") == name and item.get("storage_state") != "ARCHIVED":
            return str(item["experiment_id"])
    body = {"display_name": name, **({"namespace": api.namespace} if api.namespace else {})}
    return str(api.post(f"{API}/experiments", body)["experiment_id"])


def job(name: str, within: str, version: Version, values: Mapping[str, Any], account: str | None) -> dict[str, Any]:
    """What a run and a recurring run have in common."""
    return {
        "display_name": name,
        "experiment_id": within,
        "pipeline_version_reference": {"pipeline_id": version.pipeline_id, "pipeline_version_id": version.version_id},
        "runtime_config": {"parameters": dict(values)},
        **({"service_account": account} if account else {}),
    }


def start(api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    return api.post(f"{API}/runs", body)


def repeat(api: Api, body: Mapping[str, Any], cron: str) -> dict[str, Any]:
    """One at a time, and no runs made up for while the schedule slept."""
    schedule = {"trigger": {"cron_schedule": {"cron": cron}}, "mode": "ENABLE", "max_concurrency": "1", "no_catchup": True}
    return api.post(f"{API}/recurringruns", {**body, **schedule})


def get_run(api: Api, run: str) -> dict[str, Any]:
    try:
        return api.get(f"{API}/runs/{run}")
    except NotFoundError:
        raise NotFoundError(f"run {run}: Kubeflow Pipelines at {api.shown} has no such run; `siloflow runs` lists them") from None


def state_of(run: Mapping[str, Any]) -> str:
    """A 2.14 server calls a run that was cancelled FAILED; its history tells."""
    state = str(run.get("state") or "PENDING")
    passed = [str(mapping(entry).get("state")) for entry in run.get("state_history") or ()]
    return "CANCELED" if state == "FAILED" and "CANCELING" in passed else state


def terminate(api: Api, run: str) -> None:
    api.post(f"{API}/runs/{run}:terminate", {})


def list_runs(api: Api, everyone: bool) -> Iterator[tuple[dict[str, Any], str]]:
    """Newest first, each with the name of its pipeline; without `everyone`, only those of our pipelines."""
    names: dict[str, str] = {}
    query = {"page_size": PAGE, "sort_by": "created_at desc", "namespace": api.namespace}
    for run in api.pages(f"{API}/runs", "runs", query):
        name = _pipeline_of(api, run, names)
        if everyone or name.startswith(OURS) or (not name and _has_our_form(run)):
            yield run, name


def _has_our_form(run: Mapping[str, Any]) -> bool:
    """How a run is known whose pipeline has been deleted."""
    return {"dataset", "rounds", "seed", "overrides", "spec", "run"} <= set(mapping(mapping(run.get("runtime_config")).get("parameters")))


def _pipeline_of(api: Api, run: Mapping[str, Any], names: dict[str, str]) -> str:
    """Empty for runs whose pipeline is gone."""
    identity = str(mapping(run.get("pipeline_version_reference")).get("pipeline_id") or "")
    if not identity:
        return str(mapping(spec_in(mapping(run.get("pipeline_spec"))).get("pipelineInfo")).get("name") or "")
    if identity not in names:
        try:
            names[identity] = str(api.get(f"{API}/pipelines/{identity}").get("display_name") or "")
        except NotFoundError:
            names[identity] = ""
    return names[identity]


def resolve_run(api: Api, text: str) -> str:
    """Id of a run by its id, the beginning of its id, or its name."""
    if _ID.fullmatch(text):
        return text
    found: list[str] = []
    query = {"page_size": PAGE, "sort_by": "created_at desc", "namespace": api.namespace}
    for place, run in enumerate(api.pages(f"{API}/runs", "runs", query)):
        if place >= LOOK_BACK:
            break
        if run.get("display_name") == text or (len(text) >= 4 and str(run.get("run_id")).startswith(text)):
            found.append(str(run["run_id"]))
    if not found:
        raise InputError(f"run {text!r}: Kubeflow Pipelines at {api.shown} has no such run; `siloflow runs` lists them")
    if len(found) > 1:
        raise InputError(f"run {text!r}: {len(found)} runs are called so; give one by its id: {', '.join(found[:3])}")
    return found[0]


def pipeline_spec(api: Api, run: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the run runs; empty if the server has it no more."""
    own = mapping(run.get("pipeline_spec"))
    reference = mapping(run.get("pipeline_version_reference"))
    if not own and reference.get("pipeline_version_id"):
        path = f"{API}/pipelines/{reference.get('pipeline_id')}/versions/{reference['pipeline_version_id']}"
        try:
            own = mapping(api.get(path).get("pipeline_spec"))
        except NotFoundError:
            return {}
    return spec_in(own)


def spec_in(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Servers put the pipeline next to its Kubernetes settings, when it has some."""
    return mapping(found.get("pipeline_spec")) or found
