"""What only the model and the images can tell: answers on the target, the features of every domain, where the model looked.

Each part is tried on its own: where the model or a domain cannot be opened, the record says so and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from components import layout
from components.errors import SiloflowError
from components.federation import Federation
from components.received import Received, open_payload, read_broadcast, read_update
from components.report.gather import exchange_names
from components.report.record import Record
from components.silo import CONFUSION
from components.wire import Malformed, Payload, model_digest
from fl_algorithms.contract import Tensors
from fl_algorithms.errors import Unusable
from fl_algorithms.explain import Answers, answer, choose, confusion, embed, grad_cam, spread
from fl_algorithms.fedavg import MODEL

ANSWERS = 200  # images of a domain that are looked at
POINTS = 700  # of all domains, in the plane
REFERENCES = 120
PANELS = 6  # right ones, and as many wrong ones
T = TypeVar("T")


@dataclass(frozen=True)
class Panel:
    """One image of the target and where the model looked for the class it named."""

    pixels: np.ndarray  # uint8 [H,W,C]
    heat: np.ndarray  # [h,w], 0 to 1
    label: str
    predicted: str
    confidence: float

    @property
    def right(self) -> bool:
        return self.label == self.predicted


@dataclass
class Insight:
    """All of it may be missing."""

    classes: tuple[str, ...] = ()
    table: np.ndarray | None = None  # [true, predicted] on the target
    table_round: int = 0
    by_domain: dict[str, Answers] = field(default_factory=dict)  # a part of the images of each
    places: np.ndarray | None = None  # [N,2], 0 to 1
    point_labels: list[int] = field(default_factory=list)
    point_domains: list[str] = field(default_factory=list)  # a domain, or REFERENCE
    panels: list[Panel] = field(default_factory=list)


REFERENCE = "reference"


def read_target(record: Record) -> Insight:
    """Only what the evaluator counted: needs neither the model nor images."""
    insight = Insight()
    if record.federation is not None:
        federation = record.federation
        insight.classes = _try(record, "class names", lambda: federation.data.classes) or ()
        _read_table(record, federation, insight)
    return insight


def look(record: Record, evaluator: Federation | None) -> Insight:
    """`evaluator`: the federation as who has the target's images sees it."""
    insight, federation = Insight(), record.federation
    if federation is None:
        return insight
    sighted = evaluator or federation
    insight.classes = _try(record, "class names", lambda: sighted.data.classes) or ()
    _read_table(record, federation, insight)
    model = _try(record, "model", lambda: _model(record, federation, sighted))
    if model is not None:
        _ask(record, sighted, model, insight)
        _try(record, "features in the plane", lambda: _arrange(sighted, model, insight))
        _try(record, "Grad-CAM", lambda: _watch(sighted, model, insight))
    return insight


