"""The server's sums against the float64 oracles of specs/FedAvg.md, and what makes them reproducible."""

from __future__ import annotations

import itertools

import pytest
import torch

from fl_algorithms.aggregation import average, normalised, pooled_variance, weighted_sum
from tests.federations import Uploads

TOLERANCE = 1e-8


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def two_silos(dtype: torch.dtype = torch.float64) -> Uploads:
    return Uploads({"a": {"w": torch.tensor([1.0, 2.0, -1.0], dtype=dtype)}, "b": {"w": torch.tensor([3.0, -2.0, 0.5], dtype=dtype)}})


@pytest.mark.parametrize(("samples", "expected"), [((30, 10), [1.5, 1.0, -0.625]), ((1, 1), [2.0, 0.0, -0.25])])
def test_average_oracle(samples: tuple[int, int], expected: list[float]) -> None:
    found = average(two_silos(), normalised({"a": samples[0], "b": samples[1]}))
    assert found["w"].tolist() == pytest.approx(expected, abs=TOLERANCE)


def test_pooled_variance_oracle() -> None:
    updates = Uploads({"a": {"mean": double(0.0), "var": double(1.0)}, "b": {"mean": double(2.0), "var": double(4.0)}})
    weights = normalised({"a": 30.0, "b": 10.0})
    averaged = average(updates, weights)
    assert averaged["mean"].item() == pytest.approx(0.5, abs=TOLERANCE)
    assert averaged["var"].item() == pytest.approx(1.75, abs=TOLERANCE)
    assert pooled_variance(updates, weights, "mean", "var").item() == pytest.approx(2.5, abs=TOLERANCE)


def test_pooled_variance_is_that_of_the_union() -> None:
    parts = [torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) * n + n for n in (5, 20, 75)]
    updates = Uploads({str(i): {"mean": part.mean(0), "var": part.var(0, unbiased=False)} for i, part in enumerate(parts)})
    weights = normalised({str(i): float(len(part)) for i, part in enumerate(parts)})
    assert torch.allclose(pooled_variance(updates, weights, "mean", "var"), torch.cat(parts).var(0, unbiased=False), rtol=1e-12)


def test_integers_are_never_averaged() -> None:
    found = weighted_sum([torch.tensor(7), torch.tensor(4)], [0.75, 0.25])
    assert (found.item(), found.dtype) == (7, torch.int64)
    assert weighted_sum([torch.tensor([1, 9]), torch.tensor([5, 2])], [0.5, 0.5]).tolist() == [5, 9]
    assert weighted_sum([torch.tensor([True, False]), torch.tensor([False, False])], [0.5, 0.5]).tolist() == [True, False]


def test_an_integer_of_one_silo_is_copied() -> None:
    mine = torch.tensor([3])
    weighted_sum([mine], [1.0]).add_(1)
    assert mine.item() == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2), (2, 0, 4), (5, 3, 2, 2)])
def test_type_and_shape_are_kept(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = weighted_sum([torch.ones(shape, dtype=dtype), torch.full(shape, 3.0, dtype=dtype)], [0.25, 0.75])
    assert (found.dtype, found.shape) == (dtype, shape)
    assert torch.equal(found, torch.full(shape, 2.5, dtype=dtype))


def test_memory_order_does_not_matter() -> None:
    tensors = [torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    plain = weighted_sum(tensors, [0.2, 0.3, 0.5])
    mixed = weighted_sum([tensors[0].to(memory_format=torch.channels_last), tensors[1], tensors[2].mT.contiguous().mT], [0.2, 0.3, 0.5])
    assert torch.equal(plain, mixed)


def test_sums_run_in_float64() -> None:
    """In float32 the small addends would vanish one by one."""
    tensors = [torch.ones(1)] + [torch.full((1,), 2.0**-25)] * 1024
    assert weighted_sum(tensors, [1.0] * len(tensors)).item() == 1 + 2.0**-15


@pytest.mark.parametrize("count", [1, 131_071, 131_072, 131_073, 300_001])
def test_large_tensors_are_summed_like_small_ones(count: int) -> None:
    tensors = [torch.randn(count, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    weights = [0.2, 0.3, 0.5]
    whole = weighted_sum(tensors, weights)
    assert torch.equal(whole[-7:], weighted_sum([tensor[-7:] for tensor in tensors], weights))
    expected = torch.stack([w * t.double() for w, t in zip(weights, tensors, strict=True)]).sum(0)
    assert torch.allclose(whole.double(), expected, atol=1e-6)


def test_a_result_survives_the_next_sum() -> None:
    first = weighted_sum([torch.ones(1000, dtype=torch.float64)], [1.0])
    weighted_sum([torch.zeros(1000, dtype=torch.float64)], [1.0])
    assert first.sum() == 1000


def test_arrival_order_changes_no_bit() -> None:
    tensors = {str(i): {"w": torch.randn(1000, generator=torch.Generator().manual_seed(i)) * 10.0**i} for i in range(4)}
    weights = normalised({str(i): float(i + 1) for i in range(4)})
    found = [
        average(Uploads({name: tensors[name] for name in order}), {name: weights[name] for name in order})["w"]
        for order in itertools.permutations(tensors)
    ]
    assert all(torch.equal(found[0], other) for other in found)


def test_weights_are_normalised_in_sorted_order() -> None:
    weights = {"c": 3e-17, "a": 1.0, "b": 0.1}
    found = normalised(weights)
    assert list(found) == ["a", "b", "c"]
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-15)
    assert found == normalised(dict(reversed(weights.items())))


def test_a_missing_update_is_an_error_not_a_shorter_sum() -> None:
    with pytest.raises(ValueError, match="zip"):
        weighted_sum([torch.ones(1)], [0.5, 0.5])
