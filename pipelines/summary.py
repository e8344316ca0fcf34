"""What a person reads of a run: its numbers in words, and the table at the end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
RULES = {
    "last": "last round",
    "best_validation": "best source validation",
    "oracle": "oracle: picked on the target, not a result",
}


@dataclass(frozen=True)
class Outcome:
    """A finished run, as far as the summary shows it."""

    plan: Mapping[str, Any]
    result: Mapping[str, Any]
    seconds: float


def print_summary(console: Console, runs: Sequence[Outcome], folder: Path) -> None:
    """The run of `folder` first, then the baseline it is compared with, if there is one."""
    main = runs[0]
    console.print()
    console.print(_accuracies(runs))
    rows = [
        ("chance", f"{percent(1 / main.plan['classes'])}, guessing one of {main.plan['classes']} classes"),
        ("weights", weights_of(main.plan).removeprefix("weights: ")),
        ("model", f"{main.result['digest']}  (SHA-256)"),
        ("run folder", str(folder)),
        ("show again", f"siloflow resume {shlex.quote(str(folder))}"),
        ("next", "siloflow init (a spec to edit), siloflow algorithms (what there is)"),
    ]
    if main.result["rejected"]:
        rejected = main.result["rejected"]
        reasons = ", ".join(sorted({f"{item['silo']} ({item['reason']})" for item in rejected}))
        rows.insert(0, ("rejected", f"{len(rejected)}, never averaged: {reasons}"))
    if main.result["absent"]:
        rows.insert(0, ("absent", f"{', '.join(main.result['absent'])}: did not join, took no part"))
    for name, value in rows:
        console.print(Text.assemble((f"{name:>12}  ", "dim"), value), soft_wrap=True)


def _accuracies(runs: Sequence[Outcome]) -> Table:
    main = runs[0]
    table = Table(box=SIMPLE_HEAD, title=f"Accuracy on {main.result['target']}, which no silo has ({main.plan['target_images']} images)")
    table.title_justify = "left"
    table.add_column("selection rule")
    for place, run in enumerate(runs):
        table.add_column(run.result["algorithm"] if place == 0 else f"{run.result['algorithm']} (baseline)", justify="right")
    for rule, label in RULES.items():
        style = "dim" if rule == "oracle" else "bold" if rule == "last" else ""
        table.add_row(label, *(percent(run.result["accuracy"][rule]) for run in runs), style=style)
    table.add_section()
    table.add_row("rounds", *(str(run.result["rounds"]) for run in runs), style="dim")
    table.add_row("time of this call", *(f"{run.seconds:.1f} s" for run in runs), style="dim")
    for way, label in (("up", "uploaded"), ("down", "downloaded")):
        table.add_row(label, *(megabytes(run.result["bytes"][way]) for run in runs), style="dim")
    return table


# ---- words and numbers


def describe(plan: Mapping[str, Any]) -> str:
    spec = plan["spec"]
    task = f"{spec['algorithm']}, {spec['dataset']['name']} -> {spec['target']}"
    return f"{task}, {len(plan['silos'])} silos, {spec['rounds']} rounds, {plan['device']}"


def weights_of(plan: Mapping[str, Any]) -> str:
    """No weight file means an untrained network, which must be said: accuracies of the literature start from ImageNet."""
    if plan["weights"] == "random":
        return "weights: random initialisation"
    return f"weights: {plan['spec']['weights']} (SHA-256 {plan['weights'][:12]})"


def ending(result: Mapping[str, Any], seconds: float) -> str:
    accuracy = result["accuracy"]["last"]
    return f"{result['algorithm']}: {percent(accuracy)} on {result['target']} after {result['rounds']} rounds, {seconds:.1f} s"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The last `width` values on a fixed scale from 0 to 1: equal heights are equal accuracies, in every run."""
    return "".join(BLOCKS[min(int(value * len(BLOCKS)), len(BLOCKS) - 1)] for value in values[-width:])


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"
