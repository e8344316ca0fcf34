"""`siloflow silo`, `siloflow server`, `siloflow evaluator`: one role of a resident run, on any machine that reaches the store.

A role dials out and needs nothing but the store's address and its own keys.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

Address = Annotated[str, typer.Argument(metavar="STORE/RUN", help="Store and name of the run, e.g. s3://store.example:9000/fed/run-1.")]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Where this role's images are; default: SILOFLOW_DATA, or as in the spec.")]
State = Annotated[
    Path | None, typer.Option(metavar="DIR", help="What it keeps between steps; default: SILOFLOW_STATE, or ./siloflow-state.")
]
Patience = Annotated[float, typer.Option("--wait", min=0.0, metavar="SECONDS", help="How long to wait for the run to be planned.")]


def silo(
    address: Address,
    name: Annotated[str, typer.Option(help="Which silo this is.")],
    data: Data = None,
    state: State = None,
    wait: Patience = 3600.0,
) -> None:
    """Take part in a run as one silo, from its first round to its last."""
    _settle(data, state)
    from components.membership import split_address
    from components.resident import wait_to_join
    from components.resident_tasks import play_silo
    from components.tasks import computing

    store, run = split_address(address)
    play_silo(computing(wait_to_join(store, run, name, wait)), _say)
    typer.echo(f"{name}: run {run} is over", err=True)


def evaluator(address: Address, data: Data = None, state: State = None, wait: Patience = 3600.0) -> None:
    """Count right answers on the target domain with the model of every round."""
    _settle(data, state)
    from components.layout import EVALUATOR
    from components.membership import split_address
    from components.resident import wait_to_join
    from components.resident_tasks import play_evaluator
    from components.tasks import computing

    store, run = split_address(address)
    play_evaluator(computing(wait_to_join(store, run, EVALUATOR, wait)), _say)


def server(
    address: Address,
    silos: Annotated[list[str] | None, typer.Option("--silo", metavar="NAME", help="A silo that takes part. Repeatable.")] = None,
    spec: Annotated[Path | None, typer.Option(metavar="FILE", help="The federation, to plan the run; none: it is planned already.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the spec. Repeatable.")] = None,
    data: Data = None,
    state: State = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")] = False,
) -> None:
    """Combine what the silos publish, from the first round to the last. With --spec it plans the run first."""
    _settle(data, state)
    from components.errors import InputError
    from components.layout import SERVER
    from components.membership import announce, split_address
    from components.resident import wait_to_join
    from components.resident_tasks import play_server
    from components.spec import apply_overrides, read_spec
    from components.tasks import computing

    store, run = split_address(address)
    if spec is not None or settings:
        if not silos:
            raise InputError("--silo: expected the names of the silos that take part, found none; give one --silo NAME for each")
        announce(apply_overrides(read_spec(spec) if spec else {}, settings or []), store, run, silos)
    result = play_server(computing(wait_to_join(store, run, SERVER, 0.0)), _say)
    typer.echo(f"server: run {run} is over, target accuracy {result['accuracy']['last']}, model {result['digest']}", err=True)
    if as_json:
        typer.echo(json.dumps(result))


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _settle(data: Path | None, state: Path | None) -> None:
    """Before torch is imported: threads that nobody asked for would be started."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name, value in (("SILOFLOW_DATA", data), ("SILOFLOW_STATE", state)):
        if value is not None:
            os.environ[name] = str(value.absolute())
