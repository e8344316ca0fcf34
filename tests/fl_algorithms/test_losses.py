"""The losses against the float64 oracles of the algorithm specifications, and the properties they rest on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fl_algorithms.losses import (
    SmoothingForm,
    cross_entropy,
    jensen_shannon,
    layer_attention,
    multi_kernel_mmd,
    supervised_contrastive,
)

TOLERANCE = 1e-8


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("smoothing", "form", "expected"),
    [
        (0.0, "eps/C", 1.2055786581067214),
        (0.1, "eps/C", 1.2639119914400547),
        (0.1, "eps/(C-1)", 1.2930786581067215),
    ],
)
def test_cross_entropy_oracle(smoothing: float, form: SmoothingForm, expected: float) -> None:
    logits = double([[2.0, 0.5, -1.0], [0.0, 1.0, 3.0]])
    assert cross_entropy(logits, torch.tensor([0, 1]), smoothing, form).item() == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("temperature", "self_in_positives", "expected"),
    [(0.1, False, 2.533149053229152), (0.1, True, -0.9668509467708484), (0.5, False, 0.8860777536572334)],
)
def test_supervised_contrastive_oracle(temperature: float, self_in_positives: bool, expected: float) -> None:
    first, second = double([[1.0, 0.0], [0.0, 1.0]]), double([[0.6, 0.8], [-1.0, 0.0]])
    value = supervised_contrastive(first, second, torch.tensor([0, 1]), temperature, self_in_positives)
    assert value.item() == pytest.approx(expected, abs=TOLERANCE)


def test_supervised_contrastive_ignores_the_length_of_rows_and_survives_a_low_temperature() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 6, 5, generator=generator)
    labels = torch.tensor([0, 1, 2, 0, 1, 1])
    value = supervised_contrastive(first, second, labels, 0.1)
    torch.testing.assert_close(supervised_contrastive(7 * first, second / 3, labels, 0.1), value)
    first.requires_grad_(True)
    cold = supervised_contrastive(first, second, labels, 1e-3)
    cold.backward()
    assert torch.isfinite(cold)
    assert first.grad is not None
    assert torch.isfinite(first.grad).all()


def test_jensen_shannon_oracle() -> None:
    views = [double([row]).log() for row in ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6])]
    assert jensen_shannon(views).item() == pytest.approx(0.12917685124754738, abs=TOLERANCE)
    batch_of_two = [torch.cat([view, views[0]]) for view in views]
    assert jensen_shannon(batch_of_two).item() == pytest.approx(0.12917685124754738 / 2, abs=TOLERANCE)


def test_jensen_shannon_is_finite_for_certain_but_contradicting_predictions() -> None:
    views = [torch.tensor([[500.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 500.0]], requires_grad=True)]
    value = jensen_shannon(views)
    value.backward()
    assert value.item() == pytest.approx(math.log(2), abs=1e-6)
    assert all(view.grad is not None and torch.isfinite(view.grad).all() for view in views)


def test_fedccrl_total_oracle() -> None:
    views = [double([row]).log() for row in ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6])]
    classification = sum(cross_entropy(view, torch.tensor([0])) for view in views)
    agreement = jensen_shannon(views)
    assert float(classification / 3 + 0.1 * 1.5 + agreement) == pytest.approx(1.1655968635584735, abs=TOLERANCE)
    assert float(classification + 0.1 * 1.5 + 0.1 * agreement) == pytest.approx(2.822177722057533, abs=TOLERANCE)


X = double([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
Y = double([[2.0, 2.0], [3.0, 2.0], [2.0, 3.5]])


def test_multi_kernel_mmd_oracle() -> None:
    assert multi_kernel_mmd(X, Y).item() == pytest.approx(2.9863852627032017, abs=TOLERANCE)
    assert multi_kernel_mmd(X, Y, constant=True).item() == pytest.approx(3.9863852627032017, abs=TOLERANCE)
    assert multi_kernel_mmd(X, Y, scales=(1.0,)).item() == pytest.approx(0.8502585652305145, abs=TOLERANCE)
    assert multi_kernel_mmd(X, X.clone()).item() == pytest.approx(-2.394122988121215, abs=TOLERANCE)
    assert multi_kernel_mmd(X, X.clone(), constant=True).item() == pytest.approx(-1.394122988121215, abs=TOLERANCE)


def test_multi_kernel_mmd_in_single_precision_far_from_the_origin() -> None:
    near, far = multi_kernel_mmd(X.float(), Y.float()), multi_kernel_mmd(X.float() + 1000, Y.float() + 1000)
    assert near.item() == pytest.approx(2.98638526, abs=1e-5)
    assert far.item() == pytest.approx(2.98638526, abs=1e-3)


def test_multi_kernel_mmd_gradient_treats_the_bandwidth_as_constant() -> None:
    moved = Y.clone().requires_grad_(True)
    multi_kernel_mmd(X, moved, scales=(1.0,)).backward()
    rows = torch.cat([X, Y])
    bandwidth = torch.cdist(rows, rows).square().mean()
    plain = Y.clone().requires_grad_(True)
    kernel_yy = torch.exp(-(plain[:, None] - plain[None]).square().sum(-1) / (2 * bandwidth))
    kernel_xy = torch.exp(-(X[:, None] - plain[None]).square().sum(-1) / (2 * bandwidth))
    ((kernel_yy.sum() - 3) / 6 - 2 * kernel_xy.mean()).backward()
    torch.testing.assert_close(moved.grad, plain.grad, atol=1e-10, rtol=0)


def test_multi_kernel_mmd_of_collapsed_sets_is_finite_and_of_one_row_refused() -> None:
    same = torch.ones(4, 3, requires_grad=True)
    value = multi_kernel_mmd(same, torch.ones(4, 3))
    value.backward()
    assert value.item() == pytest.approx(0.0, abs=1e-6)
    assert same.grad is not None
    assert torch.isfinite(same.grad).all()
    with pytest.raises(ValueError, match="found 1 and 1 rows"):
        multi_kernel_mmd(X[:1], Y[:1])


A = double([[[[1, 0], [2, 1]], [[0, 1], [1, -1]]], [[[0.5, 0.5], [0, 1]], [[1, 0], [0, 0]]]])
B = double([[[[1, 1], [0, 0]], [[0, 2], [1, 1]]], [[[0, 1], [1, 0]], [[1, 1], [-1, 0]]]])


def test_layer_attention_oracle() -> None:
    alpha = layer_attention([a[None] for a in A], [b[None] for b in B])
    expected = double([[0.6388983653073094, 0.36110163469269063], [0.5697023759693418, 0.4302976240306582]])
    torch.testing.assert_close(alpha, expected, atol=TOLERANCE, rtol=0)


def test_layer_attention_equals_the_full_maps_averaged_over_the_batch_and_has_no_gradient() -> None:
    generator = torch.Generator().manual_seed(2)
    fused = list(torch.randn(2, 5, 4, 3, 3, generator=generator, dtype=torch.float64).requires_grad_(True))
    local = list(torch.randn(3, 5, 4, 3, 3, generator=generator, dtype=torch.float64))
    alpha = layer_attention(fused, local)
    position, channel = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    for row, a in enumerate(fused):
        for column, b in enumerate(local):
            left, right = a.detach().flatten(2), b.flatten(2)
            position[row, column] = (left.transpose(1, 2) @ right).mean()
            channel[row, column] = (left @ right.transpose(1, 2)).mean()
    torch.testing.assert_close(alpha, (position.softmax(1) + channel.softmax(1)) / 2, atol=1e-12, rtol=0)
    torch.testing.assert_close(layer_attention(fused, local, "position"), position.softmax(1), atol=1e-12, rtol=0)
    torch.testing.assert_close(layer_attention(fused, local, "channel"), channel.softmax(1), atol=1e-12, rtol=0)
    assert not alpha.requires_grad
