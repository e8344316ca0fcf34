"""A benchmark as one page: who is best and by how much, next to the papers' values; cost, failures, gates, and the nights before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from components.report import bench_figures as figures
from components.report import bench_tables as tables
from components.report.bench_scores import ERRORS, REFERENCE, Row, Scores, Spread
from components.report.bench_tables import Published
from components.report.frame import Section, absent, assemble, grid, notes
from components.report.tables import byte_count, code, pairs, seconds


def bench_page(
    title: str, rows: Sequence[Row], published: Published, nights: Sequence[Mapping[str, Any]], gates: Sequence[Mapping[str, Any]]
) -> str:
    """`rows` of results.jsonl, `nights` of history.json (oldest first), `published` the papers' values by algorithm and target.

    A published value's note is its source, then "; same setting" or "; other setting: " and in what it differs.
    """
    scores = Scores(rows)
    opening = (
        f'<h1>benchmark {escape(title)}</h1><p class="about">{escape(_about(scores))}</p><p class="verdict">{_sentence(scores)}</p>'
        f"{_under(scores)}{_facts(scores, gates)}{notes(_trouble(scores, gates), 'Not everything is green')}"
    )
    parts: list[Section] = [
        ("accuracy", "Accuracy", "On domains that no silo has seen: targets across, as the papers print it.", _accuracy(scores, published)),
        ("cost", "Cost", "What a run takes, and what it sends.", _cost(scores)),
        ("gates", "Gates", "Is it as accurate, as fast and bit for bit the same as it was?", _gates(gates)),
        ("nights", "Nights", "The same benchmark, night by night.", _nights(scores, nights)),
        ("cells", "Cells", "Every run of the benchmark.", tables.failures(scores) + (tables.cells(scores) if scores.done else "")),
        ("record", "Record", "What it takes to run exactly this again.", _record(scores)),
    ]
    return assemble(f"benchmark {title} · siloflow", opening, parts)


# ---- the first screen


def _about(scores: Scores) -> str:
    first = scores.done[0] if scores.done else {}
    setting = first.get("setting", {})
    words = [
        str(first.get("dataset", "")), str(setting.get("backbone", "")),
        f"{_count(len(scores.algorithms), 'algorithm')} × {_count(len(scores.targets), 'target')} × {_count(_seeds(scores), 'seed')}",
        str(max((str(row.get("when", "")) for row in scores.rows), default=""))[:10],
    ]  # fmt: skip
    return " · ".join(word for word in words if word)


def _seeds(scores: Scores) -> int:
    return len({row["seed"] for row in scores.done})


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _best(scores: Scores) -> tuple[str, Spread] | None:
    for name in scores.algorithms[:1]:
        found = scores.average(name)
        return (name, found) if found is not None else None
    return None


def _where(scores: Scores) -> str:
    if len(scores.targets) == 1:
        return f"<em>{escape(scores.targets[0])}</em>"
    return f"{len(scores.targets)} unseen domains"


def _sentence(scores: Scores) -> str:
    best = _best(scores)
    if best is None:
        return "<b>No algorithm</b> has finished on every target yet."
    name, found = best
    score = f"<strong>{100 * found.mean:.1f} %</strong> right on {_where(scores)}"
    other = _rival(scores, name)
    if other is None:
        return f"<b>{escape(name)}</b> gets {score}."
    gain = 100 * other[1].mean
    more = f'<span class="up">{gain:.1f} points more</span> than' if gain >= 0.05 else "the same as"
    return f"<b>{escape(name)}</b> gets the most: {score}, {more} {escape(other[0])}."


def _rival(scores: Scores, best: str) -> tuple[str, Spread] | None:
    """FedAvg, or where that is the best, who comes next."""
    others = [REFERENCE] if best != REFERENCE and REFERENCE in scores.algorithms else [name for name in scores.algorithms if name != best]
    for other in others:
        gain = scores.gain(best, other)
        if gain is not None:
            return other, gain
    return None


def _under(scores: Scores) -> str:
    """How sure that is."""
    best = _best(scores)
    if best is None:
        return ""
    other = _rival(scores, best[0])
    said = f"Mean of {_count(len(scores.targets), 'target')} and {_count(best[1].seeds, 'seed')} after the last round."
    if other is not None:
        gain = other[1]
        if gain.error is None:
            said += " One seed says nothing about chance: take three or more."
        else:
            sure = gain.mean > ERRORS * gain.error
            said += f" Seed by seed the difference is {gain.points()} points: "
            said += "more than two standard errors." if sure else "within two standard errors, so these seeds do not tell the two apart."
    unranked = [name for name in scores.algorithms if scores.average(name) is None]
    said += f" Not ranked, since targets are missing: {', '.join(unranked)}." if unranked else ""
    return f'<p class="under">{escape(said)}</p>'


def _facts(scores: Scores, gates: Sequence[Mapping[str, Any]]) -> str:
    cpu = sum(row.get("cpu_seconds") or 0.0 for row in scores.done)
    sent = sum(row.get("bytes", {}).get("up") or 0 for row in scores.done)
    facts = [
        ("cells finished", f"{len(scores.rows) - len(scores.failed)} of {len(scores.rows)}"),
        ("CPU time in all", seconds(cpu)),
        ("sent by silos", byte_count(sent)),
    ]
    if gates:
        passed = sum(gate["verdict"] == "passed" for gate in gates)
        facts.append(("gates passed", f"{passed} of {len(gates)}"))
    return '<ul class="facts">' + "".join(f"<li><b>{escape(value)}</b>{escape(name)}</li>" for name, value in facts) + "</ul>"


def _trouble(scores: Scores, gates: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [
        f"{gate['gate']} gate of {gate['name']}: {gate['verdict']}; found {gate['found']}, expected {gate['expected']}"
        for verdict in ("failed", "no baseline")
        for gate in gates
        if gate["verdict"] == verdict
    ]
    return found + [f"{row['algorithm']} on {row['target']}, seed {row['seed']}: {row.get('error')}" for row in scores.failed]


# ---- sections


def _accuracy(scores: Scores, published: Published) -> str:
    if not scores.done:
        return absent("No cell has finished.")
    drawn = figures.standing(scores) if _best(scores) else ""
    return drawn + "".join(tables.accuracy(scores, rule, published if rule == "last" else {}) for rule in tables.RULES)


def _cost(scores: Scores) -> str:
    if not scores.done:
        return absent("No cell has finished.")
    return grid(figures.cost(scores)) + tables.cost(scores)


def _gates(gates: Sequence[Mapping[str, Any]]) -> str:
    return tables.gates(gates) if gates else absent("The gates were not asked for: siloflow bench ... --gate BASELINE.json")


def _nights(scores: Scores, nights: Sequence[Mapping[str, Any]]) -> str:
    if not nights:
        return absent("There is no history: siloflow bench ... --history STORE keeps every night.")
    plots = figures.trend(scores, nights)
    said = '<p class="under">One night so far: the lines begin with the second.</p>' if len(nights) == 1 else ""
    return (grid(plots) if plots else "") + said + tables.nights(nights)


def _record(scores: Scores) -> str:
    if not scores.done:
        return absent("No cell has finished, so nothing was recorded.")
    common, differing = tables.settings(scores)
    systems = list(dict.fromkeys(tuple(sorted((str(k), str(v)) for k, v in row.get("system", {}).items())) for row in scores.done))
    environments = "".join(f"<h3>Environment{f' {at + 1}' if len(systems) > 1 else ''}</h3>{_plain(s)}" for at, s in enumerate(systems[:4]))
    digests = f"<h3>Digests</h3>{pairs(_digests(scores))}"
    return f'<div class="grid"><div><h3>Setting</h3>{common}{digests}</div><div>{environments}</div></div>{differing}'


def _plain(values: Sequence[tuple[str, str]]) -> str:
    return pairs([(name, escape(value)) for name, value in values])


def _digests(scores: Scores) -> list[tuple[str, str]]:
    """Each value that occurs, so that rows of another commit or other images are seen."""
    shown = []
    for name, field in (("version", "version"), ("commit", "commit"), ("images", "data"), ("initial weights", "weights")):
        values = list(dict.fromkeys(str(row.get(field) or "–") for row in scores.done))
        more = f" and {len(values) - 4} more" if len(values) > 4 else ""
        shown.append((name, "<br>".join(code(value) for value in values[:4]) + more))
    exact = [str(row.get("digest")) for row in scores.rows if row.get("exact") and row["status"] == "done"]
    return [*shown, *(("exact run", code(digest)) for digest in exact)]
