"""Several runs on one page: which is better, since when, on which classes, and what was different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import mean, stdev

import numpy as np

from components import reference
from components.plan import flat
from components.report.figures import Series, curves, figure, percent
from components.report.frame import Section, absent, assemble, grid, notes
from components.report.ledger import record_section
from components.report.look import Insight, read_target
from components.report.record import Record
from components.report.svg import hue
from components.report.tables import Cell, amount, byte_count, code, table, words
from components.report.verdict import RULES, accuracies, headline

SKIPPED = ("store",)  # where a run lies is no difference between runs


def compare_page(records: Sequence[Record]) -> str:
    names = _names(records)
    rounds = sorted({record.wanted_rounds for record in records})
    budget = f'<p class="under">Their budgets differ: {rounds[0]} to {rounds[-1]} rounds.</p>' if len(rounds) > 1 else ""
    missing = [f"{name}: {note}" for record, name in zip(records, names, strict=True) for note in record.notes]
    opening = f'<h1>{len(records)} runs</h1><p class="verdict">{_sentence(records, names)}</p>{budget}{notes(missing)}'
    parts: list[Section] = [
        (
            "runs",
            "Runs",
            "Accuracy on the unseen domain under the three rules. The oracle looks at the target: not a result.",
            _runs(records, names),
        ),
        ("learning", "Learning", "The unseen domain and the silos' held-out images, round by round.", _learning(records, names)),
        ("classes", "Classes", "Share of each class that is found on the unseen domain, last round.", _classes(records, names)),
        ("differences", "Differences", "Fields of the spec that are not the same in all runs.", _differences(records, names)),
        ("record", "Record", "The first run, to run it again.", record_section(records[0])),
    ]
    return assemble(f"{len(records)} runs · siloflow", opening, parts)


def _names(records: Sequence[Record]) -> list[str]:
    """The algorithm where that tells them apart, else the run's own name, numbered where even that does not."""
    algorithms = [str(record.spec.get("algorithm") or (record.result.algorithm if record.result else record.name)) for record in records]
    chosen = algorithms if len(set(algorithms)) == len(records) else [record.name for record in records]
    return [name if chosen.count(name) == 1 else f"{name} ({chosen[: place + 1].count(name)})" for place, name in enumerate(chosen)]


def _target(record: Record) -> str:
    return str(record.spec.get("target") or (record.result.target if record.result else "?"))


def _sentence(records: Sequence[Record], names: Sequence[str]) -> str:
    scores = [(found[1], name) for record, name in zip(records, names, strict=True) if (found := headline(record)) is not None]
    targets = {_target(record) for record in records}
    if len(scores) < 2 or len(targets) > 1:
        where = f"{len(targets)} unseen domains" if len(targets) > 1 else f"<em>{escape(targets.pop())}</em>"
        return f"<b>{len(records)} runs</b> on {where}, side by side."
    best, first = max(scores)
    others = [(score, name) for score, name in scores if name != first]
    other, second = next((pair for pair in others if pair[1] == reference.ALGORITHM), max(others))
    where = f"<em>{escape(targets.pop())}</em>"
    return (
        f"<b>{escape(first)}</b> gets the most right on {where}: <strong>{percent(best)}</strong>, "
        f'<span class="up">{100 * (best - other):.1f} points</span> more than {escape(second)}.'
    )


def _runs(records: Sequence[Record], names: Sequence[str]) -> str:
    rows = []
    for place, (record, name) in enumerate(zip(records, names, strict=True)):
        found = accuracies(record)
        sent = record.result.bytes.get("up") if record.result else None
        key = Cell(f'<i class="key {hue(place)}"></i> {escape(name)}', name.lower())
        scores = [
            amount(found.get(rule), percent(found.get(rule) or 0.0), found.get(rule), "soft" if rule == "oracle" else "") for rule in RULES
        ]
        rows.append([
            key, words(_target(record)), *scores, amount(record.wanted_rounds, str(max(record.rounds, default=0))),
            amount(sent, byte_count(sent or 0)), amount(len(record.rejected), str(len(record.rejected))),
            words(record.spec.get("seed", "–"), "n"), Cell(code(record.result.digest[:12]) if record.result else "–"),
        ])  # fmt: skip
    heads = ["run", "target", "last round", "best validation", "oracle", "rounds", "sent", "rejected", "seed", "model"]
    return table("runs", heads, rows, "", range(2, 9)) + _grid_of_targets(records)


