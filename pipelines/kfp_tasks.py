"""The tasks of a run, out of the Argo workflow in which Kubeflow Pipelines runs it.

KFP's own list of tasks names no pods, so the workflow is asked for, by the older v1beta1 interface. There a task is a driver pod
(`....silo-step-driver`), then a node of the task's own name, and in it the pods that do the work (`....silo-step.executor`, with
retries `....silo-step.executor(0)` and so on); a loop puts `...(0:0)` before them.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pipelines.kfp_client import Api, NotFoundError, one_line
from pipelines.kfp_package import display_names, mapping, tasks_of

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
MAX_NODES_BYTES = 64 << 20
_STATES = {"Succeeded": DONE, "Skipped": DONE, "Omitted": DONE, "Failed": FAILED, "Error": FAILED, "Running": RUNNING}
_COMMON = ("PodInitializing", "ContainerCreating")  # every pod is that for a moment
_ITEM = re.compile(r".*\((\d+):.*\)")
_WORK = re.compile(r"executor(\(\d+\))?")

Place = tuple[str, tuple[int, ...]]  # a task's name in the pipeline, and the iterations of the loops around it


@dataclass(frozen=True)
class Pod:
    node: str  # id in the workflow
    name: str
    state: str
    started: float
    ended: float | None
    message: str  # what Kubernetes says of it
    driver: bool


@dataclass(frozen=True)
class Task:
    name: str  # as a person calls it: a silo, `server`, `plan`
    silo: bool
    iteration: tuple[int, ...]  # of the loops it is in, the innermost last
    state: str
    started: float
    ended: float | None
    pods: tuple[Pod, ...]  # the driver, then every attempt


def read_tasks(api: Api, run: str, spec: Mapping[str, Any]) -> list[Task]:
    """In the order in which they began."""
    workflow = _workflow(api, run)
    prefix = str(mapping(workflow.get("metadata")).get("name") or "")
    names, silos = display_names(spec), _silo_tasks(spec)
    loops = {name for name, task in tasks_of(spec) if _is_loop(task, spec)}
    pods: dict[Place, list[Pod]] = {}
    own: dict[Place, Mapping[str, Any]] = {}
    for node in map(mapping, _nodes(workflow).values()):
        *path, last = str(node.get("name") or "").removeprefix(f"{prefix}.").split(".")
        around = tuple(int(found[1]) for found in map(_ITEM.fullmatch, path) if found)
        if last in names:
            own[last, around] = node
        elif node.get("type") != "Pod":
            continue
        elif last.removesuffix("-driver") in names:
            pods.setdefault((last.removesuffix("-driver"), around), []).append(_pod(node, prefix, driver=True))
        elif path and path[-1] in names and _WORK.fullmatch(last):
            pods.setdefault((path[-1], around), []).append(_pod(node, prefix, driver=False))
    places = [place for place in {**pods, **own} if place[0] not in loops]
    found = [_task(place, own.get(place, {}), pods.get(place, []), names[place[0]], place[0] in silos) for place in places]
    return sorted(found, key=lambda task: (task.started, task.iteration, task.name))


def silo_names(spec: Mapping[str, Any]) -> list[str]:
    names = display_names(spec)
    return sorted({names[key] for key in _silo_tasks(spec)})


def when(text: Any) -> float | None:
    """Seconds since 1970. The beginning of time, which servers report for what has not happened yet, is never."""
    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    seconds = moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()
    return seconds if seconds > 0 else None


# ---- the pipeline


def _silo_tasks(spec: Mapping[str, Any]) -> set[str]:
    """Tasks that run the component of a silo, whatever the silo is called."""
    return {name for name, task in tasks_of(spec) if str(mapping(task.get("componentRef")).get("name")).startswith("comp-silo")}


def _is_loop(task: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    return "dag" in mapping(mapping(spec.get("components")).get(str(mapping(task.get("componentRef")).get("name"))))


# ---- the workflow


def _workflow(api: Api, run: str) -> Mapping[str, Any]:
    """Empty until Argo has taken the run up, and on servers that speak v1beta1 no more."""
    try:
        runtime = mapping(api.get(f"/apis/v1beta1/runs/{run}").get("pipeline_runtime"))
        return mapping(json.loads(str(runtime.get("workflow_manifest") or "{}")))
    except (NotFoundError, ValueError, RecursionError):
        return {}


def _nodes(workflow: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a large workflow Argo keeps them compressed."""
    status = mapping(workflow.get("status"))
    if not status.get("compressedNodes"):
        return mapping(status.get("nodes"))
    try:
        packed = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        return mapping(json.loads(packed.decompress(base64.b64decode(str(status["compressedNodes"])), MAX_NODES_BYTES)))
    except (ValueError, zlib.error, RecursionError):
        return {}


def _pod(node: Mapping[str, Any], workflow: str, driver: bool) -> Pod:
    """Argo calls it by the workflow, the template and the number at the end of the node's id."""
    identity = str(node.get("id"))
    name = f"{workflow}-{node.get('templateName')}-{identity.rpartition('-')[2]}"
    state = _STATES.get(str(node.get("phase")), WAITING)
    message = one_line(str(node.get("message") or ""), 160)
    message = "" if message in _COMMON else message
    return Pod(identity, name, state, when(node.get("startedAt")) or 0.0, when(node.get("finishedAt")), message, driver)


def _task(place: Place, node: Mapping[str, Any], pods: list[Pod], name: str, silo: bool) -> Task:
    ordered = tuple(sorted(pods, key=lambda pod: (not pod.driver, pod.started)))
    state = _STATES.get(str(node.get("phase")), WAITING)
    if any(pod.driver and pod.state == FAILED for pod in ordered):
        state = FAILED
    elif state == RUNNING and not any(pod.state == RUNNING for pod in ordered if not pod.driver):
        state = WAITING  # for a node with room for its pod
    began = [pod.started for pod in ordered if pod.started] + [started for started in [when(node.get("startedAt"))] if started]
    return Task(name, silo, place[1], state, min(began, default=0.0), when(node.get("finishedAt")), ordered)
