"""`siloflow submit | watch | runs | logs | cancel`: packages and runs on Kubeflow Pipelines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from components.errors import InputError
from pipelines.kfp_options import Access, with_access

if TYPE_CHECKING:
    from pipelines.kfp_client import Api
    from pipelines.kfp_package import Package

WIDE = 200  # columns of a table that nobody looks at
Run = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, its beginning, or its name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; everything else goes to stderr.")]


def register(app: typer.Typer) -> None:
    for command in (submit, watch, runs, logs, cancel):
        app.command()(with_access(command))


def submit(
    access: Access,
    package: Annotated[Path, typer.Argument(metavar="PACKAGE", help="What `siloflow compile` wrote.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Fill in the run form, e.g. rounds=20, hyper.lr=0.01. Repeatable."),
    ] = None,
    spec: Annotated[Path | None, typer.Option(metavar="FILE", help="A spec in YAML, for the form's field `spec`.")] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="Name of the run. Default: <algorithm>-<target>-<time>.")] = None,
    experiment: Annotated[str | None, typer.Option(metavar="NAME", help="Group of runs; made if there is none. Default: siloflow.")] = None,
    service_account: Annotated[str | None, typer.Option(metavar="NAME", help="Kubernetes service account of the run's pods.")] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Run again and again, e.g. '0 3 * * *', in the server's time zone.")
    ] = None,
    stay: Annotated[bool, typer.Option("--watch", help="Show the rounds until the run ends; exit code 3 if it fails.")] = False,
    upload_only: Annotated[bool, typer.Option("--upload-only", help="Upload the package and start nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a package (a new version, if its pipeline is there) and start a run of it, now or by the calendar."""
    from pipelines import kfp_package, kfp_runs
    from pipelines.kfp_host import connect

    read = kfp_package.read_package(package)
    values = kfp_package.parameters(read, settings or [], spec)
    schedule = _schedule(cron, stay, values)
    for warning in kfp_package.warnings(read, recurring=cron is not None):
        typer.secho(f"warning: {warning}", fg=typer.colors.YELLOW, err=True)
    api = connect(access)
    version = kfp_runs.upload(api, read)
    typer.echo(f"pipeline {read.name}, version {read.version}{'' if version.new else ' (there already)'}", err=True)
    if upload_only:
        _said({"pipeline": read.name, "version": read.version, **version._asdict()}, as_json, None)
        return
    within = kfp_runs.experiment(api, _experiment(experiment))
    body = kfp_runs.job(name or _run_name(read, values), within, version, values, service_account)
    about = {"name": body["display_name"], "pipeline": read.name, "version": read.version, **version._asdict(), "parameters": values}
    if schedule is not None:
        identity = kfp_runs.repeat(api, body, schedule).get("recurring_run_id")
        _said({"recurring_run_id": identity, "cron": schedule, **about}, as_json, f"recurring run {about['name']} ({identity})")
        return
    run = kfp_runs.start(api, body)
    about = {"run_id": run["run_id"], **about, "url": _link(access, str(run["run_id"]))}
    if stay:
        typer.echo(_started(about), err=True)
        about |= _watch(api, run, read.spec)
    _said(about, as_json, None if stay else _started(about))


def watch(
    access: Access,
    run: Run,
    as_json: AsJson = False,
) -> None:
    """Show the rounds of a run until it ends. Exit code 3 if it fails."""
    from pipelines import kfp_runs
    from pipelines.kfp_host import connect

    api = connect(access)
    found = kfp_runs.get_run(api, kfp_runs.resolve_run(api, run))
    seen = _watch(api, found, kfp_runs.pipeline_spec(api, found))
    _said({"run_id": found["run_id"], "name": found.get("display_name"), **seen}, as_json, None)


