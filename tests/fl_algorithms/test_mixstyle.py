"""MixStyle: the oracles of specs/MixStyle.md, when it acts and when not, and that the model does not change by it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_algorithms.contract import Task
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.mixstyle import MixStyle, MixStyleHyper, across_domains, mix_statistics
from fl_algorithms.models import MODELS
from fl_algorithms.samples import Batch
from tests.federations import Start, Uploads, copied, picture_samples, server, silo, uploaded

TASK = Task("small-cnn", classes=3, channels=3, image_size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 8}
MAPS = torch.tensor(
    [[[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [1.0, 3.0]]], [[[4.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 4.0]]]], dtype=torch.float64
)
SHARE, PARTNER = torch.tensor([0.3, 0.9], dtype=torch.float64), torch.tensor([1, 0])


def mixstyle(task: Task = TASK, **hyper: Any) -> Any:
    return MixStyle(MixStyleHyper(**{**QUICK, **hyper}), task)


def fedavg(task: Task = TASK, **hyper: Any) -> Any:
    return FedAvg(FedAvgHyper(**{**QUICK, **hyper}), task)


def start_of(algorithm: Any) -> dict[str, torch.Tensor]:
    return copied(algorithm.initialise(server({}), Uploads({})).parts[MODEL])


def trained(algorithm: Any, count: int = 20, name: str = "silo", **made: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # of dropout, as the caller of a step does
    return copied(algorithm.train(silo(picture_samples([count], **made), {MODEL: start_of(algorithm)}, name)).tensors)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def random_maps(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- the operation


def test_oracle() -> None:
    expected = [
        [[[-0.6266527207429851, 0.7577824264190048], [2.1422175735809947, 3.5266527207429847]], [[0.7, 0.7], [1.7, 3.7]]],
        [[[4.0436492011989635, 0.18545026626701205], [0.18545026626701205, 0.18545026626701205]], [[0.9, 0.9], [1.9, 3.9]]],
    ]
    assert torch.allclose(mix_statistics(MAPS, SHARE, PARTNER), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)


def test_the_gradient_treats_statistics_as_constants() -> None:
    maps, weight = MAPS.clone().requires_grad_(), random_maps(2, 2, 2, 2)
    (mix_statistics(maps, SHARE, PARTNER) * weight).sum().backward()
    std = (MAPS.var((2, 3), keepdim=True) + 1e-6).sqrt()
    share = SHARE.view(2, 1, 1, 1)
    assert maps.grad is not None
    assert torch.allclose(maps.grad, weight * (share * std + (1 - share) * std[PARTNER]) / std, rtol=0, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
def test_means_are_mixed_and_a_share_of_one_changes_nothing(batch: int, channels: int, height: int, width: int, seed: int) -> None:
    maps = random_maps(batch, channels, height, width, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    share, partner = torch.rand(batch, generator=draw, dtype=torch.float64), torch.randperm(batch, generator=draw)
    mixed, mean, column = mix_statistics(maps, share, partner), maps.mean((2, 3)), share.view(-1, 1)
    assert torch.allclose(mixed.mean((2, 3)), column * mean + (1 - column) * mean[partner], rtol=0, atol=1e-9)
    assert torch.allclose(mix_statistics(maps, torch.ones(batch), partner), maps, rtol=0, atol=1e-12)
    turned = torch.randperm(batch, generator=draw)  # the batch in another order, each image with the same partner
    place = turned.argsort()
    assert torch.allclose(mix_statistics(maps[turned], share[turned], place[partner[turned]]), mixed[turned], rtol=0, atol=1e-12)


def test_equal_images_and_flat_images() -> None:
    maps = random_maps(1, 3, 4, 4).expand(5, 3, 4, 4)
    assert torch.allclose(mix_statistics(maps, torch.rand(5), torch.tensor([1, 2, 3, 4, 0])), maps, rtol=0, atol=1e-12)
    flat = torch.tensor([2.0, -3.0]).view(2, 1, 1, 1).expand(2, 1, 4, 4)
    found = mix_statistics(flat, torch.tensor([0.25, 0.5]), torch.tensor([1, 0]))
    assert torch.allclose(found[:, 0, 0, 0], torch.tensor([0.25 * 2 - 0.75 * 3, -0.5]), atol=1e-5)
    one = random_maps(2, 3, 1, 1)
    assert torch.isfinite(mix_statistics(one, SHARE, PARTNER)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_statistics_in_single(dtype: torch.dtype) -> None:
    maps = (random_maps(2, 3, 64, 64).float() * 0.01 + 200).to(dtype)  # the sum of squares overflows float16
    share = torch.tensor([1e-4, 0.9999])
    found = mix_statistics(maps, share, PARTNER)
    assert found.dtype == dtype
    assert torch.isfinite(found).all()
    assert torch.allclose(found.float().mean((2, 3)), mix_statistics(maps.float(), share, PARTNER).mean((2, 3)), rtol=0.02)


# ---- partners


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 1000))
def test_partners_are_of_another_domain_where_that_is_possible(numbers: list[int], seed: int) -> None:
    domains = torch.tensor(numbers)
    partner = across_domains(domains, torch.Generator().manual_seed(seed))
    assert sorted(partner.tolist()) == list(range(len(numbers)))
    largest = max(numbers.count(number) for number in numbers)
    alike = int((domains == domains[partner]).sum())
    assert alike == (len(numbers) if largest == len(numbers) else max(0, 2 * largest - len(numbers)))


def test_two_halves_are_exchanged_in_random_order() -> None:
    domains, draw = torch.tensor([0] * 4 + [1] * 4), torch.Generator().manual_seed(0)
    found = [tuple(across_domains(domains, draw).tolist()) for _ in range(20)]
    assert all(set(partner[:4]) == {4, 5, 6, 7} for partner in found)
    assert len(set(found)) > 15
    assert len({tuple(across_domains(torch.zeros(8, dtype=torch.int64), draw).tolist()) for _ in range(20)}) > 15


# ---- where it acts


@pytest.mark.parametrize("backbone", MODELS)
def test_the_model_keeps_its_tensor_names(backbone: str) -> None:
    task = Task(backbone, 3, 3, 64, TASK.mean, TASK.std)
    layers = ("layer1",) if backbone in ("mnist-cnn", "femnist-cnn") else ("layer1", "layer2", "layer3")
    one = mixstyle(task, layers=layers)
    one.refuse(["a"])
    assert one.upload == fedavg(task).upload
    with torch.device("meta"):
        network = one.build()
    assert {name for name, _ in network.body.named_children()} > network.stages
    assert len(network.stages) == len(layers)


def probe(network: Any, images: torch.Tensor) -> list[tuple[int, ...]]:
    """Shapes of the maps that are offered for mixing."""
    seen: list[tuple[int, ...]] = []

    def mix(maps: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(maps.shape))
        return maps

    network.mix = mix
    network(images)
    return seen


@pytest.mark.parametrize(
    ("backbone", "sizes"),
    [
        ("resnet-18", [16, 8, 4]),
        ("resnet-50", [16, 8, 4]),
        ("mobilenet-v2", [16, 8, 4]),
        ("mobilenet-v3-large", [16, 8, 4]),
        ("alexnet", [15, 7, 3]),
        ("small-cnn", [32, 16, 8]),
    ],
)
def test_the_stages_are_those_of_the_paper(backbone: str, sizes: list[int]) -> None:
    network = mixstyle(Task(backbone, 3, 3, 64, TASK.mean, TASK.std)).build()
    assert [shape[-1] for shape in probe(network, torch.zeros(2, 3, 64, 64))] == sizes
    assert probe(network.eval(), torch.zeros(2, 3, 64, 64)) == []


@pytest.mark.parametrize(
    ("backbone", "layers"),
    [
        ("small-cnn", ("layer4",)),
        ("small-cnn", ("3",)),
        ("mnist-cnn", ("layer1", "layer2")),
        ("resnet-18", ("layer1", "layer4")),
        ("resnet-18", ("block1",)),
    ],
)
def test_stages_the_backbone_has_not_and_the_last_one_are_refused(backbone: str, layers: tuple[str, ...]) -> None:
    with pytest.raises(Unusable, match=f"hyper.layers: expected stages of {backbone} .*, found '{layers[-1]}'") as caught:
        mixstyle(Task(backbone, 3, 3, 32, TASK.mean, TASK.std), layers=layers).refuse(["a", "b"])
    assert "\n" not in str(caught.value)


def test_only_the_loss_mixes() -> None:
    one = mixstyle(probability=1.0, alpha=10.0)
    network, batch = one.network, next(picture_samples([8]).batches(8))
    one.begin(network, silo(picture_samples([8]), {}))

    def logits() -> torch.Tensor:
        torch.manual_seed(0)
        found: torch.Tensor = network(batch.images)
        return found

    plain, loss = logits(), FedAvg.loss(one, network, batch, None)  # type: ignore[arg-type]
    torch.manual_seed(0)
    mixed = one.loss(network, batch, None)
    assert (mixed - loss).abs() > 1e-4
    assert network.mix is None
    assert torch.equal(logits(), plain)
    copy.deepcopy(network)


def test_a_failing_loss_leaves_the_network_as_it_was() -> None:
    one = mixstyle()
    broken = Batch(torch.zeros(2, 3, 16, 16), torch.tensor([0, 99]), torch.tensor([0, 0]))
    with pytest.raises(IndexError):
        one.loss(one.network, broken, None)
    assert one.network.mix is None


@pytest.mark.parametrize("mix", ["random", "crossdomain"])
def test_probability_zero_is_fedavg_bit_for_bit(mix: str) -> None:
    plain = trained(fedavg())
    assert same(trained(mixstyle(probability=0.0, mix=mix)), plain)
    assert not same(trained(mixstyle(probability=1.0, mix=mix)), plain)


def test_half_of_the_batches_are_mixed() -> None:
    one = mixstyle(probability=0.5, alpha=5.0)
    one.begin(one.network, silo(picture_samples([4]), {}))
    maps = random_maps(4, 2, 3, 3)
    changed = sum(not torch.equal(one.mix(maps, torch.zeros(4)), maps) for _ in range(400))
    assert 160 < changed < 240


def test_draws_belong_to_the_silo_and_the_round() -> None:
    maps, domains = random_maps(6, 2, 3, 3), torch.tensor([0, 1, 0, 1, 0, 1])

    def mixed(name: str = "a", round: int = 1, **hyper: Any) -> torch.Tensor:
        one = mixstyle(probability=1.0, **hyper)
        one.begin(one.network, silo(picture_samples([4]), {}, name, round))
        found: torch.Tensor = one.mix(maps, domains)
        return found

    assert torch.equal(mixed(), mixed())
    assert not torch.equal(mixed(), mixed("b"))
    assert not torch.equal(mixed(), mixed(round=2))
    even = mixed(alpha=1e6)  # lambda is one half
    mean = maps.mean((2, 3))
    assert all(any(torch.allclose(row, (mean[i] + other) / 2, atol=1e-2) for other in mean) for i, row in enumerate(even.mean((2, 3))))


@pytest.mark.parametrize(
    ("count", "made"),
    [(1, {}), (3, {}), (9, {}), (8, {"classes": 1}), (8, {"flat": True})],
    ids=["one image", "three", "an odd last batch", "one class", "equal images"],
)
@pytest.mark.parametrize("mix", ["random", "crossdomain"])
def test_small_and_odd_silos(count: int, made: dict[str, Any], mix: str) -> None:
    found = trained(mixstyle(probability=1.0, mix=mix), count, **made)
    assert all(torch.isfinite(tensor).all() for tensor in found.values())
    if count == 1:  # its partner is itself
        assert all(torch.allclose(found[name], tensor, atol=1e-5) for name, tensor in trained(fedavg(), 1).items())


# ---- whole runs


@pytest.mark.parametrize("algorithm", ["mixstyle", "mixstyle-crossdomain"])
def test_a_run_repeats_resumes_and_sends_what_fedavg_sends(start: Start, algorithm: str) -> None:
    hyper = {"probability": 0.9}
    resident, forgetful = start(algorithm, hyper), start(algorithm, hyper)
    digest = resident.digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    assert uploaded(resident) == {"join": set(), "train": set(fedavg().upload)}
    assert not (resident.folder / "private").exists()
    assert start(algorithm, {"probability": 0.0}).digest == start("fedavg").digest != digest