def _try(record: Record, what: str, make: Callable[[], T]) -> T | None:
    """A report must come out of whatever is left of a run, so here also a defect of ours is only noted."""
    try:
        return make()
    except (Unusable, SiloflowError, Malformed) as error:
        record.note(f"{what}: {error}")
    except Exception as error:
        record.note(f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return None


# ---- the target's table, as the evaluator counted it


def _read_table(record: Record, federation: Federation, insight: Insight) -> None:
    counted = [number for number, entry in record.rounds.items() if entry.target is not None]
    if counted:
        table = _try(record, "confusion table of the evaluator", lambda: _stored_table(federation, max(counted)))
        if table is not None:
            insight.table, insight.table_round = table, max(counted)


def _stored_table(federation: Federation, number: int) -> np.ndarray | None:
    update = read_update(federation, layout.EVALUATOR, number, layout.EVALUATE)
    if update is None or update.payload is None:
        return None  # of an earlier version: counted again from the answers
    key, _ = layout.update_keys(federation.run, number, layout.EVALUATE)
    table = open_payload(federation, layout.author_bucket(layout.EVALUATOR), key, update.payload)[CONFUSION].numpy()
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise Malformed(f"expected a square table, found {list(table.shape)}")
    return np.array(table)


# ---- the model


def _model(record: Record, federation: Federation, sighted: Federation) -> nn.Module:
    return sighted.algorithm.predictor(_parts(record, federation), sighted.device)


def _parts(record: Record, federation: Federation) -> Mapping[str, Tensors]:
    """The last round's global parts, from the store; else the folder's model, if it is the one of the result."""
    for number in sorted(record.rounds, reverse=True):
        try:
            last = read_broadcast(federation, number, exchange_names(federation, number)[-1])
            if last is not None:
                parts = Received(federation, last, None, {})
                _ = parts[MODEL]
                return parts
        except SiloflowError as error:
            record.note(f"model of round {number}: {error}")
            break
    path = record.folder / "model.safetensors" if record.folder else None
    if path is None or not path.exists():
        raise Unusable("expected it in the store or as model.safetensors, found neither; nothing is shown that needs it")
    payload = Payload(path)
    if record.result is not None and model_digest(payload) != record.result.digest:
        raise Unusable("model.safetensors: expected the digest of result.json, found another; the file was changed")
    return {MODEL: payload}


# ---- its answers


def _ask(record: Record, federation: Federation, model: nn.Module, insight: Insight) -> None:
    spec = federation.spec
    for domain in [str(spec.target), *sorted(spec.sources or ())]:
        answers = _try(record, f"images of {domain}", lambda domain=domain: _answers(federation, model, domain))  # type: ignore[misc]
        if answers is not None:
            insight.by_domain[domain] = answers
    target = insight.by_domain.get(str(spec.target))
    if insight.table is None and target is not None:
        complete = _try(record, "answers on the target", lambda: answer(model, federation.target_samples, spec.seed))
        if complete is not None:
            insight.table = confusion(complete.labels, complete.predicted, len(insight.classes))
            insight.table_round = max(record.rounds, default=spec.rounds)  # where nothing tells, it is the final model


def _answers(federation: Federation, model: nn.Module, domain: str) -> Answers:
    rows = _rows(federation, domain)
    return answer(model, federation.samples({domain: rows}), federation.spec.seed)


def _rows(federation: Federation, domain: str) -> np.ndarray:
    """Images that the model was not trained on."""
    if domain == federation.spec.target:
        rows = np.array(federation.target_rows)
    else:
        shares = federation.shares([domain] if federation.spec.partition.rule in ("domain", "group") else federation.spec.sources or ())
        rows = np.sort(np.concatenate([share.validation[domain] for share in shares.values() if domain in share.validation]))
    labels = federation.data.domain(domain).labels[rows]
    chosen: np.ndarray = rows[spread(labels, ANSWERS, federation.spec.seed, domain)]
    return chosen


# ---- pictures


def _arrange(federation: Federation, model: nn.Module, insight: Insight) -> None:
    features: list[np.ndarray] = []
    each = max(20, POINTS // max(1, len(insight.by_domain)))
    for domain, answers in insight.by_domain.items():
        if answers.features is None:
            raise Unusable("this network does not show its features")
        rows = spread(answers.labels, each, federation.spec.seed, f"points {domain}")
        features.append(answers.features[rows])
        insight.point_labels += answers.labels[rows].tolist()
        insight.point_domains += [domain] * len(rows)
    labels = torch.arange(REFERENCES) % max(1, len(insight.classes))
    reference = federation.algorithm.reference(model, labels, federation.spec.seed)
    if reference is not None:
        features.append(reference.float().cpu().numpy())
        insight.point_labels += labels.tolist()
        insight.point_domains += [REFERENCE] * len(labels)
    if features:
        insight.places = embed(np.concatenate(features), federation.spec.seed)


def _watch(federation: Federation, model: nn.Module, insight: Insight) -> None:
    target = str(federation.spec.target)
    answers = insight.by_domain.get(target)
    if answers is None:
        return
    right, wrong = choose(answers, PANELS)
    chosen, rows = [*right, *wrong], _rows(federation, target)
    samples = federation.samples({target: rows})
    if not chosen:
        return
    heat = grad_cam(model, samples.images(torch.tensor(chosen)), [int(answers.predicted[row]) for row in chosen])
    if heat is None:
        raise Unusable("the last layer of this network's body gives no maps")
    pixels: Any = federation.data.domain(target).pixels
    for place, row in enumerate(chosen):
        label, predicted = (insight.classes[int(values[row])] for values in (answers.labels, answers.predicted))
        image = np.array(pixels[rows[row]])
        insight.panels.append(Panel(image, heat[place], label, predicted, float(answers.confidence[row])))
