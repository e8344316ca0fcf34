"""A run of the command line: one federation, and beside it, if wanted, the same federation with a baseline algorithm."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from components.errors import InputError, Interrupted
from components.spec import FederationSpec, check_name
from components.store.file import write_file
from fl_algorithms.errors import Unusable
from fl_algorithms.registry import ALGORITHMS
from pipelines.console import Watching, screen, watch
from pipelines.exporter import Exporting, Outlets
from pipelines.local import LocalEngine
from pipelines.report_commands import PAGE, close_run
from pipelines.summary import Outcome, print_summary

BASELINE = "fedavg"  # of the example


def subfolder(folder: Path) -> Path:
    """Where the baseline's run lies. Its name is the run's: a store may be shared with other runs and their baselines."""
    return folder / f"{folder.absolute().name}-baseline"


def choose(wanted: str | None, algorithm: str, is_example: bool) -> str | None:
    """Name of the baseline, from the option `--baseline`."""
    if wanted is None:
        return BASELINE if is_example and algorithm != BASELINE else None
    if wanted == "none":
        return None
    check_name("--baseline", wanted, [*ALGORITHMS, "none"])
    if wanted == algorithm:
        raise InputError(f"--baseline '{wanted}': is the algorithm itself; choose another one, or none")
    return wanted


def same_federation(values: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """The spec with another algorithm. Of the given hyper-parameters it keeps those that this algorithm has too."""
    hyper = dict(values.get("hyper") or {})
    if hyper:  # only then: loading an algorithm imports torch
        known = {field.name for field in dataclasses.fields(ALGORITHMS[algorithm].load().Hyper)}
        hyper = {name: value for name, value in hyper.items() if name in known}
    return {**values, "algorithm": algorithm, "hyper": hyper}


def default_folder(spec: FederationSpec) -> Path:
    from fl_algorithms.data import open_dataset

    data, target = spec.dataset, spec.target
    if target is None:
        try:
            target = open_dataset(data.name, data.path, data.image_size, data.on_broken, data.protocol).domains[-1]
        except Unusable as error:
            raise InputError(str(error)) from None
    # domains are folder names, such as "Real World"; a run's name is part of keys in the store, which allow less
    return Path("runs") / re.sub(r"[^A-Za-z0-9._-]+", "-", f"{time.strftime('%Y%m%d-%H%M%S')}-{spec.algorithm}-{target}")


def federate(
    values: dict[str, Any], baseline: dict[str, Any] | None, folder: Path, as_json: bool, at_once: int | None,
    outlets: Outlets | None = None, report: bool = True,
) -> None:  # fmt: skip
    """Run both to the end, show them side by side, write the comparison into result.json, and then the report."""
    written = (folder / "result.json").exists() and (folder / PAGE).exists()  # a finished run that is only shown again has its report
    console = screen(stderr=True)
    recorder = (outlets or Outlets()).open(lambda message: console.print(f"warning: {message}", soft_wrap=True))
    try:
        runs = _run(values, baseline, folder, at_once, lambda title: Exporting(watch(console, title), recorder))
    except (KeyboardInterrupt, Interrupted):
        resumable = (folder / "spec.yaml").exists()
        advice = f"continue with: siloflow resume {shlex.quote(str(folder))}" if resumable else "nothing was written"
        raise Interrupted(f"interrupted; {advice}") from None
    finally:
        recorder.close()
    result = dict(runs[0].result)
    if len(runs) > 1:
        result["baseline"] = {key: runs[1].result[key] for key in ("algorithm", "accuracy", "digest")}
        write_file(folder / "result.json", [json.dumps(result, indent=1).encode()])
    print_summary(screen(stderr=as_json), runs, folder)
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    if report and not written:
        close_run(folder, screen(stderr=as_json))


def _run(
    values: dict[str, Any], baseline: dict[str, Any] | None, folder: Path, at_once: int | None, watched: Callable[[str], Watching]
) -> list[Outcome]:
    """The federation's outcome, then the baseline's. Both are planned before either starts, so that a resume knows of both."""
    existed, view = folder.exists(), watched("siloflow")
    engine = LocalEngine(values, folder, view, at_once)
    with view:
        plan = engine.plan()
    outcomes = []
    if baseline is not None:
        beside = watched("baseline")
        other = LocalEngine(baseline, subfolder(folder), beside, at_once)
        try:
            with beside:
                other_plan = other.plan()
        except InputError:
            if not existed:  # wrong input leaves nothing behind
                shutil.rmtree(folder, ignore_errors=True)
            raise
        with beside:
            result = other.run()
        outcomes.append(Outcome(other_plan, result, beside.seconds))
    with view:
        result = engine.run()
    return [Outcome(plan, result, view.seconds), *outcomes]
