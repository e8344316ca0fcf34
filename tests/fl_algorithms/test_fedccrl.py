"""FedCCRL: how its losses are put together, what a silo shows, what it receives, and what remains when all is switched off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fl_algorithms import fedccrl
from fl_algorithms.contract import TensorShape
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.fedccrl import POOL, FedCCRL, FedCCRLHyper
from fl_algorithms.losses import jensen_shannon, supervised_contrastive
from fl_algorithms.samples import Batch
from tests.federations import SMALL_TASK, Uploads, copied, linear, random_samples, server, silo

SGD: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.1,
    "schedule": "constant",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "epochs": 2,
    "batch_size": 8,
}
OFF: dict[str, Any] = {"lambda1": 0.0, "lambda2": 0.0, "ccdt": False, "difp": False}
VIEWS = [[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]


def algorithm(**hyper: Any) -> Any:
    return linear(FedCCRL(FedCCRLHyper(**{**SGD, **hyper}), SMALL_TASK))


class Scripted:
    """A network whose three forward passes give the oracle's predictions."""

    def __init__(self) -> None:
        self._views: Iterator[list[float]] = iter(VIEWS)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([next(self._views)], dtype=torch.float64).log()

    def head(self, features: torch.Tensor) -> torch.Tensor:
        return features


# ---- the loss


@pytest.mark.parametrize(
    ("hyper", "expected"),
    [
        ({"lambda1": 0.0, "lambda2": 0.0}, 0.8864200123109262),
        ({"lambda1": 0.0, "lambda2": 0.0, "classification": "sum"}, 2.6592600369327783),
        ({"lambda1": 0.0, "lambda2": 1.0}, 0.8864200123109262 + 0.12917685124754738),
        ({}, 1.1655968635584735),
        ({"classification": "sum", "lambda2": 0.1}, 2.822177722057533),
    ],
)
def test_composition_oracle(monkeypatch: pytest.MonkeyPatch, hyper: dict[str, Any], expected: float) -> None:
    monkeypatch.setattr(fedccrl, "supervised_contrastive", lambda *_: torch.tensor(1.5, dtype=torch.float64))
    one = algorithm(ccdt=False, difp=False, **hyper)
    value = one.loss(Scripted(), Batch(torch.zeros(1, 3, 4, 4), torch.tensor([0]), torch.tensor([0])), None)
    assert value.item() == pytest.approx(expected, abs=1e-8)


def test_both_views_are_aligned_with_the_plain_one_and_gradients_flow_through_all_three(monkeypatch: pytest.MonkeyPatch) -> None:
    one = algorithm(lambda1=0.7, lambda2=0.3, temperature=0.5)
    batch = next(random_samples(6).batches(6))
    images, labels, _ = batch
    views = iter([images + 0.5, images * -1.5])
    monkeypatch.setattr(one, "view", lambda _: next(views))
    torch.manual_seed(0)
    network = one.network
    torch.nn.init.normal_(network.head.weight, std=0.3)
    seen: list[torch.Tensor] = []

    def features(batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.flatten(1).double().requires_grad_())
        return seen[-1]

    monkeypatch.setattr(network, "features", features)
    value = one.loss(network, batch, None)
    plain, first, second = (z.detach() for z in seen)
    logits = [network.head(z) for z in (plain, first, second)]
    expected = torch.stack([torch.nn.functional.cross_entropy(y, labels) for y in logits]).mean() + 0.3 * jensen_shannon(logits)
    expected = expected + 0.7 * (supervised_contrastive(first, plain, labels, 0.5) + supervised_contrastive(second, plain, labels, 0.5)) / 2
    assert value.item() == pytest.approx(expected.item(), abs=1e-12)
    value.backward()
    assert all(z.grad is not None and z.grad.abs().sum() > 0 for z in seen)


def test_with_everything_off_it_is_fedavg() -> None:
    ours, theirs = algorithm(**OFF), linear(FedAvg(FedAvgHyper(**SGD), SMALL_TASK))
    start = copied(theirs.initialise(server({}), Uploads({})).parts[MODEL])
    samples = random_samples(30)
    found, expected = (copied(one.train(silo(samples, {MODEL: start})).tensors) for one in (ours, theirs))
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=0, atol=1e-12)
    summed = copied(algorithm(**OFF, classification="sum").train(silo(samples, {MODEL: start})).tensors)
    assert not torch.allclose(summed["head.weight"], expected["head.weight"], rtol=0, atol=1e-3)


# ---- statistics


def test_exchanges() -> None:
    one = algorithm()
    assert [exchange.name for exchange in one.exchanges(0)] == ["join"]
    assert [exchange.name for exchange in one.exchanges(5)] == ["statistics", "train"]
    rows = TensorShape(torch.float32, (None, 3, 1, 1))
    assert one.exchanges(1)[0].upload == {"mean": rows, "std": rows}


@pytest.mark.parametrize(("images", "ratio", "shown"), [(921, 0.1, 93), (921, 1.0, 921), (3, 0.1, 1), (10, 0.1, 1), (11, 0.1, 2)])
def test_the_number_of_rows_is_rounded_up(images: int, ratio: float, shown: int) -> None:
    update = algorithm(ratio=ratio).show_statistics(silo(random_samples(images), {}))
    assert update.tensors["mean"].shape == update.tensors["std"].shape == (shown, 3, 1, 1)


def test_rows_are_statistics_of_own_images_each_at_most_once() -> None:
    samples = random_samples(50)
    images = next(samples.batches(50)).images
    mean, std = images.mean((2, 3)), (images.var((2, 3), unbiased=False) + 1e-6).sqrt()
    update = algorithm(ratio=0.5).show_statistics(silo(samples, {}))
    rows = torch.cat([update.tensors["mean"], update.tensors["std"]], 1).flatten(1)
    matches = torch.isclose(rows[:, None], torch.cat([mean, std], 1)[None], atol=1e-5).all(2)
    assert matches.sum(1).tolist() == [1] * 25
    assert matches.sum(0).max() == 1


