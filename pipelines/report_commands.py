"""`siloflow report`, and the page at the end of a run. Both are written by a worker process: this one loads no torch."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from components.errors import InputError, SiloflowError
from pipelines.workers import Job, Workers

REPORTER = "reporter"
PAGE, COMPARISON = "report.html", "comparison.html"
PATIENCE = 600.0  # seconds for a page; one takes a few


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of `siloflow run`; several are compared.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help=f"Where to write it; default RUN/{PAGE}, of several runs {COMPARISON}."),
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run, or one that compares several."""
    page = out if out is not None else runs[0] / PAGE if len(runs) == 1 else Path(COMPARISON)
    if page.is_dir():
        raise InputError(f"report {page}: expected a file, found a folder; name a file in it")
    for note in write_page(runs, page):
        typer.echo(f"missing: {note}", err=True)
    typer.echo(page)


def write_page(runs: Sequence[Path], out: Path) -> list[str]:
    """Returns what is missing on the page."""
    with tempfile.TemporaryDirectory(prefix="siloflow-") as logs:
        workers = Workers(Path(logs))
        arguments = {"folders": [str(folder.absolute()) for folder in runs], "out": str(out.absolute())}
        try:
            workers.give(Job(REPORTER, "report", arguments), None, threads=1)
            return _outcome(workers)
        finally:
            workers.stop()


def _outcome(workers: Workers) -> list[str]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for message in workers.messages(timeout=0.25):
            if message.kind == "done":
                notes: list[str] = message.content
                return notes
            if message.kind == "failed":
                raise message.content
            if message.kind != "progress":
                raise SiloflowError(f"report: {message.content}")
    raise SiloflowError(f"report: not ready after {PATIENCE:g} s; the run itself is complete")


def close_run(folder: Path, console: Console) -> None:
    """At the end of a run: the page, or one line that says why there is none. The run is over and good either way."""
    try:
        write_page([folder], folder / PAGE)
    except (SiloflowError, OSError) as error:
        console.print(Text(f"warning: no report: {' '.join(str(error).split())}", style="yellow"), soft_wrap=True)
    except KeyboardInterrupt:  # whoever does not want to wait has the result already
        console.print(Text(f"warning: no report: interrupted; `siloflow report {folder}` writes it", style="yellow"), soft_wrap=True)
    else:
        console.print(Text.assemble((f"{'report':>12}  ", "dim"), str(folder / PAGE)), soft_wrap=True)
