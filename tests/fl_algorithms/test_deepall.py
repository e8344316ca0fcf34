"""DeepAll: the identities of specs/DeepAll.md, the balanced sampler, and that pooling happens only where it may."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.errors import InputError
from fl_algorithms.deepall import DeepAll, DeepAllHyper, balanced
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy
from tests.federations import (
    DOMAINS,
    SMALL_TASK,
    TARGET,
    Run,
    Start,
    Uploads,
    copied,
    linear,
    picture_samples,
    random_samples,
    server,
    silo,
)

SGD: dict[str, Any] = {
    "optimizer": "sgd", "lr": 0.1, "schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "epochs": 1, "batch_size": 8,
}  # fmt: skip


def deepall(**hyper: Any) -> Any:
    return linear(DeepAll(DeepAllHyper(**{**SGD, **hyper}), SMALL_TASK))


def fedavg(**hyper: Any) -> Any:
    return linear(FedAvg(FedAvgHyper(**{**SGD, **hyper}), SMALL_TASK))


def start_of(algorithm: Any) -> dict[str, torch.Tensor]:
    return copied(algorithm.initialise(server({}), Uploads({})).parts[MODEL])


# ---- the balanced sampler


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 9), st.integers(0, 12), st.integers(0, 99))
def test_every_batch_has_as_many_of_each_domain_and_the_remainder_goes_round(sizes: list[int], batch: int, steps: int, seed: int) -> None:
    domains = torch.cat([torch.full((size,), number) for number, size in enumerate(sizes)])
    wanted = steps * batch + 1
    order = balanced(domains, wanted, torch.Generator().manual_seed(seed))
    assert len(order) == wanted
    for rows in order.split(batch):
        counts = domains[rows].bincount(minlength=len(sizes))
        assert counts.max() - counts.min() <= 1
    assert domains[order].bincount(minlength=len(sizes)).max() - domains[order].bincount(minlength=len(sizes)).min() <= 1
    for number, size in enumerate(sizes):  # a domain is used up before any of its images comes again
        own = order[domains[order] == number]
        assert all(len(set(part.tolist())) == len(part) for part in own.split(size))


def test_balanced_draws_exactly_b_over_m() -> None:
    domains = torch.tensor([0] * 50 + [3] * 5 + [7] * 20)  # numbers of domains that another silo may have in between
    order = balanced(domains, 60, torch.Generator().manual_seed(0))
    for rows in order.split(12):
        assert domains[rows].bincount()[[0, 3, 7]].tolist() == [4, 4, 4]


def test_sampling_is_what_the_hyper_parameter_says() -> None:
    samples = picture_samples([50, 5, 20], size=4)
    one = silo(samples, {})
    union = deepall().draw(one)(75, 75, torch.Generator().manual_seed(0))
    assert sorted(union.tolist()) == list(range(75))
    even = deepall(sampling="balanced").draw(one)(75, 75, torch.Generator().manual_seed(0))
    assert samples.domains[even].bincount().tolist() == [25, 25, 25]


@pytest.mark.parametrize(("sampling", "expected"), [("union", [50, 5, 20]), ("balanced", [25, 25, 25])])
def test_an_epoch_of_training_draws_by_it(sampling: str, expected: list[int]) -> None:
    one, seen = deepall(sampling=sampling), []
    original = one.loss

    def loss(model: Any, batch: Any, silo: Any) -> torch.Tensor:
        seen.append(batch.domains)
        value: torch.Tensor = original(model, batch, silo)
        return value

    one.loss = loss
    one.train(silo(picture_samples([50, 5, 20], size=4), {MODEL: start_of(one)}))
    assert torch.cat(seen).bincount().tolist() == expected


# ---- identities


def test_union_is_fedavg_on_one_silo_bit_for_bit() -> None:
    samples, received = picture_samples([20, 7], size=4), start_of(fedavg())
    found, expected = (one.train(silo(samples, {MODEL: copied(received)})).tensors for one in (deepall(epochs=3), fedavg(epochs=3)))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_one_full_batch_step_is_the_weighted_mean_of_the_silos_steps() -> None:
    """The FedSGD identity, in float64."""
    hyper = {"batch_size": 1000}
    received = start_of(fedavg())
    parts = {"a": picture_samples([30], size=4), "b": picture_samples([0, 11], size=4), "c": picture_samples([0, 0, 3], size=4)}
    updates = {name: copied(fedavg(**hyper).train(silo(part, {MODEL: received}, name)).tensors) for name, part in parts.items()}
    averaged = fedavg().combine(server({name: len(part) for name, part in parts.items()}), Uploads(updates)).parts[MODEL]
    central = copied(deepall(**hyper).train(silo(picture_samples([30, 11, 3], size=4), {MODEL: received})).tensors)
    for name, tensor in central.items():
        assert torch.allclose(averaged[name], tensor, rtol=0, atol=1e-12)
        assert not torch.equal(tensor, received[name])


def test_the_smoothed_loss_is_that_of_fedavg() -> None:
    one = deepall(label_smoothing=0.1)
    batch = next(random_samples(6).batches(6))
    assert torch.equal(one.loss(one.network, batch, None), cross_entropy(one.network(batch.images), batch.labels, 0.1))


@pytest.mark.parametrize("sampling", ["union", "balanced"])
@pytest.mark.parametrize("counts", [[1], [3], [1, 1, 1], [9, 1]])
def test_small_silos(sampling: str, counts: list[int]) -> None:
    one = deepall(sampling=sampling, batch_size=2)
    update = one.train(silo(picture_samples(counts, size=4, classes=1), {MODEL: start_of(one)}))
    assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())


# ---- whole runs


def dealt(run: Run) -> dict[str, Any]:
    splits: dict[str, Any] = json.loads((run.folder / "plan.json").read_text())["splits"]
    return splits


def test_one_silo_has_every_source_image_and_none_of_the_target(start: Start) -> None:
    pooled, divided = start("deepall", silos_per_domain=2), start("fedavg", silos_per_domain=2)
    assert len(divided.silos) == 6
    assert pooled.silos == ["silo-01"]
    (share,) = dealt(pooled).values()
    for part in ("train", "validation"):
        assert set(share[part]) == set(DOMAINS)
        assert TARGET not in share[part]
        for domain in DOMAINS:
            rows = [row for other in dealt(divided).values() for row in other[part].get(domain, [])]
            assert sorted(share[part][domain]) == sorted(rows)


def test_it_is_fedavg_on_a_federation_of_one_silo(start: Start) -> None:
    hyper = {"epochs": 2}
    one_silo = {"partition": {"rule": "dirichlet", "silos": 1}, "rounds": 1}
    assert start("deepall", hyper, rounds=1).digest == start("fedavg", hyper, **one_silo).digest


@pytest.mark.parametrize("algorithm", ["deepall", "deepall-balanced", "mixstyle-deepall"])
def test_a_run_repeats_and_resumes(start: Start, algorithm: str) -> None:
    resident, forgetful = start(algorithm, rounds=2), start(algorithm, rounds=2)
    digest = resident.digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    assert start(algorithm, {"persist_optimizer": False}, rounds=2).digest != digest


def test_separate_silos_are_refused_before_anything_is_written(start: Start, tmp_path: Any) -> None:
    with pytest.raises(InputError, match="algorithm 'deepall': pools the images of all silos"):
        start("deepall", store="s3://store.example/runs")
    with pytest.raises(InputError) as caught:
        start("deepall", store="s3://user:secret@store.example/runs")
    assert "secret" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    start("deepall", store=(tmp_path / "elsewhere").as_uri())
