"""Logs of the pods of a run, from whoever has them: the KFP server, its web UI, or the cluster of the kubeconfig."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from components.errors import InputError, SiloflowError
from pipelines.kfp_client import Api, one_line, printable
from pipelines.kfp_tasks import DONE, FAILED, WAITING, Pod, Task

UNKNOWN = object()
_ROUND = re.compile(r"siloflow-round (\{.*\})\s*$")
_NUMBERS = ("round", "rounds", "accuracy", "evaluated_round", "validation", "accepted", "missing", "rejected", "seconds")


class Logs:
    """Of one run. What has ended is asked for once."""

    def __init__(self, api: Api, run: str) -> None:
        self._api, self._run = api, run
        self._final: dict[str, str] = {}
        self._core: Any = UNKNOWN

    def read(self, pod: Pod) -> str | None:
        """None: nobody has it, or not yet."""
        if pod.name in self._final:
            return self._final[pod.name]
        text = self._from_server(pod.name)
        if text is None and pod.state != WAITING:
            text = self._from_cluster(pod.name)
        if text is not None and pod.state in (DONE, FAILED):
            self._final[pod.name] = text
        return text

    def _from_server(self, name: str) -> str | None:
        place = {"podname": name, "runid": self._run, "podnamespace": self._api.pods}
        for path, query in ((f"/apis/v1alpha1/runs/{self._run}/nodes/{name}/log", {}), ("/k8s/pod/logs", place)):
            try:
                text = self._api.text(path, query)
            except SiloflowError:
                continue
            if not _is_refusal(text):
                return printable(text)
        return None

    def _from_cluster(self, name: str) -> str | None:
        """With a kubeconfig at hand, for servers that hand out no logs."""
        from pipelines.kfp_forward import cluster, pod_log

        if self._core is UNKNOWN:
            try:
                self._core = cluster()
            except InputError:
                self._core = None
        text = pod_log(self._core, self._api.pods, name) if self._core is not None else None
        return None if text is None else printable(text)


def _is_refusal(text: str) -> bool:
    """Some servers say 200 and then that they have no such log; others answer every path with the page of their UI."""
    beginning = text[:200].lstrip()
    if beginning.lower().startswith(("<!doctype", "<html")):
        return True
    last = text.rstrip().rpartition("\n")[2]
    return last.startswith('{"error_message"')


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


def error_in(text: str) -> str:
    """The line with which a step of ours says why it failed; else the last line that is not of KFP's launcher."""
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("error: ")]
    if ours:
        return one_line(ours[-1].removeprefix("error: "))
    others = [line for line in lines if not re.match(r"[IWEF]\d{4} |time=|\d{4}/\d\d/\d\d ", line)]
    return one_line((others or lines or [""])[-1])


def failure(tasks: list[Task], logs: Logs) -> tuple[str, str] | None:
    """The task that failed first, and why."""
    for task in sorted((task for task in tasks if task.state == FAILED), key=lambda task: task.ended or task.started):
        for pod in reversed(task.pods):
            if pod.state == FAILED:
                return task.name, error_in(logs.read(pod) or "") or pod.message or "its log is gone"
        return task.name, "no pod of it has failed; was it stopped?"
    return None
