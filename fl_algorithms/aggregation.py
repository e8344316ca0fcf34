"""Combining updates on the server: silo order fixed, float64 accumulation, each tensor's own dtype kept, integers never averaged.

All functions go through the updates tensor by tensor; only one result tensor and one accumulator are alive at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from fl_algorithms.contract import Updates

THREADS = 2  # enough to keep the memory bus busy; each has an accumulator of the largest tensor
PIECE = 1 << 16
_local = threading.local()


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """The same weights in sorted order, summing to 1."""
    total = sum(weights[name] for name in sorted(weights))
    return {name: weights[name] / total for name in sorted(weights)}


def weighted_sum(tensors: Iterable[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """sum_k weights[k] * tensors[k] in float64, returned in the tensors' dtype. Integers: the maximum (specs: never average counters)."""
    total: torch.Tensor | None = None
    result = torch.empty(0)
    for tensor, weight in zip(tensors, weights, strict=True):
        if not tensor.is_floating_point():
            result = tensor.clone() if total is None else torch.maximum(result, tensor)
            total = result
        elif total is None:
            result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
            total = _scratch("total", tensor.numel()).copy_(tensor.reshape(-1)).mul_(weight)
        else:
            _add(total, tensor.reshape(-1), weight)
    assert total is not None, "an aggregation needs at least one update"
    return result.copy_(total.view_as(result))


def _add(total: torch.Tensor, tensor: torch.Tensor, weight: float) -> None:
    """total += weight * tensor, a cache-sized piece at a time: torch would first convert the whole tensor to float64."""
    for piece, addend in zip(total.split(PIECE), tensor.split(PIECE), strict=True):
        piece.add_(_scratch("piece", len(addend)).copy_(addend), alpha=weight)


def _scratch(name: str, count: int) -> torch.Tensor:
    """Float64 memory that each thread uses again and again: fresh memory would cost more than the sum."""
    held = getattr(_local, name, None)
    if held is None or len(held) < count:
        held = torch.empty(count, dtype=torch.float64)
        setattr(_local, name, held)
    return held[:count]


def average(updates: Updates, weights: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """FedAvg eq. 2 over every tensor, running statistics included. Tensors are independent, so several are summed at once."""
    ordered = [weights[name] for name in updates.names]
    keys = list(updates.keys())
    return dict(zip(keys, _threads().map(lambda key: weighted_sum(updates.each(key), ordered), keys), strict=True))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS)  # kept, so that their accumulators are


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
