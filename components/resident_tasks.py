"""Tasks that last: a role of whole runs, one after another, with metrics; and the table of several runs at the end."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components import layout, metrics
from components.errors import InputError, SiloflowError
from components.form import form_values
from components.membership import COUNT, announce, checked, read_plan
from components.resident import conclude, evaluator_loop, server_loop, silo_loop
from components.silo import Role
from components.store import open_store
from components.tasks import accuracies, facts, line, take_part, take_part_if_involved


@contextmanager
def measured(role: Role) -> Iterator[Callable[[Any], None]]:
    """What a resident role publishes, as metrics: on SILOFLOW_METRICS_PORT, its outcome to SILOFLOW_PUSHGATEWAY."""
    federation, port = role.federation, os.environ.get("SILOFLOW_METRICS_PORT")
    gateway = os.environ.get("SILOFLOW_PUSHGATEWAY") if role.name == layout.SERVER else None
    recorder = metrics.start(int(port) if port and port.isdecimal() else None, role.name, gateway, "resident")
    try:
        recorder.planned(federation.run, federation.spec, federation.silos)
        yield lambda told: recorder.finished(told) if isinstance(told, dict) else recorder.done(told, federation)
    except SiloflowError as error:
        recorder.failed(error)
        raise
    finally:
        recorder.close()


def play_silo(role: Role, say: Callable[[str], None]) -> None:
    with measured(role) as record:
        for update in silo_loop(role):
            record(update)
            say(f"{role.name}: round {update.round} {update.exchange}")


def play_evaluator(role: Role, say: Callable[[str], None]) -> None:
    with measured(role) as record:
        for counts in evaluator_loop(role):
            record(counts)
            say(f"evaluator: round {counts.round}: {int(counts.metrics['correct'] or 0)} of {int(counts.metrics['total'] or 0)} right")


def play_server(role: Role, say: Callable[[str], None]) -> dict[str, Any]:
    """The result of the run."""
    with measured(role) as record:
        started = time.monotonic()
        for broadcast in server_loop(role):
            record(broadcast)
            say(line(facts(role, broadcast.round, broadcast.exchange, broadcast, started)))
            started = time.monotonic()
        result = conclude(role)
        record(result)
        say(line(facts(role, role.federation.spec.rounds, COUNT, None, started)))
    return result


def silo_runs(store: str, runs: Sequence[str], silo: str) -> None:
    def one(run: str) -> None:
        role = take_part_if_involved(store, run, silo)
        if role is not None:
            play_silo(role, _print)

    _each(runs, one)


def evaluator_runs(store: str, runs: Sequence[str]) -> None:
    _each(runs, lambda run: play_evaluator(take_part(store, run, layout.EVALUATOR), _print))


def server_runs(store: str, runs: Sequence[str]) -> dict[str, float]:
    """Target accuracies of the last run."""
    results: list[dict[str, Any]] = []
    _each(runs, lambda run: results.append(play_server(take_part(store, run, layout.SERVER), _print)))
    return accuracies(results[-1]) if results else {}


def _print(line: str) -> None:
    print(line, flush=True)


def slug(name: object) -> str:
    """For names of runs, which allow less than those of domains."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(name))


def _each(runs: Sequence[str], one: Callable[[str], None]) -> None:
    """One run that fails does not take the others with it; the first reason is the task's, unless some run went well."""
    failed: list[SiloflowError] = []
    for run in runs:
        try:
            one(run)
        except SiloflowError as error:
            print(f"run {run}: {error}", file=sys.stderr, flush=True)
            failed.append(error)
    if failed and len(failed) == len(runs):
        raise failed[0]


def benchmark_task(
    store: str, run: str, silos: Sequence[str], algorithms: Sequence[str], targets: Sequence[str], form: Sequence[Any]
) -> list[str]:
    """Plan a run for each algorithm and target; returns their names. All are checked before the first is published."""
    if not algorithms or not targets:
        raise InputError("algorithms, targets: expected at least one each, found an empty list")
    dataset, rounds, seed, overrides, spec = form
    cells = [(f"{run}-{slug(algorithm)}-{slug(target)}", algorithm, target) for algorithm in algorithms for target in targets]
    values = {name: form_values(str(algorithm), dataset, str(target), rounds, seed, overrides, spec) for name, algorithm, target in cells}
    for one in values.values():
        checked(one, store, silos)
    return [announce(one, store, name, silos).run for name, one in values.items()]


def compare_task(store: str, runs: Sequence[str], out: str) -> dict[str, float]:
    """A table, algorithms down and targets across; a run without a result is a dash."""
    found = {}
    opened = open_store(store, layout.SERVER)
    for run in runs:
        plan, data = read_plan(opened, run), opened.get(layout.GLOBAL, layout.result_key(run))
        if plan is not None:
            cell = plan["spec"]["algorithm"], plan["spec"]["target"]
            found[cell] = None if data is None else json.loads(data)["accuracy"]["last"]
    Path(out).write_text(_table(found), encoding="utf-8")
    return {f"{algorithm} {target}": value for (algorithm, target), value in found.items() if value is not None}


def _table(found: Mapping[tuple[str, str], float | None]) -> str:
    algorithms, targets = (list(dict.fromkeys(cell[place] for cell in found)) for place in (0, 1))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ["algorithm", *targets])
    rows = ""
    for algorithm in algorithms:
        values = [found.get((algorithm, target)) for target in targets]
        cells = "".join(f"<td>{'-' if value is None else f'{100 * value:.1f} %'}</td>" for value in values)
        rows += f"<tr><th>{html.escape(algorithm)}</th>{cells}</tr>"
    style = "body{font:15px system-ui;margin:2em}td,th{padding:.4em 1em;border-bottom:1px solid #ccc;text-align:right}"
    caption = "Accuracy on the unseen domain after the last round"
    return f"<!doctype html><meta charset=utf-8><style>{style}</style><h1>{caption}</h1><table><tr>{head}</tr>{rows}</table>"
