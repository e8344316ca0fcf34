"""Who takes part: the draws and rankings behind power-of-choice and biased selection (Cho et al. 2020, arXiv:2010.01243)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch


def draw_without_replacement(weights: Sequence[float], count: int, generator: torch.Generator) -> list[int]:
    """Indices drawn one after another with probability proportional to weight, by Gumbel top-k (the same law).

    Never more than there are positive weights.
    """
    log_weights = torch.tensor(weights, dtype=torch.float64).log()
    uniform = torch.rand(len(weights), generator=generator, dtype=torch.float64)
    keys = log_weights - torch.log(-torch.log(uniform))
    positive = sum(weight > 0 for weight in weights)
    return keys.argsort(descending=True, stable=True)[: min(count, positive)].tolist()


def largest(losses: Mapping[str, float | None], count: int) -> list[str]:
    """The silos with the largest loss; ties go to the smaller name. A loss that is not a number ranks first: it needs training most."""

    def rank(name: str) -> tuple[float, str]:
        loss = losses[name]
        return (-math.inf if loss is None or math.isnan(loss) else -loss, name)

    return sorted(losses, key=rank)[:count]


def draw_biased(names: Sequence[str], count: int, probability: float, share: float, generator: torch.Generator) -> list[str]:
    """FedDANN's biased selection: each pick is, with `probability`, from the first `share` of the list, else from the rest."""
    cut = math.ceil(share * len(names))
    groups, chosen = [list(names[:cut]), list(names[cut:])], []
    for _ in range(min(count, len(names))):
        group = groups[0] if float(torch.rand((), generator=generator)) < probability else groups[1]
        group = group or groups[0] or groups[1]
        chosen.append(group.pop(int(torch.randint(len(group), (), generator=generator))))
    return sorted(chosen)
