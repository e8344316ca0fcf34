"""Logs of the pods of a run, from whoever has them: the KFP server, its web UI, Argo's archive, or the cluster of the kubeconfig."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from components.errors import InputError, SiloflowError
from pipelines.kfp_client import Api, one_line, printable
from pipelines.kfp_tasks import DONE, FAILED, WAITING, Pod, Task

UNKNOWN = object()
_KLOG = re.compile(r"[IWEF]\d{4} \d\d:")
_LAUNCHER = re.compile(r"[IW]\d{4} \d\d:|\[KFP Executor |time=\"[^\"]*\" level=info .*argo=true")
_ROUND = re.compile(r"siloflow-round (\{.*\})\s*$")
_NUMBERS = ("round", "rounds", "accuracy", "evaluated_round", "validation", "accepted", "missing", "rejected", "seconds")


class Logs:
    """Of one run. What has ended is asked for once; who had a log before is asked first."""

    def __init__(self, api: Api, run: str) -> None:
        self._api, self._run = api, run
        self._sources: list[Callable[[Pod], str | None]] = [self._server, self._interface, self._archive, self._cluster]
        self._final: dict[str, str] = {}
        self._core: Any = UNKNOWN

    def read(self, pod: Pod) -> str | None:
        """None: nobody has it, or not yet."""
        if pod.name in self._final:
            return self._final[pod.name]
        if pod.state == WAITING:
            return None
        for source in self._sources:
            text = source(pod)
            if text:  # of what it may not read, a 2.14 server says 200 and nothing
                self._sources.sort(key=lambda one: one != source)
                if pod.state in (DONE, FAILED):
                    self._final[pod.name] = printable(text)
                return printable(text)
        return None

    def _server(self, pod: Pod) -> str | None:
        """On servers with one user it asks Kubernetes for too much, and gets nothing."""
        return self._asked(self._api, f"/apis/v1alpha1/runs/{self._run}/nodes/{pod.name}/log", {})

    def _interface(self, pod: Pod) -> str | None:
        return self._asked(self._api.interface, "/k8s/pod/logs", {"podname": pod.name, "runid": self._run, "podnamespace": self._api.pods})

    def _archive(self, pod: Pod) -> str | None:
        """What Argo has put away, when the pod had ended."""
        if pod.state not in (DONE, FAILED):
            return None
        try:
            answer = self._api.get(f"/apis/v1beta1/runs/{self._run}/nodes/{pod.node}/artifacts/main-logs:read")
            return base64.b64decode(str(answer.get("data") or "")).decode("utf-8", errors="replace")
        except (SiloflowError, ValueError):
            return None

    def _cluster(self, pod: Pod) -> str | None:
        """With a kubeconfig at hand."""
        from pipelines.kfp_forward import cluster, pod_log

        if self._core is UNKNOWN:
            try:
                self._core = cluster()
            except InputError:
                self._core = None
        return pod_log(self._core, self._api.pods, pod.name) if self._core is not None else None

    def _asked(self, api: Api, path: str, query: dict[str, str]) -> str | None:
        try:
            text = api.text(path, query)
        except SiloflowError:
            return None
        return None if _is_refusal(text) else text


def _is_refusal(text: str) -> bool:
    """Some servers say 200 and then that they have no such log; others answer every path with the page of their UI."""
    if text[:200].lstrip().lower().startswith(("<!doctype", "<html")):
        return True
    return text.rstrip().rpartition("\n")[2].startswith('{"error_message"')


# ---- what is in them


def rounds_in(text: str) -> Iterator[dict[str, Any]]:
    """What the server told after each exchange. Anything else in a log, also a damaged line, is passed over.

    A benchmark plays one federation after another in one log; `series` numbers them.
    """
    series, last, seen = 1, 0.0, set[tuple[float, str]]()
    for line in text.splitlines():
        found = _ROUND.search(line)
        if found is None:
            continue
        try:
            told = json.loads(found[1])
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict) and _is_number(told.get("round")):
            numbers = {name: told[name] if _is_number(told.get(name)) else None for name in _NUMBERS}
            step = (told["round"], one_line(str(told.get("exchange", "")), 20))
            if step[0] < last or step in seen:
                series, seen = series + 1, set()
            last = step[0]
            seen.add(step)
            yield {**numbers, "exchange": step[1], "series": series}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def of_the_step(text: str) -> str:
    """Without what KFP's launcher and Argo write around a step, unless it is an error."""
    kept, block = [], False
    for line in text.splitlines():
        if block:
            block = line != "}"
        elif _LAUNCHER.match(line):
            block = line.endswith(("{", "Got executor_input:"))
        else:
            kept.append(line)
    return "\n".join(kept)


def error_in(text: str) -> str:
    """The line with which a step of ours says why it failed; else the last one that is not the launcher's."""
    lines = [line for line in of_the_step(text).splitlines() if line.strip()]
    ours = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    others = [line for line in lines if not _KLOG.match(line)]
    return one_line((ours or others or lines or [""])[-1])


def failure(tasks: list[Task], logs: Logs) -> tuple[str, str] | None:
    """The task that failed first, and why."""
    for task in sorted((task for task in tasks if task.state == FAILED), key=lambda task: task.ended or task.started):
        for pod in reversed(task.pods):
            if pod.state == FAILED:
                return task.name, error_in(logs.read(pod) or "") or pod.message or "its log is gone"
        return task.name, "no pod of it has failed; was it stopped?"
    return None
