"""What each task of a pipeline does. The KFP components only call these, so that they run in a pod, under kfp.local and in a test.

A task that fails for a reason outside this code ends with one line on stderr and an exit code; each is idempotent, so a retry is safe.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from components import layout
from components.errors import DeadlineError, InputError, SiloflowError
from components.form import form_values
from components.manifest import BroadcastManifest
from components.membership import COUNT, NotInvolved, announce, parse_step, planned, steps
from components.plan import finish, round_entry
from components.process import compute_with, keep_freed_memory, log_to_stderr
from components.received import read_broadcast
from components.server import server_step
from components.silo import Role, evaluate_step, silo_step, validate_step
from fl_algorithms.evaluation import count

ROUND_LINE = "siloflow-round"  # what `siloflow submit --watch` looks for in the server's log


@contextmanager
def ending() -> Iterator[None]:
    """Whatever happens inside becomes an exit code and at most one line, as on the command line."""
    log_to_stderr()
    try:
        yield
    except SiloflowError as error:
        _end(str(error), error.exit_code)
    except Exception as error:  # a defect of ours
        traceback.print_exc()
        _end(f"internal: {type(error).__name__}: {error}", SiloflowError.exit_code)


def _end(message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print("error: " + " ".join(message.split("\n")), file=sys.stderr, flush=True)
    raise SystemExit(code)


@contextmanager
def within(seconds: float, who: str) -> Iterator[None]:
    """A step that hangs is ended and named: not every server of pipelines knows timeouts."""

    def ring(*_: object) -> None:
        raise DeadlineError(f"{who}: missed its deadline of {seconds:g} s; raise `deadline`, or give it more cores")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def take_part(store: str, run: str, name: str) -> Role:
    return computing(planned(store, run, name))


def computing(role: Role) -> Role:
    """The role, in a process set up for it; the number of threads is the spec's, or that of the pod's cores."""
    compute_with(role.federation.spec.threads or int(os.environ.get("SILOFLOW_THREADS") or 1))
    keep_freed_memory()
    return role


def take_part_if_involved(store: str, run: str, silo: str) -> Role | None:
    """A pipeline has a task for every silo of the federation; in a run, one may have nothing to do."""
    try:
        return take_part(store, run, silo)
    except NotInvolved as error:
        print(error)
        return None


# ---- one step at a time


def plan_task(store: str, run: str, silos: Sequence[str], form: Sequence[Any], most: int) -> list[str]:
    """Check the form, publish the plan; returns the steps of the run. `most`: steps that the server of pipelines can take in; 0: any."""
    federation = announce(form_values(*form), store, run, silos)
    found = steps(federation)
    if most and len(found) > most:
        raise InputError(
            f"rounds {federation.spec.rounds}: {len(found)} steps for {len(silos)} silos, expected at most {most} in a stepwise run "
            "(Argo keeps a run in an object of 1 MiB); use the resident pipeline, which has no such limit"
        )
    spec = federation.spec
    print(f"run {run}: {spec.algorithm}, target {spec.target}, {len(found)} steps, silos {', '.join(federation.silos)}")
    return found


def silo_task(store: str, run: str, silo: str, step: str) -> None:
    """One step of a silo. Before the first of a round it counts right answers with the model of the round before."""
    role = take_part_if_involved(store, run, silo)
    if role is None:
        return
    federation, (round, exchange) = role.federation, parse_step(step)
    with within(federation.spec.deadline, f"silo {silo}"):
        if exchange == COUNT:
            validate_step(role, round)
            return
        before = federation.step_before(round, exchange)
        if before is not None and before[0] < round and federation.counts(round - 1):
            validate_step(role, round - 1)
        broadcast = read_broadcast(federation, *before) if before is not None else None
        if broadcast is not None and silo not in broadcast.participants:
            print(f"silo {silo}: takes no part in round {round} {exchange}")
            return
        update = silo_step(role, round, exchange)
    print(f"silo {silo}: round {round} {exchange}, {update.samples} images, {_shown(update.metrics)}")


def server_task(store: str, run: str, step: str) -> dict[str, float]:
    """Combine, then count right answers on the target when a round is over; returns numbers to show."""
    role, started = take_part(store, run, layout.SERVER), time.monotonic()
    federation, (round, exchange) = role.federation, parse_step(step)
    with within(federation.spec.deadline, "server"):
        broadcast = server_step(role, round, exchange) if exchange != COUNT else None
        if broadcast is not None and exchange == federation.last_exchange(round) and federation.counts(round):
            evaluate_step(take_part(store, run, layout.EVALUATOR), round)
    told = facts(role, round, exchange, broadcast, started)
    print(line(told), flush=True)
    return {name: float(value) for name, value in told.items() if isinstance(value, (int, float))}


def facts(role: Role, round: int, exchange: str, broadcast: BroadcastManifest | None, started: float) -> dict[str, Any]:
    """How the run stands, for whoever watches it."""
    federation = role.federation
    ended = exchange in (COUNT, federation.last_exchange(round))
    rounds = [round_entry(federation, number) for number in (round if ended else round - 1, round - 1) if number > 0]
    entry = next((one for one in rounds if one["target_accuracy"] is not None), {})
    losses = list(rounds[0]["train_loss"].values()) if rounds else []
    return {
        "run": federation.run, "round": round, "rounds": federation.spec.rounds, "exchange": exchange,
        "evaluated_round": entry.get("round"), "accuracy": entry.get("target_accuracy"),
        "validation": next((one["validation_accuracy"] for one in rounds if one["validation_accuracy"] is not None), None),
        "train_loss": sum(losses) / len(losses) if losses else None, "bytes_up": rounds[0]["bytes"]["up"] if rounds else 0,
        "accepted": len(broadcast.accepted) if broadcast else 0, "missing": len(broadcast.missing) if broadcast else 0,
        "rejected": len(broadcast.rejected) if broadcast else 0, "seconds": float(f"{time.monotonic() - started:.3f}"),
    }  # fmt: skip


def line(told: Mapping[str, Any]) -> str:
    return f"{ROUND_LINE} {json.dumps(told)}"


def _shown(metrics: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if value is not None)


# ---- the end


def evaluate_task(store: str, run: str, model: str) -> dict[str, Any]:
    """The result under the three rules, the model as a file, and which class was taken for which on the target."""
    server = take_part(store, run, layout.SERVER)
    result = finish(server)
    shutil.copyfile(server.federation.folder / "model.safetensors", model)
    role = take_part(store, run, layout.EVALUATOR)
    federation, last = role.federation, role.federation.spec.rounds
    broadcast = read_broadcast(federation, last, federation.last_exchange(last))
    assert broadcast is not None  # `finish` has read it
    predictor = federation.algorithm.predictor(role.received(broadcast, None), federation.device)
    counts = count(predictor, federation.target_samples, confusion=True)
    assert counts.confusion is not None
    print(f"digest {result['digest']}")
    return {
        "model": {name: str(result[name]) for name in ("digest", "spec_digest", "algorithm", "target")},
        "metrics": {**accuracies(result), "rejected_updates": float(len(result["rejected"])), "bytes_up": float(result["bytes"]["up"])},
        "classes": list(federation.data.classes),
        "confusion": counts.confusion.tolist(),
    }


def accuracies(result: Mapping[str, Any]) -> dict[str, float]:
    return {f"accuracy_{rule}": value for rule, value in result["accuracy"].items() if value is not None}


def report_task(store: str, run: str, out: str) -> None:
    from components.report import write_report

    write_report(take_part(store, run, layout.SERVER), Path(out), evaluator=take_part(store, run, layout.EVALUATOR))