def _grid_of_targets(records: Sequence[Record]) -> str:
    """Algorithms down, targets across, as the papers print it; only where there are several targets or seeds."""
    cells: dict[tuple[str, str], list[float]] = {}
    for record in records:
        found = headline(record)
        if found is not None:
            cells.setdefault((str(record.spec.get("algorithm", record.name)), _target(record)), []).append(found[1])
    algorithms, targets = (sorted({key[place] for key in cells}) for place in (0, 1))
    if len(targets) < 2 and all(len(values) < 2 for values in cells.values()):
        return ""
    rows = []
    for algorithm in algorithms:
        means = {target: mean(cells[algorithm, target]) for target in targets if (algorithm, target) in cells}
        over = mean(means.values()) if len(means) == len(targets) else None
        rows.append(
            [
                words(algorithm),
                *(_spread(cells.get((algorithm, target), [])) for target in targets),
                amount(over, percent(over or 0.0), over),
            ]
        )
    said = "Mean over seeds and its standard error, last round; the average only where every target was run."
    return table("targets", ["algorithm", *targets, "average"], rows, said, range(1, len(targets) + 2))


def _spread(values: Sequence[float]) -> Cell:
    if not values:
        return amount(None, "")
    error = f" ± {100 * stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return amount(mean(values), f"{100 * mean(values):.1f}{error} %", mean(values))


def _learning(records: Sequence[Record], names: Sequence[str]) -> str:
    seen, held = [], []
    for place, (record, name) in enumerate(zip(records, names, strict=True)):
        rounds = sorted(record.rounds.items())
        seen.append(Series(name, [(float(n), entry.target.accuracy) for n, entry in rounds if entry.target], hue(place)))
        held.append(Series(name, [(float(n), entry.pooled.accuracy) for n, entry in rounds if entry.pooled], hue(place)))
    plots = []
    for key, heading, said, series in (
        ("accuracy", "Unseen domain", "Accuracy of the global model on the target.", seen),
        ("validation", "Silos' held-out images", "Accuracy pooled over the silos: what the choice of a round may look at.", held),
    ):
        if any(one.points for one in series):
            plots.append(curves(key, heading, said, series, percent, whole=True))
    return grid(plots) if plots else absent("No round of these runs was measured.")


def _classes(records: Sequence[Record], names: Sequence[str]) -> str:
    found: dict[str, Insight] = {}
    for record, name in zip(records, names, strict=True):
        insight = read_target(record)
        if insight.table is not None and len(insight.table) == len(insight.classes):
            found[name] = insight
    labels = list(dict.fromkeys(label for insight in found.values() for label in insight.classes))
    if not found:
        return absent("The evaluator's tables of these runs are not there.")
    rows = []
    for label in labels:
        shares = [_recall(insight, label) for insight in found.values()]
        rows.append([words(label), *(amount(share, percent(share or 0.0), share) for share in shares)])
    body = table("classes", ["class", *found], rows, "", range(1, len(found) + 1))
    return figure("classes", "Found, by class", "Recall of each class on the target.", body, wide=True)


def _recall(insight: Insight, label: str) -> float | None:
    assert insight.table is not None
    if label not in insight.classes:
        return None
    place = insight.classes.index(label)
    images = int(insight.table[place].sum())
    return float(np.float64(insight.table[place, place]) / images) if images else None


def _differences(records: Sequence[Record], names: Sequence[str]) -> str:
    specs: list[Mapping[str, object]] = [flat(record.spec) for record in records]
    fields = list(dict.fromkeys(field for spec in specs for field in spec if field not in SKIPPED))
    rows = [
        [Cell(code(field), field), *(Cell(code(_shown(spec, field)), _shown(spec, field)) for spec in specs)]
        for field in fields
        if len({_shown(spec, field) for spec in specs}) > 1
    ]
    return table("differences", ["field", *names], rows) if rows else '<p class="good">The specs are the same.</p>'


def _shown(spec: Mapping[str, object], field: str) -> str:
    return str(spec[field]) if field in spec else "–"
