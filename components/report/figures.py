"""The figures that plot numbers: curves over rounds, features in the plane, and who was taken for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from components.report.svg import Drawing, box, hue, marker, polyline, slug, thin, ticks

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 34
MOST_POINTS = 300  # of a curve: more would not be seen
MOST_SERIES = 12
LEVELS = 10  # shades of a heat map
WITH_NUMBERS = 20  # classes up to which the cells of a confusion matrix say their number

Points = Sequence[tuple[float, float]]
Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    name: str
    points: Points
    kind: str  # class names: colour and weight


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def plain(value: float) -> str:
    return f"{value:.3g}"


def figure(name: str, heading: str, words: str, body: str, legend: str = "", wide: bool = False) -> str:
    """A figure that can be linked to, with a caption that says how to read it. `words` is HTML."""
    kind = "fig wide" if wide else "fig"
    caption = f"<figcaption><h3>{escape(heading)}</h3><p>{words}</p></figcaption>"
    return f'<figure class="{kind}" id="fig-{slug(name)}">{caption}<div class="plot">{body}</div>{legend}</figure>'


def legend_of(series: Sequence[tuple[str, str]]) -> str:
    """Name and classes of each; with JavaScript, pointing at one dims the others."""
    items = "".join(f'<li data-s="{escape(name)}" tabindex="0"><i class="key {kind}"></i>{escape(name)}</li>' for name, kind in series)
    return f'<ul class="legend">{items}</ul>'


# ---- curves


@dataclass(frozen=True)
class Across:
    """What goes from left to right: rounds, or whole numbers from 0 that have names."""

    unit: str = "round"
    names: Sequence[str] = ()

    def name(self, value: float) -> str:
        return self.names[int(value)] if self.names else f"{value:g}"


ROUNDS = Across()


def curves(
    name: str, heading: str, words: str, series: Sequence[Series], show: Format, whole: bool = False,
    across: Across = ROUNDS, from_zero: bool = True,
) -> str:  # fmt: skip
    """Lines over rounds. `whole`: the axis is 0 to 1. Not `from_zero`: it is as long as the values need."""
    drawn = [one for one in series if one.points][:MOST_SERIES]
    values = [y for one in drawn for _, y in one.points]
    rounds = [x for one in drawn for x, _ in one.points]
    drawing = Drawing(WIDTH, HEIGHT, f"{heading}: {', '.join(one.name for one in drawn)}")
    marks = ticks(0.0, 1.0) if whole else ticks(min(min(values), 0.0) if from_zero else min(values), max(values))
    low, high = marks[0], marks[-1]
    first, last = min(rounds), max(max(rounds), min(rounds) + 1)

    def x(value: float) -> float:
        return LEFT + (value - first) / (last - first) * (WIDTH - LEFT - RIGHT - (10 if across.names else 0))

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    for mark in marks:
        drawing.line(LEFT, y(mark), WIDTH - RIGHT, y(mark), "grid")
        drawing.text(LEFT - 6, y(mark) + 4, f"{100 * mark:.3g} %" if show is percent else plain(mark), "tick", "end")
    for mark in thin([int(at) for at in range(int(first), int(max(rounds if across.names else [last])) + 1)], 8):
        drawing.text(x(mark), HEIGHT - BOTTOM + 16, across.name(mark), "tick")
    drawing.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, across.unit, "axis")
    for one in reversed(drawn):  # the first is on top
        _curve(drawing, one, x, y, lambda at, value: f"{across.unit} {across.name(at)}: {show(value)}")
    left_out = len([one for one in series if one.points]) - len(drawn)
    note = f" The first {MOST_SERIES} are drawn, {left_out} are not." if left_out > 0 else ""
    return figure(name, heading, words + note, drawing.render(), legend_of([(one.name, one.kind) for one in drawn]))


def _curve(
    drawing: Drawing, one: Series, x: Callable[[float], float], y: Callable[[float], float], tip: Callable[[float, float], str]
) -> None:
    chosen = [one.points[place] for place in thin(range(len(one.points)), MOST_POINTS)]
    if len(chosen) > 1:
        drawing.path(polyline((x(a), y(b)) for a, b in chosen), f"ln {one.kind}", one.name)
    if len(chosen) <= 40:
        for a, b in chosen:
            drawing.path(marker(x(a), y(b), 3, 0), f"dot {one.kind}", one.name, f"{one.name}, {tip(a, b)}")


# ---- the plane


def scatter(name: str, heading: str, words: str, places: np.ndarray, groups: Sequence[tuple[str, str, int, Sequence[int]]]) -> str:
    """Groups: name, classes, shape and rows of each; later ones are drawn on top."""
    side, edge = 440, 14
    low, high = (float(value) for value in (places[:, 1].min(), places[:, 1].max()))
    drawing = Drawing(side, 2 * edge + (high - low) * (side - 2 * edge), heading)
    for label, kind, shape, rows in groups:
        marks = "".join(
            marker(edge + places[row, 0] * (side - 2 * edge), edge + (high - places[row, 1]) * (side - 2 * edge), 3.4, shape)
            for row in rows
        )
        if marks:
            drawing.path(marks, f"pt {kind}", label)
    return figure(name, heading, words, drawing.render(), legend_of([(label, kind) for label, kind, _, rows in groups if len(rows)]))


# ---- confusion


def confusion_matrix(name: str, words: str, table: np.ndarray, classes: Sequence[str]) -> str:
    """Rows: what it is; columns: what the model said. Shades are shares of the row."""
    count, small = len(table), len(table) <= WITH_NUMBERS
    room = 12 + 6.4 * min(12, max((len(word) for word in classes), default=1)) if small else 30.0
    cell = max(3.0, min(52.0, (WIDTH - room) / count))
    drawing = Drawing(room + count * cell + 4, room + count * cell + 4, "confusion matrix of the target domain")
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    if small:
        _numbered(drawing, table, shares, classes, room, cell)
    else:
        _shaded(drawing, shares, room, cell)
        drawing.text(room + count * cell / 2, room - 6, "said", "axis")
        drawing.text(room - 6, room + count * cell / 2, "is", "axis", "end")
    return figure(name, "Who is taken for whom", words, drawing.render())


def _numbered(drawing: Drawing, table: np.ndarray, shares: np.ndarray, classes: Sequence[str], room: float, cell: float) -> None:
    for row, word in enumerate(classes):
        at = room + (row + 0.5) * cell
        drawing.text(room - 6, at + 4, word[:12], "tick", "end")
        turned = max(map(len, classes)) > 3
        drawing.text(at + 4 if turned else at, room - 6, word[:12], "tick", "start" if turned else "middle", turned)
        for column, other in enumerate(classes):
            share, amount = float(shares[row, column]), int(table[row, column])
            kind = "cell hit" if row == column else "cell miss"
            tip = f"{word}, said {other}: {amount} of {int(table[row].sum())} ({percent(share)})"
            drawing.rect(room + column * cell, room + row * cell, cell - 1.5, cell - 1.5, kind, tip, f"--v:{share:.3f}")
            if amount:
                on = "num on" if share > 0.55 else "num"
                drawing.text(room + (column + 0.47) * cell, room + (row + 0.5) * cell + 3.5, str(amount), on)


def _shaded(drawing: Drawing, shares: np.ndarray, room: float, cell: float) -> None:
    """Many classes: one path per shade, so that the page stays small."""
    levels = np.ceil(shares * LEVELS).astype(int)
    for level in range(1, LEVELS + 1):
        for kind, on in (("hit", True), ("miss", False)):
            cells = [(r, c) for r, c in np.argwhere(levels == level).tolist() if (r == c) == on]
            steps = "".join(box(room + c * cell, room + r * cell, cell - 0.3, cell - 0.3) for r, c in cells)
            if steps:
                drawing.parts.append(f'<path class="cell {kind}" style="--v:{level / LEVELS:.1f}" d="{steps}"/>')
    count = len(shares)
    drawing.path(box(room, room, count * cell, count * cell), "frame")


def silo_series(values: dict[str, Points], order: Sequence[str]) -> list[Series]:
    """One line per silo, its colour the same in every figure."""
    return [Series(name, values[name], hue(place)) for place, name in enumerate(order) if values.get(name)]
