"""The sections of the page about training: curves, domains, classes, and what the model sees."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np
from PIL import Image

from components.report.figures import Series, confusion_matrix, curves, figure, percent, plain, scatter, silo_series
from components.report.frame import absent, grid
from components.report.look import REFERENCE, Insight, Panel
from components.report.record import Record, Round, Score
from components.report.svg import hue
from components.report.tables import Cell, amount, table, words

PICTURE = 120  # pixels of a panel on the page
LARGEST = 1e12  # a silo may report anything; what is beyond this would flatten every other curve
MOST_CONFUSIONS = 10
# dark to bright, readable without seeing red or green: black, violet, orange, yellow
HEAT = np.array([[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]], np.float32)


# ---- learning


def _over_rounds(record: Record, value: Callable[[Round], float | None]) -> list[tuple[float, float]]:
    found = [(float(number), value(record.rounds[number])) for number in sorted(record.rounds)]
    return [(number, measured) for number, measured in found if measured is not None and abs(measured) < LARGEST]


def by_silo(record: Record, values: Callable[[Round], Mapping[str, float | None]]) -> dict[str, Sequence[tuple[float, float]]]:
    return {silo: _over_rounds(record, lambda entry, silo=silo: values(entry).get(silo)) for silo in record.silos}  # type: ignore[misc]


def learning(record: Record) -> str:
    target = str(record.spec.get("target") or "target")
    accuracy = [
        Series(f"{target} (unseen)", _over_rounds(record, lambda entry: entry.target.accuracy if entry.target else None), "target"),
        Series("all silos", _over_rounds(record, lambda entry: entry.pooled.accuracy if entry.pooled else None), "pooled"),
        *silo_series(by_silo(record, lambda entry: {name: score.accuracy for name, score in entry.validation.items()}), record.silos),
    ]
    loss = [
        Series(f"{target} (unseen)", _over_rounds(record, lambda entry: entry.target.loss if entry.target else None), "target"),
        *silo_series(by_silo(record, lambda entry: {name: score.loss for name, score in entry.validation.items()}), record.silos),
    ]
    training = silo_series(by_silo(record, lambda entry: dict(entry.train_loss)), record.silos)
    plots = []
    if any(one.points for one in accuracy):
        said = "The global model on the unseen domain, and on the images each silo holds back."
        plots.append(curves("accuracy", "Accuracy per round", said, accuracy, percent, whole=True))
    if any(one.points for one in loss):
        plots.append(curves("loss", "Loss per round", "Mean cross-entropy of the same images.", loss, plain))
    if any(one.points for one in training):
        said = "What each silo reports of its own training, the algorithm's extra terms included."
        plots.append(curves("training", "Training loss", said, training, plain))
    if record.rounds:
        plots.append(_rounds(record))
    return grid(plots) if plots else absent("No round of this run was measured.")


def _rounds(record: Record) -> str:
    rows = []
    for number, entry in sorted(record.rounds.items()):
        seen, held = entry.target, entry.pooled
        mean = sum(entry.train_loss.values()) / len(entry.train_loss) if entry.train_loss else None
        scores = [_accuracy(seen), _accuracy(held)]
        rows.append([Cell(str(number), number, kind="n"), *scores, amount(mean, plain(mean) if mean is not None else "")])
    body = table("rounds", ["round", "unseen domain", "silos held out", "training loss"], rows, "", range(4))
    return figure("rounds", "In numbers", "The same, to be sorted and copied.", body)


def _accuracy(score: Score | None) -> Cell:
    return amount(score.accuracy, percent(score.accuracy), score.accuracy) if score is not None else amount(None, "")


# ---- domains and classes


def domains(record: Record, insight: Insight) -> str:
    last = record.rounds[max(record.rounds)] if record.rounds else None
    target = str(record.spec.get("target") or "target")
    rows = []
    if last is not None and last.target is not None:
        rows.append([Cell(f'<b>{escape(target)}</b> <em class="tag">unseen</em>', f"0{target}"), *_scores(last.target, None, None)])
    for silo in record.silos:
        score = last.validation.get(silo) if last else None
        rows.append([words(silo), *_scores(score, last.train_loss.get(silo) if last else None, _images(record).get(silo))])
    heads = ["domain or silo", "accuracy", "loss", "images counted", "training images", "training loss"]
    said = f"Global model of round {last.number}: the target, then each silo's held-out images." if last else ""
    parts = [table("domains", heads, rows, said, range(1, 6))] if rows else [absent("No domain of this run was counted.")]
    if insight.table is not None and len(insight.table) == len(insight.classes):
        parts.append(_classes(insight))
        said = f"Images of {escape(target)} after round {insight.table_round}. Down: what it is. Across: what the model said."
        matrix = confusion_matrix("confusion", said, insight.table, insight.classes)
        parts.append(grid([matrix, _confusions(insight.table, insight.classes)]))
    else:
        parts.append(absent("Classes and confusion: the evaluator's table is not there, and the images to count again are not either."))
    return "".join(parts)


def _images(record: Record) -> dict[str, int]:
    return dict(record.broadcasts[-1].roster) if record.broadcasts else {}


def _scores(score: Score | None, train_loss: float | None, images: int | None) -> list[Cell]:
    total, loss = (score.total, score.loss) if score else (None, None)
    return [
        _accuracy(score),
        amount(loss, plain(loss) if loss is not None else ""),
        amount(total or None, f"{total:,}" if total else ""),
        amount(images, f"{images:,}" if images is not None else ""),
        amount(train_loss, plain(train_loss) if train_loss is not None else ""),
    ]


def _classes(insight: Insight) -> str:
    counts, others = insight.table, list(insight.by_domain)[1:]
    assert counts is not None
    rows = []
    for place, name in enumerate(insight.classes):
        images, said, right = int(counts[place].sum()), int(counts[:, place].sum()), int(counts[place, place])
        recall, precision = right / images if images else None, right / said if said else None
        cells = [words(name), amount(recall, percent(recall or 0.0), recall), amount(precision, percent(precision or 0.0), precision)]
        cells.append(amount(images, f"{images:,}"))
        for domain in others:
            answers = insight.by_domain[domain]
            own = answers.labels == place
            share = float((answers.predicted[own] == place).mean()) if own.any() else None
            cells.append(amount(share, f"{percent(share or 0.0)}", share, "soft"))
        rows.append(cells)
    heads = ["class", "found (recall)", "right when said", "images", *(f"found on {domain}" for domain in others)]
    words_ = "Each class on the unseen domain" + ("; for comparison, found on held-out images of the sources (a sample)" if others else "")
    return table("classes", heads, rows, words_ + ".", range(1, len(heads)))


def _confusions(counts: np.ndarray, classes: Sequence[str]) -> str:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = [divmod(int(at), len(classes)) for at in np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSIONS]]
    rows = [
        [words(classes[a]), words(classes[b]), amount(int(wrong[a, b]), f"{wrong[a, b]:,}", float(wrong[a, b] / max(1, counts[a].sum())))]
        for a, b in order
        if wrong[a, b]
    ]
    body = table("confusions", ["is", "taken for", "images"], rows, "", [2]) if rows else "<p>No image was taken for another class.</p>"
    return figure("confusions", "Most frequent mistakes", "Bars: share of the images of that class.", body)


# ---- what the model sees


def sees(record: Record, insight: Insight) -> str:
    parts = []
    if insight.places is not None:
        plots = _planes(record, insight, insight.places)
        parts.append(grid(plots, "grid three" if len(plots) > 2 else "grid"))
    else:
        parts.append(absent("Features in the plane need the model and images it can be shown; they are not here."))
    if insight.panels:
        for name, right in (("Right on the target", True), ("Wrong on the target", False)):
            chosen = [panel for panel in insight.panels if panel.right == right]
            if chosen:
                parts.append(_panels(name, chosen))
    else:
        parts.append(absent("Grad-CAM needs the model and images of the target; they are not here."))
    return "".join(parts)


def _planes(record: Record, insight: Insight, places: np.ndarray) -> list[str]:
    target = str(record.spec.get("target"))
    labels, owners = np.array(insight.point_labels), np.array(insight.point_domains)
    real = owners != REFERENCE
    by_class = [(n, hue(i), i // 7, np.flatnonzero(real & (labels == i)).tolist()) for i, n in enumerate(insight.classes)]
    sources = [domain for domain in dict.fromkeys(insight.point_domains) if domain not in (target, REFERENCE)]
    order = sorted(sources)
    by_domain = [(name, hue(place), 0, np.flatnonzero(owners == name).tolist()) for place, name in enumerate(order)]
    by_domain.append((f"{target} (unseen)", "target", 3, np.flatnonzero(owners == target).tolist()))
    said = "t-SNE of the features of images nobody trained on. A model that generalises groups them by class&hellip;"
    plots = [scatter("tsne-class", "Features by class", said, places, by_class)]
    note = "" if sources else " The sources' images are not here, so only the target is shown."
    said = "&hellip;and mixes the domains. Diamonds are the unseen domain." + note
    plots.append(scatter("tsne-domain", "The same by domain", said, places, by_domain))
    if not real.all():
        groups = [(name, "soft " + kind, shape, rows) for name, kind, shape, rows in by_domain]
        groups.append(("generated reference", "reference", 2, np.flatnonzero(~real).tolist()))
        said = "FedADG draws all features towards a reference that a generator learns (Figs. 3-4 of the paper). Triangles are its samples."
        plots.append(scatter("reference", "Features and the generated reference", said, places, groups))
    return plots


def _panels(heading: str, panels: Sequence[Panel]) -> str:
    items = "".join(map(_panel, panels))
    kind = "answers" if panels[0].right else "mistakes"
    said = f"Grad-CAM: bright is what spoke for the class the model named. Its surest {kind}, first one of each class."
    return figure(heading, heading, said, f'<ul class="panels">{items}</ul>', wide=True)


def _panel(panel: Panel) -> str:
    taken = "" if panel.right else f" taken for <b>{escape(panel.predicted)}</b>"
    pictures = f'<img alt="{escape(panel.label)}" src="{_png(_enlarged(panel.pixels))}">'
    pictures += f'<img alt="where the model looked" src="{_png(_overlaid(panel))}">'
    said = f"<b>{escape(panel.label)}</b>{taken}<small>{percent(panel.confidence)} sure</small>"
    return f'<li class="{"hit" if panel.right else "miss"}">{pictures}<span>{said}</span></li>'


def _enlarged(pixels: np.ndarray) -> Image.Image:
    grey = pixels.ndim == 3 and pixels.shape[2] == 1
    image = Image.fromarray(pixels[..., 0] if grey else pixels).convert("RGB")
    return image.resize((PICTURE, PICTURE), Image.Resampling.NEAREST if image.width < PICTURE else Image.Resampling.LANCZOS)


def _overlaid(panel: Panel) -> Image.Image:
    heat = Image.fromarray((panel.heat * 255).astype(np.uint8)).resize((PICTURE, PICTURE), Image.Resampling.BICUBIC)
    share = np.asarray(heat, np.float32)[..., None] / 255
    at = share[..., 0] * (len(HEAT) - 1)
    low = np.minimum(at.astype(int), len(HEAT) - 2)
    colour = HEAT[low] + (HEAT[low + 1] - HEAT[low]) * (at - low)[..., None]
    picture = np.asarray(_enlarged(panel.pixels).convert("L"), np.float32)[..., None]
    return Image.fromarray((picture * 0.45 + colour * 0.55).clip(0, 255).astype(np.uint8))


def _png(image: Image.Image) -> str:
    """A picture inside the page: the file is opened from disk, and nothing else is."""
    held = io.BytesIO()
    image.quantize(64).save(held, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()
