"""The figures of a benchmark: accuracy by algorithm with its error, what it costs, and both over the nights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from statistics import mean, median
from typing import Any

from components.report.bench_scores import REFERENCE, Row, Scores, Spread, rounds_of
from components.report.figures import Across, Series, curves, figure, legend_of, percent, plain
from components.report.svg import COLOURS, Drawing, hue, marker, ticks

MOST_ALGORITHMS = 40
AVERAGE = "average and standard error"
Night = Mapping[str, Any]


def standing(scores: Scores) -> str:
    """A row per algorithm: the average with its standard error, and a mark for each target. Made of boxes, so that it fits a phone."""
    names = [name for name in scores.algorithms if scores.average(name) is not None][:MOST_ALGORITHMS]
    low, high = _range(scores, names)

    def at(value: float) -> str:
        return f"{(value - low) / (high - low):.4f}"

    reference = scores.average(REFERENCE) if REFERENCE in names and len(names) > 1 else None
    ruler = f'<i class="ruler" style="--v:{at(reference.mean)}"></i>' if reference else ""
    rows = "".join(_bar(scores, name, at, ruler) for name in names)
    marks = "".join(f'<i style="--v:{at(mark)}">{100 * mark:.3g} %</i>' for mark in ticks(low, high, 4))
    several = len(scores.targets) > 1
    keys = [(AVERAGE, "c0"), *((target, f"{hue(place + 1)} s{place % 4}") for place, target in enumerate(scores.targets))]
    said = "After the last round. Bars: mean over the unseen domains; whiskers: its standard error over the seeds."
    said += " Small marks: each domain." if several else ""
    said += f" Dashed: {REFERENCE}." if reference else ""
    said += f" The axis starts at {100 * low:.0f} %." if low else ""
    body = f'<ol class="standing">{rows}<li class="scale" aria-hidden="true"><span class="track">{marks}</span></li></ol>'
    return figure("standing", "Who gets how much right", said, body, legend_of(keys) if several else "")


def _range(scores: Scores, names: Sequence[str]) -> tuple[float, float]:
    """From zero, unless everything is close together far away from it."""
    values = [found.mean for name in names for target in scores.targets if (found := scores.cell(name, target)) is not None]
    low = min(values) if min(values) > 0.5 and max(values) - min(values) < 0.3 else 0.0
    marks = ticks(max(0.0, low - 0.02) if low else 0.0, min(1.0, max(values) + 0.02), 4)
    return marks[0], marks[-1]


def _bar(scores: Scores, name: str, at: Callable[[float], str], ruler: str) -> str:
    found = scores.average(name)
    assert found is not None
    parts = f'<i class="fill {"even" if name == REFERENCE else "c0"}" data-s="{AVERAGE}" style="--v:{at(found.mean)}"></i>{ruler}'
    for place, target in enumerate(scores.targets):
        own = scores.cell(name, target)
        if own is not None and len(scores.targets) > 1:
            tip = escape(f"{name} on {target}: {own.points()} %")
            style = f'class="mark key {hue(place + 1)} s{place % 4}" data-s="{escape(target)}" style="--v:{at(own.mean)}"'
            parts += f'<i {style} title="{tip}"></i>'
    if found.error is not None:
        ends = f"--v:{at(found.mean - found.error)};--w:{at(found.mean + found.error)}"
        parts += f'<i class="whisker" data-s="{AVERAGE}" style="{ends}"></i>'
    shown = f"{escape(found.points())} %"
    return f'<li><b>{escape(name)}</b><span class="track" aria-hidden="true">{parts}</span><span class="points">{shown}</span></li>'


# ---- cost

Against = tuple[str, str, int, float, Spread]  # algorithm, classes, shape, cost, accuracy


def cost(scores: Scores) -> list[str]:
    """Accuracy against what a round takes and what it sends: up and to the left is better."""
    kinds: list[tuple[str, str, str, Callable[[Row], float]]] = [
        ("cost-seconds", "What it takes", "CPU seconds a round", lambda row: float(row.get("cpu_seconds") or 0.0)),
        ("cost-bytes", "What it sends", "MB sent by silos a round", lambda row: (row.get("bytes", {}).get("up") or 0) / 1e6),
    ]
    plots = []
    for name, heading, unit, value in kinds:
        points: list[Against] = []
        for place, algorithm in enumerate(scores.algorithms):
            found, own = scores.average(algorithm), [value(row) / rounds_of(row) for row in scores.of(algorithm)]
            if found is not None and any(own):
                points.append((algorithm, hue(place), place // COLOURS, median(own), found))
        if points:
            plots.append(_against(name, heading, unit, points))
    return plots


def _against(name: str, heading: str, unit: str, points: Sequence[Against]) -> str:
    width, height, left, top, bottom = 460, 280, 48, 14, 40
    accuracies = [found.mean for *_, found in points]
    up = ticks(max(0.0, min(accuracies) - 0.02), min(1.0, max(accuracies) + 0.02))
    across = ticks(0.0, max(cost for *_, cost, _ in points))
    drawing = Drawing(width, height, f"accuracy against {unit}")

    def at(cost: float, accuracy: float) -> tuple[float, float]:
        right = left + cost / across[-1] * (width - left - 16)
        return right, height - bottom - (accuracy - up[0]) / (up[-1] - up[0]) * (height - top - bottom)

    for mark in up:
        drawing.line(left, at(0, mark)[1], width - 16, at(0, mark)[1], "grid")
        drawing.text(left - 6, at(0, mark)[1] + 4, f"{100 * mark:.3g} %", "tick", "end")
    for mark in across:
        drawing.text(at(mark, up[0])[0], height - bottom + 17, plain(mark), "tick")
    drawing.text((left + width) / 2, height - 4, unit, "axis")
    for algorithm, kind, shape, cost, found in points:
        drawing.path(
            marker(*at(cost, found.mean), 5, shape), f"pt {kind}", algorithm, f"{algorithm}: {found.points()} %, {plain(cost)} {unit}"
        )
    said = f"Average accuracy against {unit}, a median. Up and to the left is better; the upright axis does not start at zero."
    return figure(name, heading, said, drawing.render(), legend_of([(algorithm, kind) for algorithm, kind, *_ in points]))


# ---- nights


def trend(scores: Scores, nights: Sequence[Night]) -> list[str]:
    """Accuracy and CPU seconds a round over the nights; nothing where there are none."""
    known = {cell.split("/")[0] for night in nights for cell in night.get("cells", {})}
    names = [*(name for name in scores.algorithms if name in known), *sorted(known - set(scores.algorithms))]
    when = Across("night", [str(night.get("when", "?"))[5:10] for night in nights])
    right = [Series(name, _accuracy_of(name, nights), hue(place)) for place, name in enumerate(names)]
    slow = [Series(name, _seconds_of(name, nights), hue(place)) for place, name in enumerate(names)]
    plots = []
    if any(one.points for one in right):
        said = "Mean over seeds and unseen domains, last round. The axis does not start at zero."
        plots.append(curves("trend-accuracy", "Accuracy, night by night", said, right, percent, across=when, from_zero=False))
    if any(one.points for one in slow):
        said = "Median over the runs of the night, over all processes."
        plots.append(curves("trend-seconds", "CPU seconds a round", said, slow, plain, across=when))
    return plots


def _accuracy_of(name: str, nights: Sequence[Night]) -> list[tuple[float, float]]:
    points = []
    for place, night in enumerate(nights):
        own = [float(found["mean"]) for cell, found in night.get("cells", {}).items() if cell.split("/")[0] == name]
        if own:
            points.append((float(place), mean(own)))
    return points


def _seconds_of(name: str, nights: Sequence[Night]) -> list[tuple[float, float]]:
    return [
        (float(place), float(entry["value"]))
        for place, night in enumerate(nights)
        for entry in night.get("perf", [])
        if entry.get("unit") == "s" and entry["name"].split(":")[0] == name
    ]