def test_other_images_are_shown_every_round_unless_asked_otherwise() -> None:
    samples = random_samples(50)

    def shown(one: Any, round: int, name: str = "silo") -> torch.Tensor:
        tensor: torch.Tensor = one.show_statistics(silo(samples, {}, name, round)).tensors["mean"]
        return tensor

    fresh, once = algorithm(), algorithm(stats_once=True)
    assert torch.equal(shown(fresh, 1), shown(algorithm(), 1))
    assert not torch.equal(shown(fresh, 1), shown(fresh, 2))
    assert not torch.equal(shown(fresh, 1, "a"), shown(fresh, 1, "b"))
    assert torch.equal(shown(once, 1), shown(once, 2))


def test_each_silo_receives_the_rows_of_the_others_in_matching_pairs() -> None:
    shown = {
        name: {"mean": torch.full((rows, 3, 1, 1), float(i)), "std": torch.full((rows, 3, 1, 1), float(i) + 0.5)}
        for i, (name, rows) in enumerate((("a", 2), ("b", 3), ("c", 4)))
    }
    broadcast = algorithm().pool_statistics(server({"a": 1, "b": 1, "c": 1}), Uploads(shown))
    assert broadcast.parts == {}
    assert broadcast.participants == ["a", "b", "c"]
    pools = broadcast.personal[POOL]
    for i, (name, sizes) in enumerate((("a", (0, 3, 4)), ("b", (2, 0, 4)), ("c", (2, 3, 0)))):
        values = pools[name]["mean"][:, 0, 0, 0]
        assert [int((values == j).sum()) for j in range(3)] == list(sizes), i
        assert torch.equal(pools[name]["std"], pools[name]["mean"] + 0.5)
    assert pools["a"]["mean"][:, 0, 0, 0].tolist() != sorted(pools["a"]["mean"][:, 0, 0, 0].tolist())


def test_a_silo_left_alone_trains_without_a_pool() -> None:
    lonely = {"a": {"mean": torch.zeros(2, 3, 1, 1), "std": torch.ones(2, 3, 1, 1)}}
    assert algorithm().pool_statistics(server({"a": 1, "b": 1}), Uploads(lonely)).personal[POOL] == {}
    one = algorithm(difp=False)
    one.begin(one.network, silo(random_samples(4), {}))
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(one.view(images), images)


@pytest.mark.parametrize(("silos", "hyper"), [(["a"], {}), (["a", "b"], {"participants": 1})])
def test_one_silo_is_refused(silos: list[str], hyper: dict[str, Any]) -> None:
    with pytest.raises(Unusable, match="needs at least 2 silos a round"):
        algorithm(**hyper).refuse(silos)
    algorithm().refuse(["a", "b"])


# ---- views


def test_a_restyled_image_has_statistics_between_its_own_and_the_foreign_ones() -> None:
    one = algorithm(difp=False, alpha=1.0)
    pool = {"mean": torch.full((5, 3, 1, 1), 10.0), "std": torch.full((5, 3, 1, 1), 3.0)}
    one.begin(one.network, silo(random_samples(4), {POOL: pool}))
    images = torch.randn(64, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    styled = one.view(images)
    own, found = images.mean((2, 3)), styled.mean((2, 3))
    share = (found - own) / (10.0 - own)
    assert ((share > -1e-5) & (share < 1 + 1e-5)).all()
    assert torch.allclose(share, share[:, :1].expand_as(share), atol=1e-4)
    assert 0.4 < share[:, 0].mean() < 0.6
    assert not styled.requires_grad


def test_the_two_views_of_a_batch_differ_and_a_repeated_step_draws_the_same() -> None:
    pool = {"mean": torch.randn(9, 3, 1, 1), "std": torch.rand(9, 3, 1, 1) + 0.5}
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def views(round: int) -> list[torch.Tensor]:
        one = algorithm()
        one.begin(one.network, silo(random_samples(4), {POOL: pool}, round=round))
        return [one.view(images), one.view(images)]

    first, second = views(1)
    assert not torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(views(1), (first, second), strict=True))
    assert not torch.equal(views(2)[0], first)


@pytest.mark.parametrize(("wrap", "expected"), [(True, [246, 44, 100]), (False, [0, 255, 100.5])])
def test_pixels_outside_the_range_are_clamped_or_wrap_around_as_in_the_released_code(wrap: bool, expected: list[float]) -> None:
    one = algorithm(wrap_pixels=wrap)
    one._augmix = lambda pixels, generator: pixels
    mean, std = SMALL_TASK.mean[0], SMALL_TASK.std[0]
    pixels = torch.tensor([-10.5, 300.5, 100.5]).view(1, 1, 1, 3).expand(1, 3, 1, 3)
    found = one.perturb((pixels / 255 - mean) / std) * std + mean
    assert np.allclose(found[0, 0, 0].numpy() * 255, expected, atol=1e-3)


def test_the_preset_is_the_released_code() -> None:
    from fl_algorithms.registry import ALGORITHMS

    hyper = FedCCRLHyper(**ALGORITHMS["fedccrl-official"].defaults)
    assert (hyper.lambda1, hyper.lambda2, hyper.classification, hyper.persist_optimizer) == (0.1, 0.1, "sum", True)
    assert (hyper.wrap_pixels, hyper.augmix_shared_ops, hyper.self_in_positives) == (True, True, True)
    assert math.isclose(hyper.weight_decay, 1e-4)
