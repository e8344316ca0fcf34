"""FedProx: the oracles of specs/FedProx.md, and what the proximal term must and must not do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.fedprox import FedProx, FedProxHyper, add_proximal_gradient
from tests.federations import SMALL_TASK, Uploads, copied, linear, random_samples, server, silo

HYPER: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.1,
    "schedule": "constant",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "epochs": 3,
    "batch_size": 8,
}


def fedprox(mu: float, **hyper: Any) -> Any:
    return linear(FedProx(FedProxHyper(mu=mu, **{**HYPER, **hyper}), SMALL_TASK))


def fedavg(**hyper: Any) -> Any:
    return linear(FedAvg(FedAvgHyper(**{**HYPER, **hyper}), SMALL_TASK))


def start(seed: int = 0) -> dict[str, torch.Tensor]:
    return copied(fedavg().initialise(server({}, seed=seed), Uploads({})).parts[MODEL])


def trained(algorithm: Any, received: dict[str, torch.Tensor], round: int = 1) -> dict[str, torch.Tensor]:
    return copied(algorithm.train(silo(random_samples(40), {MODEL: received}, round=round)).tensors)


def distance(model: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> float:
    return float(sum((model[name] - reference[name]).square().sum() for name in reference) ** 0.5)


def test_gradient_oracle() -> None:
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    received = torch.tensor([0.5, 0.5], dtype=torch.float64)
    a, b = torch.tensor([2.0, 1.0], dtype=torch.float64), torch.tensor([1.0, 1.0], dtype=torch.float64)
    loss = 0.5 * (a * w - b).square().sum()
    assert loss.item() == pytest.approx(5.0, abs=1e-8)
    loss.backward()
    add_proximal_gradient([w], [received], 0.1)
    assert w.grad is not None
    assert w.grad.tolist() == pytest.approx([2.05, -3.25], abs=1e-8)
    torch.optim.SGD([w], lr=0.1).step()
    assert w.tolist() == pytest.approx([0.795, -1.675], abs=1e-8)
    assert received.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mu_zero_is_fedavg_bit_for_bit(optimizer: str) -> None:
    received = start()
    prox, plain = (trained(algorithm, received) for algorithm in (fedprox(0.0, optimizer=optimizer), fedavg(optimizer=optimizer)))
    assert all(torch.equal(prox[name], plain[name]) for name in plain)
    assert distance(trained(fedprox(0.5, optimizer=optimizer), received), plain) > 1e-3


def test_the_first_step_of_a_round_is_that_of_fedavg() -> None:
    received, once = start(), {"epochs": 1, "batch_size": 1000}
    prox, plain = trained(fedprox(10.0, **once), received), trained(fedavg(**once), received)
    assert all(torch.equal(prox[name], plain[name]) for name in plain)


def test_the_pull_is_towards_this_rounds_broadcast() -> None:
    """One process, two rounds: a reference left over from round 1, or one that moves with the weights, would show."""
    first, second = start(0), start(1)
    algorithm, strong = fedprox(1.0), fedprox(9.0)
    trained(algorithm, first)
    trained(strong, first)
    free = distance(trained(fedavg(), second, 2), second)
    pulled, pinned = (distance(trained(one, second, 2), second) for one in (algorithm, strong))
    assert pinned < 0.6 * free
    assert pinned < pulled < free
    assert distance(first, second) > free


def test_a_huge_mu_pins_the_weights() -> None:
    received = start()
    assert distance(trained(fedprox(1e6, lr=1e-7), received), received) < 1e-6


def test_adam_sees_the_same_whether_the_term_is_in_the_loss_or_in_the_gradient() -> None:
    torch.manual_seed(0)
    target, received = torch.randn(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    in_loss, in_gradient = (nn.Parameter(torch.ones(6, dtype=torch.float64)) for _ in range(2))
    first, second = torch.optim.Adam([in_loss], lr=0.05), torch.optim.Adam([in_gradient], lr=0.05)
    for _ in range(50):
        first.zero_grad()
        ((in_loss - target).square().sum() + 0.5 * 0.3 * (in_loss - received).square().sum()).backward()
        first.step()
        second.zero_grad()
        (in_gradient - target).square().sum().backward()
        add_proximal_gradient([in_gradient], [received], 0.3)
        second.step()
    assert torch.allclose(in_loss, in_gradient, rtol=0, atol=1e-12)


def test_parameters_without_a_gradient_are_left_alone() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    used.sum().backward()
    add_proximal_gradient([used, unused], [torch.zeros(2), torch.zeros(2)], 1.0)
    assert used.grad is not None
    assert used.grad.tolist() == [2.0, 2.0]
    assert unused.grad is None