def runs(
    access: Access,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="How many, the newest first.")] = 20,
    everyone: Annotated[bool, typer.Option("--all", help="Also those of other pipelines.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the runs of siloflow's pipelines."""
    import json
    from itertools import islice

    from pipelines import kfp_runs
    from pipelines.console import screen
    from pipelines.kfp_host import connect
    from pipelines.kfp_listing import about_run, table

    api = connect(access)
    found = [about_run(run, pipeline) for run, pipeline in islice(kfp_runs.list_runs(api, everyone), limit)]
    if as_json:
        typer.echo(json.dumps({"runs": found}))
    elif found:
        console = screen(stderr=False)
        if not console.is_terminal:
            console.width = WIDE
        console.print(table(found))
    else:
        typer.echo("no runs yet; `siloflow submit` starts one" + ("" if everyone else " (--all lists those of other pipelines)"), err=True)


def logs(
    access: Access,
    run: Run,
    silo: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this silo.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this task: plan, server, evaluate, report.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Also what Kubeflow Pipelines writes around each step.")] = False,
) -> None:
    """Print what the tasks of a run have written, in the order in which they began."""
    from pipelines import kfp_runs
    from pipelines.kfp_host import connect
    from pipelines.kfp_listing import log_texts
    from pipelines.kfp_logs import Logs
    from pipelines.kfp_tasks import read_tasks, silo_names

    if silo is not None and task is not None:
        raise InputError("--silo and --task: expected one of them, found both")
    api = connect(access)
    found = kfp_runs.get_run(api, kfp_runs.resolve_run(api, run))
    spec = kfp_runs.pipeline_spec(api, found)
    for text in log_texts(read_tasks(api, str(found["run_id"]), spec), silo_names(spec), Logs(api, str(found["run_id"])), silo, task, raw):
        typer.echo(text)


def cancel(access: Access, run: Run) -> None:
    """Stop a run: its pods are ended, what it has published stays in the store."""
    from pipelines import kfp_runs
    from pipelines.kfp_host import connect

    api = connect(access)
    found = kfp_runs.get_run(api, kfp_runs.resolve_run(api, run))
    state = kfp_runs.state_of(found)
    if state in kfp_runs.ENDED:
        raise InputError(f"run {found.get('display_name')} ({found['run_id']}): has ended already ({state}); there is nothing to cancel")
    kfp_runs.terminate(api, str(found["run_id"]))
    typer.echo(f"run {found.get('display_name')} ({found['run_id']}) is being cancelled", err=True)


# ---- parts of the commands


def _schedule(cron: str | None, stay: bool, values: dict[str, Any]) -> str | None:
    from pipelines.kfp_package import six_fields

    if cron is None:
        return None
    if stay:
        raise InputError("--watch and --cron: expected one of them, found both; a recurring run has no end to wait for")
    if values.get("run"):
        raise InputError(f"--set run={values['run']}: every run of a --cron needs a name of its own in the store; leave it out")
    return six_fields(cron)


def _experiment(given: str | None) -> str:
    """The variables mean what they mean to the kfp package."""
    return (
        os.environ.get("KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME")
        or given
        or os.environ.get("KF_PIPELINES_DEFAULT_EXPERIMENT_NAME")
        or "siloflow"
    )


def _run_name(package: Package, values: dict[str, Any]) -> str:
    import time

    words = [str(values[field]) for field in ("algorithm", "target") if values.get(field)] or [package.name]
    return "-".join([*words, time.strftime("%Y%m%d-%H%M%S")])


def _link(access: Access, run: str) -> str | None:
    from pipelines.kfp_host import interface

    known = interface(access)
    return f"{known}/#/runs/details/{run}" if known else None


def _started(about: dict[str, Any]) -> str:
    return f"run {about['name']} ({about['run_id']})" + (f"\n{about['url']}" if about["url"] else "")


def _said(about: dict[str, Any], as_json: bool, words: str | None) -> None:
    import json

    if as_json:
        typer.echo(json.dumps(about))
    elif words:
        typer.echo(words)


def _watch(api: Api, run: dict[str, Any], spec: Any) -> dict[str, Any]:
    """Until the end of the run. Ctrl-C ends the watching, never the run."""
    from pipelines.console import screen
    from pipelines.kfp_watch import Watch

    try:
        picture = Watch(api, run, spec, screen(stderr=True)).to_the_end()
    except KeyboardInterrupt:
        identity = run["run_id"]
        typer.echo(f"run {identity} goes on; `siloflow watch {identity}` shows it again, `siloflow cancel {identity}` stops it", err=True)
        raise typer.Exit(130) from None
    return {"state": picture.state, "rounds": picture.rounds}
