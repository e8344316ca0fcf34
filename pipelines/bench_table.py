"""The table of a benchmark, laid out as the papers print theirs: targets as columns, their average, mean ± standard error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from components.report.bench_scores import Row, Scores, Spread
from pipelines.bench_rows import cell_of
from pipelines.published import Published, lookup

TITLES = {
    "last": "After the last round",
    "best_validation": "At the round with the best source validation",
    "oracle": "At the round that is best on the target itself (oracle: not a result)",
}
AVERAGE = "average"


@dataclass(frozen=True)
class Beside:
    """What one paper prints for an algorithm, by target; `differs` is empty where its setting is ours."""

    source: str
    differs: tuple[str, ...]
    values: dict[str, Published] = field(default_factory=dict)


def published(scores: Scores, algorithm: str) -> list[Beside]:
    """Values of the literature for this row of the table, a paper each, the closest setting first."""
    first = scores.of(algorithm)[0]
    found: dict[tuple[str, tuple[str, ...]], Beside] = {}
    for target in [*scores.targets, None]:
        for value in lookup(algorithm, first["dataset"], target, first["setting"]):
            entry = found.setdefault((value.source, value.differs), Beside(value.source, value.differs))
            entry.values[target or AVERAGE] = value
    return sorted(found.values(), key=lambda beside: len(beside.differs))


def for_page(rows: Sequence[Row]) -> dict[tuple[str, str | None], list[tuple[str, str]]]:
    """By (algorithm, target), None for the average: each published value and where it is from."""
    found: dict[tuple[str, str | None], list[tuple[str, str]]] = {}
    scores = Scores(rows)
    for algorithm in scores.algorithms:
        for beside in published(scores, algorithm):
            setting = "; other setting: " + "; ".join(beside.differs) if beside.differs else "; same setting"
            for place, value in beside.values.items():
                text = f"{value.value:.1f}" + (f" ± {value.error:.1f}" if value.error is not None else "")
                found.setdefault((algorithm, None if place == AVERAGE else place), []).append((text, beside.source + setting))
    return found


# ---- Markdown


def markdown(rows: Sequence[Row], command: str) -> str:
    scores = Scores(rows)
    lines = [f"Made by `{command}` from the {len(scores.done)} finished runs in `results.jsonl` beside it.", ""]
    if scores.done:
        lines += [
            "Target accuracy in %, mean ± standard error over the seeds. In italics what papers print; a letter says what their setting",
            "",
        ]
        lines[-2] += " has otherwise."
        notes: dict[tuple[str, ...], str] = {}
        lines += _section(scores, "last", notes)
        for differs, mark in notes.items():
            lines.append(f"- *{mark}*: other setting: {'; '.join(differs)}")
        lines += [""] if notes else []
        for rule in ("best_validation", "oracle"):
            lines += _section(scores, rule, None)
        lines += _cost(scores)
    if scores.failed:
        lines += ["## Failed", "", *(f"- {cell_of(row)}: exit code {row['exit_code']}: {row['error']}" for row in scores.failed), ""]
    return "\n".join(lines)


def _section(scores: Scores, rule: str, notes: dict[tuple[str, ...], str] | None) -> list[str]:
    """`notes`: letters of the settings that differ; None: without published values, which follow one rule only."""
    targets = scores.targets
    lines = [f"## {TITLES[rule]}", "", _line(["algorithm", *targets, AVERAGE, "seeds"]), _line(["---"] * (len(targets) + 3))]
    for name in scores.ranked(rule):
        cells = [scores.cell(name, target, rule) for target in targets]
        seeds = min((found.seeds for found in cells if found), default=0)
        lines.append(_line([name, *map(_shown, cells), _shown(scores.average(name, rule)), str(seeds)]))
        for beside in published(scores, name) if notes is not None else []:
            mark = notes.setdefault(beside.differs, _letter(len(notes))) if notes is not None and beside.differs else ""
            label = f"*{beside.source}{f' ({mark})' if mark else ', same setting'}*"
            values = [f"*{found.value:.1f}*" if (found := beside.values.get(place)) else "" for place in [*targets, AVERAGE]]
            lines.append(_line([label, *values, ""]))
    return [*lines, ""]


def _cost(scores: Scores) -> list[str]:
    """What a run costs; CPU time, since a busy machine stretches the other kind."""
    figures: list[tuple[str, Callable[[Any], float], str]] = [
        ("CPU seconds", lambda row: row["cpu_seconds"], ",.1f"),
        ("uploaded, MB", lambda row: row["bytes"]["up"] / 1e6, ",.1f"),
        ("source validation, %", lambda row: 100 * (row["validation"] or 0.0), ".1f"),
    ]
    lines = ["## Cost of a run", "", _line(["algorithm", *(name for name, _, _ in figures)]), _line(["---"] * (len(figures) + 1))]
    for name in scores.algorithms:
        own = scores.of(name)
        lines.append(_line([name, *(format(median(map(value, own)), shape) for _, value, shape in figures)]))
    return [*lines, "", "Medians over the runs; the validation is that of the last round.", ""]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(found: Spread | None) -> str:
    return "" if found is None else found.points()


def _letter(place: int) -> str:
    return chr(ord("a") + place) if place < 26 else str(place)
