"""The first thing a reader sees: how good the model is on the domain that no silo has, and compared with what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from components import reference
from components.errors import SiloflowError
from components.report.record import Record
from components.report.tables import byte_count, seconds
from components.store import ObjectTooLarge
from fl_algorithms.evaluation import select

RULES = {
    "last": ("Last round", "the model as it was left; never looks at the target"),
    "best_validation": ("Best source validation", "the round that was best on the silos' own held-out images; never looks at the target"),
    "oracle": ("Oracle", "the round that was best on the target itself: an upper bound, not a result"),
}
HEADLINE = ("last", "best_validation")  # the first that is known; never the oracle
TRAINING = ("optimizer", "lr", "batch_size", "epochs", "steps_per_epoch")  # what two algorithms may have in common
MOST_SIBLINGS = 500


@dataclass(frozen=True)
class Compared:
    algorithm: str
    accuracy: Mapping[str, float | None]
    where: str


def accuracies(record: Record) -> dict[str, float | None]:
    """Target accuracy under the three rules; of an unfinished run, over the rounds there are."""
    if record.result is not None:
        return dict(record.result.accuracy)
    rounds = [record.rounds[number] for number in sorted(record.rounds)]
    return select([r.pooled.accuracy if r.pooled else None for r in rounds], [r.target.accuracy if r.target else None for r in rounds])


def compared_with(record: Record) -> Compared | None:
    """The run's own baseline, or FedAvg on the same federation: in the folder beside it, or in the same store."""
    if record.result is not None and record.result.baseline is not None:
        return Compared(record.result.baseline.algorithm, record.result.baseline.accuracy, "its baseline")
    if record.spec.get("algorithm") == reference.ALGORITHM:
        return None
    found = []
    for where, document in [*_beside(record), *_in_store(record)]:
        try:
            spec, accuracy = document["spec"], document["accuracy"]
            if spec["algorithm"] != reference.ALGORITHM or any(spec.get(name) != record.spec.get(name) for name in reference.SAME):
                continue
            known = {rule: float(accuracy[rule]) for rule in RULES if accuracy.get(rule) is not None}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # somebody else's damaged run is not this run's concern
        others = _trained_otherwise(record.spec, spec)
        about = f", trained with another {', '.join(others)}" if others else ""
        found.append((len(others), Compared(reference.ALGORITHM, known, f"run {where}{about}")))
    return min(found, key=lambda item: item[0])[1] if found else None


def _trained_otherwise(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    mine, other = ours.get("hyper"), theirs.get("hyper")
    if not isinstance(mine, dict) or not isinstance(other, dict):
        return []
    return [name for name in TRAINING if name in mine and name in other and mine[name] != other[name]]


def _beside(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    folder = record.folder.absolute() if record.folder is not None else None
    try:
        beside = sorted(path for path in folder.parent.iterdir() if path != folder and (path / "result.json").is_file()) if folder else []
    except OSError:
        return
    for path in beside[:MOST_SIBLINGS]:
        try:
            spec = json.loads((path / "plan.json").read_bytes())["spec"]
            if spec["algorithm"] == reference.ALGORITHM:
                yield f"{path.name} beside it", {"spec": spec, "accuracy": json.loads((path / "result.json").read_bytes())["accuracy"]}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue


def _in_store(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    federation = record.federation
    try:
        document = reference.find(federation.store, federation.silos, record.spec) if federation is not None else None
    except (SiloflowError, ObjectTooLarge, ValueError, RecursionError):
        return
    if document is not None:
        yield f"{str(document.get('run'))[:64]} in the same store", document


def headline(record: Record) -> tuple[str, float] | None:
    found = accuracies(record)
    return next(((rule, value) for rule in HEADLINE if (value := found.get(rule)) is not None), None)


def verdict(record: Record, classes: int) -> str:
    """The sentence, the three rules as cards, and the run in numbers."""
    target = str(record.spec.get("target") or (record.result.target if record.result else "the target"))
    algorithm = str(record.spec.get("algorithm") or (record.result.algorithm if record.result else "?"))
    other, best = compared_with(record), headline(record)
    if best is None:
        sentence = f"<b>{escape(algorithm)}</b> has not been evaluated on <em>{escape(target)}</em> yet."
    else:
        score = f"<strong>{100 * best[1]:.1f} %</strong> right on <em>{escape(target)}</em>, which no silo has seen"
        sentence = f"<b>{escape(algorithm)}</b> gets {score}{_difference(best, other)}."
    return f'<p class="verdict">{sentence}</p>{_cards(record, other, classes)}{_facts(record)}'


def _difference(best: tuple[str, float], other: Compared | None) -> str:
    theirs = other.accuracy.get(best[0]) if other is not None else None
    if other is None or theirs is None:
        return ""
    points = 100 * (best[1] - theirs)
    if abs(points) < 0.05:
        return f": the same as {escape(other.algorithm)}"
    kind, way = ("up", "more") if points > 0 else ("down", "less")
    return f': <span class="{kind}">{abs(points):.1f} points {way}</span> than {escape(other.algorithm)}'


def _cards(record: Record, other: Compared | None, classes: int) -> str:
    cards = ""
    for rule, value in sorted(accuracies(record).items(), key=lambda item: list(RULES).index(item[0]) if item[0] in RULES else 9):
        if rule not in RULES:
            continue
        name, meaning = RULES[rule]
        theirs = other.accuracy.get(rule) if other else None
        against = f"<small>{escape(other.algorithm)}: {100 * theirs:.1f} %</small>" if other and theirs is not None else ""
        shown = f"{100 * value:.1f}<i>%</i>" if value is not None else "–"
        width = f' style="--v:{value or 0:.3f};--w:{theirs or 0:.3f}"'
        ticks = '<span class="gauge"><i></i>' + ('<u title="compared with"></u>' if theirs is not None else "") + "</span>"
        label = f"{escape(name)}" + (' <em class="tag">not a result</em>' if rule == "oracle" else "")
        cards += f'<div class="card {rule}"{width}><h3>{label}</h3><p class="big">{shown}</p>{ticks}{against}<p>{meaning}</p></div>'
    chance = f"Guessing one of {classes} classes gives {100 / classes:.1f} %." if classes else ""
    source = (
        f" Compared with {escape(other.algorithm)} ({escape(other.where)})." if other else " No FedAvg run of this federation was found."
    )
    return f'<div class="cards">{cards}</div><p class="under">{chance}{source}</p>'


def _facts(record: Record) -> str:
    sent = sum(update.payload.bytes for update in record.updates if update.payload and update.author in record.silos)
    spans = [(m.began, m.began + sum(m.seconds.values())) for m in record.timed if m.began is not None]
    wall = max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else None
    facts = [
        ("rounds", f"{max(record.rounds, default=0)}" + (f" of {record.wanted_rounds}" if not record.finished else "")),
        ("silos", str(len(record.silos))),
        ("sent by silos", byte_count(sent) if sent else byte_count(record.result.bytes.get("up", 0)) if record.result else "–"),
        ("first to last step", seconds(wall) if wall is not None else "–"),
        ("rejected updates", str(len(record.rejected))),
    ]
    return '<ul class="facts">' + "".join(f"<li><b>{escape(value)}</b>{escape(name)}</li>" for name, value in facts) + "</ul>"
