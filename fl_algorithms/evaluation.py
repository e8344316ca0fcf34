"""Counting right answers, and the three named rules that pick the round whose accuracy is quoted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fl_algorithms.samples import Samples


@dataclass(frozen=True)
class Counts:
    """All that leaves a silo when a model is validated there."""

    correct: int
    total: int
    loss_sum: float
    confusion: torch.Tensor | None = None  # int32 [true class, predicted class]; never of a silo's images


def count(model: nn.Module, samples: Samples, batch_size: int = 64, confusion: bool = False) -> Counts:
    """The model is used as it is: the caller has put it into evaluation mode."""
    cells: torch.Tensor | None = None
    correct = torch.zeros((), dtype=torch.int64, device=samples.device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=samples.device)
    with torch.inference_mode():
        for images, labels, _ in samples.batches(batch_size):
            logits = model(images)
            predicted, classes = logits.argmax(1), logits.shape[1]
            correct += (predicted == labels).sum()
            loss_sum += F.cross_entropy(logits, labels, reduction="sum")
            if confusion:
                more = (labels * classes + predicted).bincount(minlength=classes**2).view(classes, classes)
                cells = more if cells is None else cells + more
    return Counts(int(correct), len(samples), float(loss_sum), cells.to("cpu", torch.int32) if cells is not None else None)


def select(validation: Sequence[float | None], target: Sequence[float | None]) -> dict[str, float | None]:
    """Target accuracy under each rule, from the accuracies of rounds 1..T; the first of equally good rounds counts.

    `last` and `best_validation` never look at the target domain to choose; `oracle` does, and must be labelled so.
    """
    measured = [i for i, value in enumerate(target) if value is not None]
    chosen: dict[str, float | None] = {"last": target[-1] if target else None, "best_validation": None, "oracle": None}
    if measured:
        chosen["oracle"] = max(value for value in target if value is not None)
        validated = [i for i in measured if validation[i] is not None]
        if validated:
            chosen["best_validation"] = target[max(validated, key=lambda i: (validation[i], -i))]
    return chosen
