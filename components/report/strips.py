"""The figures made of many small boxes: who worked when, and how much each silo counted in each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from components import layout
from components.manifest import Manifest
from components.report.figures import figure, legend_of
from components.report.record import Record
from components.report.svg import Drawing, box, thin, ticks

STAGES = {
    "read": "read", "compute": "train", "upload": "upload", "check": "check", "combine": "combine", "publish": "publish",
    "validate": "count right answers", "evaluate": "count right answers",
}  # fmt: skip
KINDS = {"read": "c6", "train": "c0", "upload": "c4", "check": "c3", "combine": "c1", "publish": "c5", "count right answers": "c2"}
WIDTH = 920
MOST_BARS = 6000
MOST_ROWS = 20
CELLS = 6000  # of the heat maps of layers
SHORTEST = 0.4  # units: less would not be seen
SHADES = 6  # on either side of the even share


def timeline(record: Record) -> str | None:
    """A row per process, a box per stage. None where the run did not record when its steps began."""
    manifests = record.timed
    if not manifests:
        return None
    rounds = sorted({m.round for m in manifests})
    while len(rounds) > 1 and sum(len(m.seconds) for m in manifests) > MOST_BARS:
        rounds = rounds[: len(rounds) // 2]
        manifests = [m for m in manifests if m.round <= rounds[-1]]
    authors = [layout.SERVER, *record.silos[:MOST_ROWS], layout.EVALUATOR]
    zero = min(m.began or 0.0 for m in manifests)
    end = max((m.began or 0.0) - zero + sum(m.seconds.values()) for m in manifests)
    left, row, width = 12 + 7.6 * min(16, max(map(len, authors))), 24, WIDTH
    drawing = Drawing(width, len(authors) * row + 44, "when each process worked")
    marks = [mark for mark in ticks(0.0, max(end, 0.1), 8) if mark <= end]
    scale = (width - left - 12) / max(end, 0.1)
    for mark in marks:
        drawing.line(left + mark * scale, 4, left + mark * scale, len(authors) * row + 8, "grid")
        drawing.text(left + mark * scale, len(authors) * row + 24, f"{mark:g} s", "tick")
    for place, author in enumerate(authors):
        drawing.text(left - 8, place * row + row / 2 + 8, author[:16], "tick", "end")
        _bars(drawing, [m for m in manifests if m.author == author], place * row + 6, row - 6, left, scale, zero)
    shown = list(dict.fromkeys(STAGES.get(stage, stage) for m in manifests for stage in m.seconds))
    words = f"Each box is a stage, each row a process, by its own clock; rounds {rounds[0]} to {rounds[-1]}."
    return figure("timeline", "Who worked when", words, drawing.render(), legend_of([(n, KINDS.get(n, "c6")) for n in shown]), wide=True)


def _bars(drawing: Drawing, manifests: Sequence[Manifest], y: float, height: float, left: float, scale: float, zero: float) -> None:
    by_stage: dict[str, str] = {}
    for manifest in manifests:
        at = (manifest.began or zero) - zero
        for stage, seconds in manifest.seconds.items():
            name = STAGES.get(stage, stage)
            by_stage[name] = by_stage.get(name, "") + box(left + at * scale, y, max(SHORTEST, seconds * scale), height)
            at += seconds
    for name, steps in by_stage.items():
        drawing.path(steps, f"bar {KINDS.get(name, 'c6')}", name, name)


def layers(record: Record) -> str | None:
    """Weight of each silo by layer (down) and round (across), as in Fig. 7 of the CSAC paper. None for algorithms that have none."""
    known = {number: entry.layer_weights for number, entry in sorted(record.rounds.items()) if entry.layer_weights}
    if not known:
        return None
    silos = record.silos[:MOST_ROWS]
    names = _layer_names(known[max(known)])
    names = [names[place] for place in thin(range(len(names)), 48)]
    rounds = thin(list(known), max(2, CELLS // (len(names) * len(silos))))
    left, gap, high = 14 + 7.4 * max(len(name) for name in names), 14, 16
    panel = max(40.0, (WIDTH - left) / len(silos) - gap)
    cell = panel / len(rounds)
    drawing = Drawing(left + len(silos) * (panel + gap), len(names) * high + 52, "weight of each silo in each layer and round")
    rows = [known[number].get(name, {}) for number in rounds for name in names]
    strongest = max((abs(share * len(silos) - 1) for row in rows for share in row.values()), default=0.0) or 1.0
    for place, name in enumerate(names):
        drawing.text(left - 8, 30 + place * high + 11, name, "tick", "end")
    for column, silo in enumerate(silos):
        x = left + column * (panel + gap)
        drawing.text(x, 18, silo[:14], "head", "start")
        _shares(drawing, known, names, rounds, silo, (len(silos), strongest), x, (cell, high))
        for number in thin(rounds, 4) if cell < 20 else rounds:
            drawing.text(x + (rounds.index(number) + 0.5) * cell, 30 + len(names) * high + 14, str(number), "tick")
    words = (
        f"Share of each silo by layer (down) and round (across). Blue: less than an even {100 / len(silos):.1f} %, orange: more; "
        f"the strongest shade is {100 * strongest:.0f} % off. A silo that diverges in a layer counts more there (eqs. 3-4 of the paper)."
    )
    return figure("layers", "How much each silo counts, layer by layer", words, drawing.render(), wide=True)


def _layer_names(weights: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Counters and running statistics say nothing of what was learned."""
    names = [name for name in weights if not name.endswith(("num_batches_tracked", "running_mean", "running_var"))]
    matrices = [name for name in names if name.endswith("weight")]
    return matrices if len(names) > 48 and matrices else names


def _shares(
    drawing: Drawing, known: Mapping[int, Mapping[str, Mapping[str, float]]], names: Sequence[str], rounds: Sequence[int],
    silo: str, scale: tuple[int, float], x: float, cell: tuple[float, float],
) -> None:  # fmt: skip
    """One path per shade; where there is room, the numbers too."""
    steps: dict[int, str] = {}
    written, (wide, high) = Drawing(0, 0, ""), cell
    for column, number in enumerate(rounds):
        for row, name in enumerate(names):
            share = known[number].get(name, {}).get(silo)
            if share is None:
                continue
            level = round((share * scale[0] - 1) / scale[1] * SHADES)
            steps[level] = steps.get(level, "") + box(x + column * wide, 30 + row * high, wide - 1, high - 1)
            if wide >= 26:
                on = "tiny on" if abs(level) > SHADES * 0.7 else "tiny"
                written.text(x + (column + 0.5) * wide, 30 + row * high + 11, f"{100 * share:.0f}", on)
    for level, path in sorted(steps.items()):
        kind = "more" if level > 0 else "less"
        drawing.parts.append(f'<path class="share {kind}" style="--v:{abs(level) / SHADES:.2f}" d="{path}"/>')
    drawing.parts += written.parts
