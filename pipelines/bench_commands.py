"""`siloflow bench` and `siloflow gate`: a table of algorithms, targets and seeds, and whether it got worse."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from components.errors import InputError

HistoryUrl = Annotated[
    str | None,
    typer.Option("--history", metavar="STORE", help="Store that keeps the nights, file:///dir or s3://host/prefix; speed needs it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; everything else goes to stderr.")]


def bench(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The benchmark's file: name, algorithms, targets, seeds, spec.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the results; default benchmarks/<name>.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the common spec, e.g. rounds=2. Repeatable.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="NAMES", help="Only these algorithms, separated by commas.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Cells at once; default: one a core, or one where there is a GPU.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep-runs", help="Keep the run folder of every cell.")] = False,
    history: HistoryUrl = None,
    gate: Annotated[Path | None, typer.Option("--gate", metavar="BASELINE", help="Apply the gates at the end, as `siloflow gate`.")] = None,
    gateway: Annotated[
        str | None,
        typer.Option("--pushgateway", metavar="URL", envvar="SILOFLOW_PUSHGATEWAY", help="Push the night to this Pushgateway."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run algorithms x targets x seeds and make their table. The same command again goes on where it stopped."""
    from components.gateway import check_gateway
    from pipelines.bench_file import chosen, read_bench, work_of
    from pipelines.bench_rows import first_failure
    from pipelines.bench_run import Request, run_bench, tell
    from pipelines.console import screen
    from pipelines.gates import read_baseline, refusal
    from pipelines.history import History

    if gateway is not None:
        check_gateway(gateway)
    file = read_bench(spec, settings or [])
    folder = out if out is not None else Path("benchmarks") / file.name
    baseline = read_baseline(gate) if gate is not None else None
    kept = History(history, file.name) if history is not None else None
    work = work_of(file)
    wanted = chosen(work, [name.strip() for name in only.split(",")]) if only else work
    asked = Request(file, spec, work, wanted, folder, workers, keep)
    outcome = run_bench(asked, kept, baseline, screen(stderr=as_json), screen(stderr=True))
    if as_json:
        _print_json(outcome.as_json(file.name, folder))
    error = first_failure(outcome.rows) or (refusal(outcome.gates, gate) if gate is not None else None)
    if gateway is not None:
        tell(gateway, folder.name, outcome, error.exit_code if error is not None else 0, screen(stderr=True))
    if error is not None:
        raise error


def gate(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="results.jsonl of `siloflow bench`.")],
    baseline: Annotated[Path, typer.Option("--baseline", metavar="FILE", help="What was accepted earlier, e.g. bench/baseline.json.")],
    history: HistoryUrl = None,
    accept: Annotated[bool, typer.Option("--accept", help="Make these results the baseline instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare results with what was accepted: speed, accuracy, exact digest. Exit code 6: worse; 2: nothing to compare with."""
    from pipelines import gates
    from pipelines.bench_rows import first_failure, read_rows
    from pipelines.bench_run import check
    from pipelines.bench_view import print_gates
    from pipelines.console import screen
    from pipelines.history import History

    rows = read_rows(results)
    if not rows:
        raise InputError(f"results {results}: expected rows of `siloflow bench`, found none")
    failure = first_failure(rows)
    if accept:
        if failure is not None:
            raise InputError(f"results {results}: {failure}; only a complete benchmark can be accepted")
        accepted = gates.accept(rows, baseline)
        typer.echo(f"wrote {baseline}: {len(accepted.accuracy)} references, {len(accepted.exact)} golden digests", err=True)
        return
    known = gates.read_baseline(baseline)
    found = check(rows, known, History(history, known.bench) if history is not None else None)
    print_gates(screen(stderr=as_json), found)
    if as_json:
        _print_json({"verdict": gates.overall(found), "gates": list(map(asdict, found))})
    error = failure or gates.refusal(found, baseline)
    if error is not None:
        raise error


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
