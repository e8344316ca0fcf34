"""FedIIR: the oracles of specs/FedIIR.md, the closed form against autograd, what is shown to whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from components.wire import Payload
from fl_algorithms.contract import Task
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.fediir import (
    GRADIENT,
    FedIIR,
    FedIIRHyper,
    classifier_gradient,
    moving_average,
    squared_distance,
    two_layers,
)
from fl_algorithms.losses import cross_entropy
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Batch, Samples
from tests.federations import SMALL_TASK, Start, Uploads, copied, linear, random_samples, server, silo, uploaded

CNN = Task("small-cnn", classes=3, channels=3, image_size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
HYPER: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant", "epochs": 1, "batch_size": 8}
MEAN_W, MEAN_B = [[0.1, -0.1], [0.0, 0.2]], [0.05, -0.05]


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def algorithm(**hyper: Any) -> Any:
    return linear(FedIIR(FedIIRHyper(**{**HYPER, **hyper}), SMALL_TASK))


def start_model(one: Any) -> dict[str, torch.Tensor]:
    return copied(one.initialise(server({}), Uploads({})).parts[MODEL])


def oracle() -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    head = nn.Linear(2, 2).double()
    with torch.no_grad():
        head.weight.copy_(double([[0.2, -0.1], [0.4, 0.3]]))
        head.bias.copy_(double([0.0, 0.1]))
    return head, double([[1.0, 0.5], [-1.0, 2.0]]).requires_grad_(), torch.tensor([0, 1])


def heads() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"linear": nn.Linear(6, 3).double(), "mlp": two_layers(6, 3).double()}


# ---- oracles


def test_gradient_penalty_and_their_derivatives() -> None:
    head, features, labels = oracle()
    logits, gradient = classifier_gradient(head, features, labels)
    assert cross_entropy(logits, labels).item() == pytest.approx(0.6886315165, abs=1e-8)
    assert torch.allclose(gradient[0], double([[-0.4771357795, 0.1761973950], [0.4771357795, -0.1761973950]]), rtol=0, atol=1e-8)
    assert torch.allclose(gradient[1], double([-0.1453235517, 0.1453235517]), rtol=0, atol=1e-8)
    penalty = squared_distance(gradient, [double(MEAN_W), double(MEAN_B)])
    assert penalty.item() == pytest.approx(0.8548563208, abs=1e-8)
    total = cross_entropy(logits, labels) + 0.5 * penalty
    assert total.item() == pytest.approx(1.116059677, abs=1e-8)
    for found, expected in zip(
        torch.autograd.grad(total, [head.weight, head.bias, features]),
        (
            [[-0.8267989707, 0.5468942140], [0.8267989707, -0.5468942140]],
            [-0.05856401121, 0.05856401121],
            [[0.4166568830, -0.02597201596], [-0.2517335933, -0.04541070755]],
        ),
        strict=True,
    ):
        assert torch.allclose(found, double(expected), rtol=0, atol=1e-8)


def test_the_loss_of_the_algorithm_is_the_oracles_total() -> None:
    head, features, labels = oracle()
    one = algorithm(gamma=0.5)
    model = nn.Module()
    model.head, model.features = head, lambda images: images
    one._mean = [double(MEAN_W), double(MEAN_B)]
    loss = one.loss(model, Batch(features, labels, torch.zeros(2)), silo(random_samples(2), {}))
    assert loss.item() == pytest.approx(1.116059677, abs=1e-8)


def test_moving_average() -> None:
    assert moving_average(double(0.2), double(-0.4), 0.95).item() == pytest.approx(0.17, abs=1e-8)
    assert moving_average(None, double(2.0), 0.95).item() == pytest.approx(0.1, abs=1e-8)


@pytest.mark.parametrize(("pooling", "expected"), [("batches", 1.75), ("images", 1.75), ("silos", 2.5)])
def test_mean_of_three_batches_of_one_and_one_of_four(pooling: str, expected: float) -> None:
    one = algorithm(pooling=pooling, ema=0.0)
    shown = {"a": {"head.weight": double([1.0])}, "b": {"head.weight": double([4.0])}}
    result = one.pool_gradients(server({"a": 24, "b": 8}), Uploads(shown))
    assert result.parts[GRADIENT]["head.weight"].item() == pytest.approx(expected, abs=1e-8)
    assert result.participants == ["a", "b"]


def test_an_incomplete_batch_counts_like_a_full_one_only_in_the_released_pooling() -> None:
    roster = {"a": 17, "b": 8}
    for pooling, expected in (("batches", 3 / 4), ("images", 17 / 25), ("silos", 1 / 2)):
        assert algorithm(pooling=pooling).pool_weights(server(roster), ["a", "b"])["a"] == pytest.approx(expected, abs=1e-8)


# ---- the closed form


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 9), smoothing=st.sampled_from([0.0, 0.1]), seed=st.integers(0, 99), one_class=st.booleans())
def test_it_is_autograds_gradient_and_second_derivative(kind: str, size: int, smoothing: float, seed: int, one_class: bool) -> None:
    head, draw = heads()[kind], torch.Generator().manual_seed(seed)
    features = torch.randn(size, 6, generator=draw, dtype=torch.float64, requires_grad=True)
    labels = torch.zeros(size, dtype=torch.int64) if one_class else torch.randint(3, (size,), generator=draw)
    logits, gradient = classifier_gradient(head, features, labels, smoothing)
    assert torch.equal(logits, head(features))
    expected = torch.autograd.grad(cross_entropy(head(features), labels, smoothing), list(head.parameters()), create_graph=True)
    mean = [torch.full_like(part, 0.1) for part in expected]
    wanted = [*head.parameters(), features]
    for ours, theirs in zip(gradient, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)
    ours, theirs = (torch.autograd.grad(squared_distance(parts, mean), wanted, allow_unused=True) for parts in (gradient, expected))
    for a, b in zip(ours, theirs, strict=True):
        zero = torch.zeros(())  # autograd does not see the last bias of a graph that does not use it
        assert torch.allclose(zero if a is None else a, zero if b is None else b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_finite_differences(kind: str) -> None:
    head, labels = heads()[kind], torch.tensor([0, 2, 1])
    features = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def penalty(seen: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        _, gradient = classifier_gradient(head, seen, labels)
        return squared_distance(gradient, [torch.full_like(part, 0.05) for part in gradient])

    assert torch.autograd.gradcheck(penalty, (features, *head.parameters()))


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(5)))
def test_the_order_of_a_batch_does_not_matter(order: list[int]) -> None:
    head, features, labels = heads()["mlp"], torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    first = classifier_gradient(head, features, labels)[1]
    second = classifier_gradient(head, features[order], labels[order])[1]
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(first, second, strict=True))


def test_the_penalty_reaches_head_and_body() -> None:
    model = FedIIR(FedIIRHyper(), CNN).network
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 0])
    _, gradient = classifier_gradient(model.head, model.features(images), labels)
    squared_distance(gradient, [torch.zeros_like(part) for part in gradient]).backward()
    assert all(p.grad is not None and p.grad.any() for name, p in model.named_parameters() if name.endswith("weight"))


# ---- exchange `gradient`


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_silo_shows_the_gradient_of_its_mean_loss(count: int, batch_size: int) -> None:
    one = algorithm(batch_size=batch_size)
    received, samples = start_model(one), random_samples(count)
    update = one.measure_gradient(silo(samples, {MODEL: received}))
    images, labels, _ = next(samples.batches(count))
    weight, bias = (received[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
    F.cross_entropy(F.linear(images.flatten(1).double(), weight, bias), labels).backward()
    assert update.tensors.keys() == one.exchanges(1)[0].upload.keys() == {"head.weight", "head.bias"}
    for name, parameter in (("head.weight", weight), ("head.bias", bias)):
        assert parameter.grad is not None
        assert torch.allclose(update.tensors[name], parameter.grad, rtol=0, atol=1e-8)


def test_the_released_mean_is_that_of_the_batches() -> None:
    one, samples = algorithm(pooling="batches"), random_samples(9)  # batches of 8 and 1
    received = start_model(one)
    shown = one.measure_gradient(silo(samples, {MODEL: received})).tensors["head.bias"]
    head = one.load(received, torch.device("cpu")).head
    batches = list(samples.batches(8))
    expected = sum(classifier_gradient(head, b.images.flatten(1).double(), b.labels)[1][1] for b in batches) / 2
    assert torch.allclose(shown, expected, rtol=0, atol=1e-10)


def test_measuring_moves_nothing_and_drops_nothing_out() -> None:
    one = FedIIR(FedIIRHyper(**HYPER), CNN)
    received = start_model(one)
    draw = np.random.default_rng(0)
    samples = Samples(
        [(draw.integers(0, 256, (11, 16, 16, 3), np.uint8), draw.integers(0, 3, 11), np.arange(11))], CNN.mean, CNN.std, torch.device("cpu")
    )
    one.network.requires_grad_(True)
    first, second = (one.measure_gradient(silo(samples, {MODEL: received})) for _ in range(2))
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
    assert all(torch.equal(value, received[name]) for name, value in one.network.state_dict().items())
    assert not any(tensor.requires_grad for tensor in first.tensors.values())
    other = FedIIR(FedIIRHyper(**HYPER), CNN)
    other.network.to(memory_format=torch.contiguous_format).train()
    third = other.measure_gradient(silo(samples, {MODEL: received}))
    assert all(torch.equal(first.tensors[name], third.tensors[name]) for name in first.tensors)


def test_equal_images_of_one_class_give_finite_gradients() -> None:
    one = FedIIR(FedIIRHyper(**HYPER), CNN)
    received = start_model(one)
    samples = Samples([(np.full((3, 16, 16, 3), 127, np.uint8), np.ones(3, int), np.arange(3))], CNN.mean, CNN.std, torch.device("cpu"))
    shown = one.measure_gradient(silo(samples, {MODEL: received})).tensors
    assert all(tensor.isfinite().all() for tensor in shown.values())
    trained = one.train(silo(samples, {MODEL: received, GRADIENT: shown}))
    assert all(tensor.isfinite().all() for tensor in trained.tensors.values())
    assert np.isfinite(trained.metrics["loss"])


def test_the_server_continues_from_the_mean_in_force() -> None:
    one, shown = algorithm(ema=0.75), {"a": {"head.weight": double([4.0])}}
    first = one.pool_gradients(server({"a": 8}), Uploads(shown)).parts
    assert first[GRADIENT]["head.weight"].item() == pytest.approx(1.0, abs=1e-8)
    second = one.pool_gradients(server({"a": 8}, first, round=2), Uploads(shown)).parts
    assert second[GRADIENT]["head.weight"].item() == pytest.approx(1.75, abs=1e-8)


@pytest.mark.parametrize("round", [1, 2, 7])
def test_a_constant_gradient_comes_back_unbiased(round: int) -> None:
    one, parts = algorithm(ema=0.9, ema_debias=True), {}
    shown = {"head.weight": torch.full((3, 48), 2.0, dtype=torch.float64), "head.bias": double([1.0, 2.0, 3.0])}
    for number in range(1, round + 1):
        parts = one.pool_gradients(server({"a": 8}, parts, round=number), Uploads({"a": shown})).parts
    one.begin(one.network, silo(random_samples(2), parts, round=round))
    assert torch.allclose(one._mean[1], shown["head.bias"], rtol=0, atol=1e-8)


# ---- exchange `train`


def test_gamma_zero_is_fedavg_bit_for_bit(start: Start) -> None:
    off, plain = algorithm(gamma=0.0), linear(FedAvg(FedAvgHyper(**HYPER, weighting="uniform"), SMALL_TASK))
    assert [exchange.name for exchange in off.exchanges(1)] == ["train"]
    received, samples = start_model(plain), random_samples(21)
    ours, theirs = (copied(one.train(silo(samples, {MODEL: received})).tensors) for one in (off, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    without = start("fediir", {"gamma": 0.0})
    assert without.digest == start("fedavg", {"weighting": "uniform"}).digest


def test_the_pull_shrinks_the_distance_to_the_mean() -> None:
    samples, found = random_samples(64), []
    for gamma in (1e-6, 0.5):
        one = algorithm(gamma=gamma, epochs=5, lr=0.02, momentum=0.0)
        received = start_model(one)
        mean = {name: torch.zeros_like(tensor) for name, tensor in received.items()}
        trained = copied(one.train(silo(samples, {MODEL: received, GRADIENT: mean})).tensors)
        assert not any(tensor.any() for tensor in mean.values())
        after = one.measure_gradient(silo(samples, {MODEL: trained})).tensors
        found.append(sum(float(part.square().sum()) for part in after.values()))
    assert found[1] < found[0]


def test_the_two_layer_classifier() -> None:
    one = FedIIR(FedIIRHyper(**HYPER, classifier="mlp", bn_buffers="frozen"), CNN)
    names = ["head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"]
    assert list(one.classifier_layout) == names
    width = one.network.head[0].in_features
    assert one.classifier_layout["head.0.weight"].shape == (width // 2, width)
    assert {name for name in one.upload if name.startswith("head.")} == set(names)
    assert one.network(torch.randn(2, 3, 16, 16)).shape == (2, 3)


def test_presets_are_the_released_settings() -> None:
    pacs = FedIIRHyper(**ALGORITHMS["fediir-pacs"].defaults)
    assert (pacs.optimizer, pacs.lr, pacs.momentum, pacs.weight_decay, pacs.batch_size, pacs.gamma) == ("sgd", 2.5e-3, 0.9, 0.0, 32, 1e-3)
    assert (pacs.ema, pacs.participants, pacs.epochs, pacs.bn_buffers, pacs.classifier) == (0.95, 3, 1, "frozen", "mlp")
    assert FedIIRHyper(**ALGORITHMS["fediir-rotated-mnist"].defaults).classifier == "linear"
    assert [FedIIRHyper(**ALGORITHMS[f"fediir-{name}"].defaults).gamma for name in ("vlcs", "officehome")] == [5e-3, 5e-4]


# ---- whole runs


@pytest.mark.parametrize("hyper", [{"gamma": 0.1}, {"gamma": 0.1, "classifier": "mlp", "bn_buffers": "local", "ema_debias": True}])
def test_a_run_repeats_and_resumes_and_shows_the_classifier_only(start: Start, hyper: dict[str, Any]) -> None:
    resident, forgetful = start("fediir", hyper), start("fediir", hyper)
    digest = resident.digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    names = uploaded(resident)
    assert names["gradient"] == {name for name in names["train"] if name.startswith("head.")}
    means = [path for path in resident.stored(".safetensors") if path.name == f"{GRADIENT}.safetensors"]
    assert len(means) == 2
    assert all(set(Payload(path)) == names["gradient"] for path in means)
    assert digest != start("fediir", {**hyper, "gamma": 0.2}).digest
