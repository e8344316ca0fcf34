"""Runs as a table, and the logs of one run in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from components.errors import InputError
from components.spec import nearest
from pipelines.kfp_client import one_line
from pipelines.kfp_logs import Logs, of_the_step
from pipelines.kfp_package import mapping
from pipelines.kfp_runs import OURS, state_of
from pipelines.kfp_tasks import FAILED, Task, when

SHORT_ID = 8
NO_LOG = "(no log: the pod has not begun or is gone; for one that runs, set KF_PIPELINES_UI_ENDPOINT or KUBECONFIG)"
_STYLES = {"SUCCEEDED": "green", "FAILED": "bold red", "RUNNING": "cyan", "CANCELED": "yellow", "CANCELING": "yellow"}


def about_run(run: Mapping[str, Any], pipeline: str) -> dict[str, Any]:
    values = mapping(mapping(run.get("runtime_config")).get("parameters"))
    return {
        "run_id": str(run.get("run_id") or ""),
        "name": str(run.get("display_name") or ""),
        "state": state_of(run),
        "created_at": run.get("created_at"),
        "pipeline": pipeline,
        "algorithm": values.get("algorithm") or values.get("algorithms"),
        "target": values.get("target") or values.get("targets"),
        "recurring_run_id": run.get("recurring_run_id") or None,
    }


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    drawn = Table(box=SIMPLE_HEAD)
    for name in ("run", "state", "age", "name", "pipeline", "algorithm", "target"):
        drawn.add_column(name, justify="right" if name == "age" else "left", no_wrap=name != "name", overflow="ellipsis")
    for run in found:
        state = Text(run["state"], style=_STYLES.get(run["state"], "dim"))
        words = (one_line(_words(run[field]).removeprefix(OURS), 60) for field in ("name", "pipeline", "algorithm", "target"))
        drawn.add_row(run["run_id"][:SHORT_ID], state, age(run["created_at"]), *words)
    return drawn


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def age(created: Any) -> str:
    """In the largest unit that fits: 45 s, 12 min, 3 h, 9 d."""
    moment = when(created)
    if moment is None:
        return "-"
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def log_texts(tasks: Sequence[Task], silos: Sequence[str], logs: Logs, silo: str | None, task: str | None, raw: bool) -> Iterator[str]:
    """A heading and a text for each pod that has worked."""
    wanted, option = silo or task, "--silo" if silo else "--task"
    known = sorted(set(silos) if silo else {one.name for one in tasks})
    if wanted is not None and wanted not in known:
        raise InputError(f"{option} {wanted}: {nearest(wanted, known) if known else 'the run has no tasks yet; try again'}")
    chosen = [one for one in tasks if (wanted is None or one.name == wanted) and (silo is None or one.silo)]
    for one in chosen:
        place = "".join(f"[{number}]" for number in one.iteration)
        for pod in one.pods:
            if pod.driver and pod.state != FAILED and not raw:
                continue  # what KFP itself has to say matters only where it failed
            text = logs.read(pod)
            yield f"==> {one.name}{place}{' (driver)' if pod.driver else ''}, {pod.state} <=="
            yield NO_LOG if text is None else text.rstrip("\n") if raw or pod.driver else of_the_step(text)
