"""Combining updates on the server: silo order fixed, float64 accumulation, each tensor's own dtype kept, integers never averaged.

All functions go through the updates tensor by tensor; only one result tensor and one accumulator are alive at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from fl_algorithms.contract import Updates


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """The same weights in sorted order, summing to 1."""
    total = sum(weights[name] for name in sorted(weights))
    return {name: weights[name] / total for name in sorted(weights)}


def weighted_sum(tensors: Iterable[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """sum_k weights[k] * tensors[k] in float64, returned in the tensors' dtype. Integers: the maximum (specs: never average counters)."""
    result: torch.Tensor | None = None
    dtype = torch.float32
    for tensor, weight in zip(tensors, weights, strict=True):
        if not tensor.is_floating_point():
            result = tensor.clone() if result is None else torch.maximum(result, tensor)
            dtype = tensor.dtype
        elif result is None:
            result, dtype = tensor.to(torch.float64) * weight, tensor.dtype
        else:
            result.add_(tensor, alpha=weight)
    assert result is not None, "an aggregation needs at least one update"
    return result.to(dtype)


def average(updates: Updates, weights: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """FedAvg eq. 2 over every tensor, running statistics included."""
    ordered = [weights[name] for name in updates.names]
    return {key: weighted_sum(updates.each(key), ordered) for key in updates.keys()}


def pooled_variance(updates: Updates, weights: Mapping[str, float], mean_key: str, variance_key: str) -> torch.Tensor:
    """Variance of the union of all silos' activations (law of total variance): E[var] + Var[mean]."""
    ordered = [weights[name] for name in updates.names]
    dtype = torch.float32
    first = second = torch.zeros((), dtype=torch.float64)
    for weight, mean in zip(ordered, updates.each(mean_key), strict=True):
        first = first + weight * mean.to(torch.float64)
        second = second + weight * mean.to(torch.float64) ** 2
    within = torch.zeros((), dtype=torch.float64)
    for weight, variance in zip(ordered, updates.each(variance_key), strict=True):
        within, dtype = within + weight * variance.to(torch.float64), variance.dtype
    return (within + second - first**2).to(dtype)
