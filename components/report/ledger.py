"""The sections of the page about the federation: who counted how much, what left whom, how long it took, what exactly was run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from html import escape

import yaml

from components import layout
from components.manifest import UpdateManifest
from components.report.figures import Series, curves, percent, plain, silo_series
from components.report.frame import absent, grid
from components.report.record import DAY, Record
from components.report.sections import by_silo
from components.report.strips import STAGES, layers, timeline
from components.report.tables import amount, byte_count, code, pairs, seconds, table, words
from fl_algorithms.registry import ALGORITHMS

MOST_KEYS = 400


# ---- silos


def silos(record: Record) -> str:
    plots = []
    weights = silo_series(by_silo(record, lambda entry: dict(entry.weights)), record.silos)
    if weights:
        numbers = sorted(record.rounds)
        even = Series("even share", [(float(n), 1 / max(1, len(record.silos))) for n in (numbers[0], numbers[-1])], "even")
        plots.append(curves("weights", "Aggregation weights", "How much each silo counts in the average.", [*weights, even], percent))
    else:
        plots.append(absent("Aggregation weights were not recorded."))
    drift = silo_series(by_silo(record, lambda entry: dict(entry.drift)), record.silos)
    if drift:
        said = "How far its training moved the model from the one it was given (L2 norm, as each silo reports it)."
        plots.append(curves("drift", "Drift per silo", said, drift, plain))
    else:
        plots.append(absent("Drift was not recorded: the run is of a version before it was."))
    by_layer = layers(record)
    return grid(plots) + (by_layer or "")


# ---- what left each silo


def exchange(record: Record) -> str:
    sent: dict[tuple[str, str], list[UpdateManifest]] = defaultdict(list)
    for update in record.updates:
        if update.author != layout.EVALUATOR:
            sent[update.author, update.exchange].append(update)
    rows = []
    for (silo, name), updates in sorted(sent.items()):
        up, down = sum(u.payload.bytes for u in updates if u.payload), sum(u.received_bytes for u in updates)
        keys, numbers = len(updates[-1].tensors), sorted({metric for u in updates for metric in u.metrics})
        rows.append([
            words(silo), words(name), amount(len(updates), f"{len(updates):,}"), amount(keys, f"{keys:,}" if keys else "none"),
            amount(up, byte_count(up)), amount(down, byte_count(down)), words(", ".join(numbers) or "none"),
        ])  # fmt: skip
    heads = ["silo", "exchange", "times", "tensors each", "bytes out", "bytes in", "numbers beside them"]
    said = "Everything that left each silo, read from the manifests" + _declared(record)
    parts = [table("left", heads, rows, said, range(2, 6)) if rows else absent("The manifests that say what left each silo are not there.")]
    return "".join([*parts, _keys(sent.values()), _rejections(record)])


def _declared(record: Record) -> str:
    """What the algorithm says of itself, next to what it did."""
    entry = ALGORITHMS.get(str(record.spec.get("algorithm")))
    return f". What {escape(str(record.spec['algorithm']))} declares: {escape(entry.load().leaves_silo)}." if entry else "."


def _keys(groups: Iterable[list[UpdateManifest]]) -> str:
    """Every tensor by name: what is claimed above can be checked here."""
    seen: dict[str, dict[str, tuple[str, list[int]]]] = {}
    for updates in groups:
        seen.setdefault(updates[-1].exchange, {}).update(updates[-1].tensors)
    parts = ""
    for name, tensors in sorted(seen.items()):
        if tensors:
            shown = list(tensors.items())[:MOST_KEYS]
            lines = "\n".join(f"{key}  {kind} {' x '.join(map(str, shape)) or 'one number'}" for key, (kind, shape) in shown)
            more = f"\n... {len(tensors) - len(shown)} more" if len(tensors) > len(shown) else ""
            title = f"The {len(tensors)} tensors of <code>{escape(name)}</code>"
            parts += f"<details><summary>{title}</summary><pre>{escape(lines + more)}</pre></details>"
    return parts


def _rejections(record: Record) -> str:
    missing = [(b.round, b.exchange, silo) for b in record.broadcasts for silo in b.missing]
    rows = [
        [words(item.get("silo")), amount(item.get("round"), str(item.get("round"))), words(item.get("exchange")), words(item.get("reason")),
         words(item.get("detail"), "long")]
        for item in record.rejected
    ]  # fmt: skip
    rows += [
        [words(silo), amount(number, str(number)), words(name), words("published nothing"), words("")] for number, name, silo in missing
    ]
    if not rows:
        return '<p class="good" id="rejected">No update was rejected, and no silo was missing.</p>'
    said = "Updates that were never averaged, with the guard's reason, and silos that published nothing."
    return table("rejected", ["silo", "round", "exchange", "reason", "detail"], rows, said, [1])


# ---- time


def time(record: Record) -> str:
    totals: dict[str, float] = defaultdict(float)
    counted: dict[str, int] = defaultdict(int)
    for manifest in [*record.updates, *record.broadcasts]:
        for stage, value in manifest.seconds.items():
            if 0 <= value < DAY:  # a silo may say anything
                totals[stage] += value
                counted[stage] += 1
    if not totals and record.result is not None:
        totals.update(record.result.seconds)
    if not totals:
        return absent("No step of this run says how long it took.")
    whole = sum(totals.values()) or 1.0
    rows = [
        [words(STAGES.get(stage, stage)), words(stage), amount(value, seconds(value), value / whole),
         amount(value / counted[stage] if counted[stage] else None, f"{value / max(1, counted[stage]):.3f} s")]
        for stage, value in sorted(totals.items(), key=lambda item: -item[1])
    ]  # fmt: skip
    drawn = timeline(record) or absent("When each step began was not recorded: the run is of a version before it was.")
    said = "Seconds of all processes added up, by stage."
    return drawn + table("stages", ["stage", "as recorded", "in all", "each time"], rows, said, [2, 3])


# ---- what exactly was run


def record_section(record: Record) -> str:
    text = yaml.safe_dump(record.spec, sort_keys=False) if record.spec else ""
    parts = []
    if text:
        button = '<button type="button" class="copy" data-copy="spec-text">Copy</button>'
        shown_text = f'<pre id="spec-text" tabindex="0">{escape(text)}</pre>'
        parts.append(f'<div class="spec"><div class="bar-top"><h3>Spec</h3>{button}</div>{shown_text}</div>')
    else:
        parts.append(absent("The spec of this run cannot be read."))
    environment = record.plan.get("environment")
    shown = [(str(name), escape(str(value))) for name, value in environment.items()] if isinstance(environment, dict) else []
    facts = f"<h3>Environment</h3>{pairs(shown)}" if shown else absent("The environment was not recorded.")
    digests = f"<h3>Seed and digests</h3>{pairs(_digests(record))}"
    return f'<div class="grid">{"".join(parts)}<div>{facts}{digests}</div></div>'


def _digests(record: Record) -> list[tuple[str, str]]:
    rows = [("seed", code(str(record.spec.get("seed", record.result.seed if record.result else "–"))))]
    if record.result is not None:
        rows.append(("model (SHA-256)", code(record.result.digest)))
    if record.federation is not None:
        rows.append(("spec (SHA-256)", code(record.federation.digest)))
    images = record.plan.get("images")
    if isinstance(images, dict):
        rows += [(f"images of {name}", code(str(value))) for name, value in sorted(images.items())]
    return rows
