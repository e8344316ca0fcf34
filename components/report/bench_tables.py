"""The tables of a benchmark: as the papers print them, with the papers' own values beneath; cost, failures, gates, cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from components.report.bench_scores import Scores, Spread, rounds_of
from components.report.tables import Beneath, Cell, amount, byte_count, code, pairs, seconds, table, words

Published = Mapping[tuple[str, str | None], Sequence[tuple[str, str]]]  # (algorithm, target or None) -> (value, "source; how it differs")
RULES = {
    "last": ("After the last round", "The model as it was left; nothing was chosen."),
    "best_validation": ("Best source validation", "The round that was best on the silos' own held-out images."),
    "oracle": ("Oracle", "The round that was best on the target itself: an upper bound, <b>not a result</b>."),
}
SAME = "same setting"
MOST_PAPERS = 4  # beneath an algorithm, the closest first


# ---- accuracy


def accuracy(scores: Scores, rule: str, published: Published) -> str:
    """One table in the papers' layout. `published` may be empty: papers' values follow one rule only."""
    heads = ["algorithm", *scores.targets, "average", "seeds"]
    best = {column: max((found.mean for found in cells if found), default=None) for column, cells in _columns(scores, rule).items()}
    marks: dict[str, str] = {}
    rows: list[Sequence[Cell]] = []
    for name in scores.algorithms:
        cells = [scores.cell(name, target, rule) for target in scores.targets]
        found = [*cells, scores.average(name, rule)]
        shown = [_spread(one, best[column], rule) for one, column in zip(found, best, strict=True)]
        seeds = sorted({one.seeds for one in cells if one})
        count = "–" if not seeds else f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        rows.append([words(name), *shown, amount(seeds[0] if seeds else None, count)])
        rows += _papers(name, scores.targets, published, marks)
    heading, meaning = RULES[rule]
    tag = ' <em class="tag">not a result</em>' if rule == "oracle" else ""
    caption = f"<b>{heading}</b>{tag}. {meaning} Target accuracy in %, mean ± standard error over the seeds."
    return table(f"accuracy-{rule}", heads, rows, caption, range(1, len(heads))) + _footnotes(marks)


def _columns(scores: Scores, rule: str) -> dict[str, list[Spread | None]]:
    columns = {target: [scores.cell(name, target, rule) for name in scores.algorithms] for target in scores.targets}
    return {**columns, "": [scores.average(name, rule) for name in scores.algorithms]}


def _spread(found: Spread | None, best: float | None, rule: str) -> Cell:
    if found is None:
        return amount(None, "")
    kind = ("soft" if rule == "oracle" else "") + (" best" if found.mean == best else "")
    return amount(found.mean, found.points(), found.mean, kind)


def _papers(name: str, targets: Sequence[str], published: Published, marks: dict[str, str]) -> list[Beneath]:
    """A row per paper and setting; `marks` collects the letter of each way in which a setting differs."""
    by_note: dict[str, dict[str | None, str]] = {}
    for target in [*targets, None]:
        for text, note in published.get((name, target), ()):
            by_note.setdefault(note, {})[target] = text
    rows = []
    for note, values in list(by_note.items())[:MOST_PAPERS]:
        source, _, about = note.partition("; ")
        if about == SAME:
            label = f'{escape(source)} <em class="tag same">{SAME}</em>'
        else:
            mark = marks.setdefault(about, _letter(len(marks)))
            label = f'{escape(source)} <em class="tag">other setting <a href="#differs-{mark}">{mark}</a></em>'
        cells = [Cell(escape(values.get(target, "–")), "", kind="n") for target in [*targets, None]]
        rows.append(Beneath([Cell(label, name), *cells, Cell("", "")]))
    return rows


def _letter(place: int) -> str:
    return chr(ord("a") + place) if place < 26 else str(place + 1)


def _footnotes(marks: Mapping[str, str]) -> str:
    if not marks:
        return ""
    items = "".join(
        f'<li id="differs-{mark}"><b>{mark}</b> {escape(about.removeprefix("other setting: "))}</li>' for about, mark in marks.items()
    )
    said = (
        "In italics: what papers print. Where their setting is another one the values are not comparable; the letter says what theirs has:"
    )
    return f'<div class="footnotes"><p>{said}</p><ul>{items}</ul></div>'


# ---- cost


def cost(scores: Scores) -> str:
    rows = []
    most = max((median([row.get("cpu_seconds") or 0.0 for row in scores.of(name)]) for name in scores.algorithms), default=0.0) or 1.0
    for name in scores.algorithms:
        own = scores.of(name)
        wall, cpu, a_round, up, down = (
            median(values)
            for values in (
                [row.get("seconds") or 0.0 for row in own],
                [row.get("cpu_seconds") or 0.0 for row in own],
                [(row.get("cpu_seconds") or 0.0) / rounds_of(row) for row in own],
                [row.get("bytes", {}).get("up") or 0 for row in own],
                [row.get("bytes", {}).get("down") or 0 for row in own],
            )
        )
        rows.append([
            words(name), amount(cpu, seconds(cpu), cpu / most), amount(a_round, f"{a_round:.3g} s"), amount(wall, seconds(wall)),
            amount(up, byte_count(up)), amount(down, byte_count(down)), amount(len(own), str(len(own))),
        ])  # fmt: skip
    heads = ["algorithm", "CPU time", "CPU a round", "wall time", "sent by silos", "received", "runs"]
    return table(
        "cost", heads, rows, "Medians over the runs. CPU time is of all processes; a busy machine stretches wall time.", range(1, 7)
    )


# ---- what went wrong, and the gates


def failures(scores: Scores) -> str:
    if not scores.failed:
        return f'<p class="good" id="failed">All {len(scores.rows)} cells finished.</p>'
    rows = [
        [words(row["algorithm"]), words("exact" if row.get("exact") else row["target"]), amount(row["seed"], str(row["seed"])),
         amount(row.get("exit_code"), str(row.get("exit_code"))), Cell(escape(str(row.get("error"))), str(row.get("error")), kind="long")]
        for row in scores.failed
    ]  # fmt: skip
    said = "Cells that ended with an error. The same command tries them again."
    return table("failed", ["algorithm", "target", "seed", "exit code", "what it said"], rows, said, [2, 3])


VERDICTS = {"passed": "✓ passed", "failed": "✗ failed", "no baseline": "? no baseline", "not gated": "– not gated"}
WORST_FIRST = ("failed", "no baseline", "passed")


def chip(verdict: str) -> str:
    kind = verdict.replace(" ", "-") if verdict in VERDICTS else "no-baseline"
    return f'<span class="chip {kind}">{escape(VERDICTS.get(verdict, verdict))}</span>'


def gates(found: Sequence[Mapping[str, Any]]) -> str:
    order = sorted(found, key=lambda gate: WORST_FIRST.index(gate["verdict"]) if gate["verdict"] in WORST_FIRST else 0)
    rows = [
        [words(gate["gate"]), words(gate["name"]), Cell(chip(str(gate["verdict"])), str(gate["verdict"])), words(gate["found"]),
         words(gate["expected"])]
        for gate in order
    ]  # fmt: skip
    said = "What failed first. A gate without baseline is not green: it had nothing to compare with."
    return table("gates", ["gate", "of", "verdict", "found", "expected"], rows, said)


def nights(history: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for night in reversed(history):
        when, system = str(night.get("when", "?")), night.get("system", {})
        verdict = str(night.get("verdict", "not gated"))
        rows.append([
            words(when.replace("T", " ").removesuffix("Z")), Cell(chip(verdict), verdict), Cell(code(str(night.get("commit", ""))[:12])),
            words(night.get("version", "")), Cell(code(str(night.get("exact") or "–")[:12])), words(system.get("processor", "")),
        ])  # fmt: skip
    return table("nights", ["night (UTC)", "gates", "commit", "version", "exact digest", "processor"], rows, "The newest first.")


# ---- what exactly was run


def cells(scores: Scores) -> str:
    heads = ["algorithm", "target", "seed", "last", "best validation", "oracle", "wall time", "model digest", "spec digest"]
    rows = [_finished(row) for row in scores.rows if row["status"] == "done"]
    return table("cells", heads, rows, "Every finished run. Same spec on the same hardware: same model digest.", range(2, 7))


def _finished(row: Mapping[str, Any]) -> list[Cell]:
    tag = ' <em class="tag">exact</em>' if row.get("exact") else ""
    accuracy = {rule: row["accuracy"].get(rule) for rule in RULES}
    wall, digests = row.get("seconds"), [str(row.get(field) or "–") for field in ("digest", "spec_digest")]
    return [
        Cell(escape(str(row["algorithm"])) + tag, str(row["algorithm"])), words(row["target"]), amount(row["seed"], str(row["seed"])),
        *(amount(value, f"{100 * (value or 0.0):.1f}", kind="soft" if rule == "oracle" else "") for rule, value in accuracy.items()),
        amount(wall, seconds(wall or 0.0)), *(Cell(code(digest[:16]), digest) for digest in digests),
    ]  # fmt: skip


def settings(scores: Scores) -> tuple[str, str]:
    """What all runs have in common, and a table of what differs between algorithms."""
    own = {name: dict(scores.of(name)[0]["setting"]) for name in scores.algorithms}
    fields = list(dict.fromkeys(field for setting in own.values() for field in setting))
    common = [field for field in fields if len({str(setting.get(field)) for setting in own.values()}) == 1]
    shown = pairs([(_named(field), code(_value(next(iter(own.values())).get(field)))) for field in common]) if own else ""
    others = [field for field in fields if field not in common]
    rows = [[words(name), *(words(_value(setting.get(field)), "n") for field in others)] for name, setting in own.items()]
    return shown, table(
        "settings", ["algorithm", *map(_named, others)], rows, "Settings that are not the same for all.", range(1, len(others) + 1)
    ) if others else ""


def _named(field: str) -> str:
    return field.replace("_", " ")


def _value(value: object) -> str:
    return "–" if value is None else str(value)
