"""FedAvg against its oracles and against centralised training, to which it must reduce."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_algorithms.contract import Task, TensorShape
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.models import build_model
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Batch, Samples
from fl_algorithms.training import fails_on_one_image, fit, learning_rate, make_optimizer, optimizer_slots, restore_slots
from tests.federations import SMALL_TASK, Linear, Uploads, copied, linear, random_samples, server, silo

SGD: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.1,
    "schedule": "constant",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "epochs": 1,
    "batch_size": 1000,
}


def fedavg(**hyper: Any) -> Any:
    return linear(FedAvg(FedAvgHyper(**{**SGD, **hyper}), SMALL_TASK))


def initial(algorithm: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    return copied(algorithm.initialise(server({}, seed=seed), Uploads({})).parts[MODEL])


def federated(algorithm: Any, silos: dict[str, Samples], rounds: int) -> dict[str, torch.Tensor]:
    """The model after that many rounds, all silos trained one after the other on one network, as in one process."""
    roster, model = {name: len(samples) for name, samples in silos.items()}, initial(algorithm)
    for round in range(1, rounds + 1):
        updates = {}
        for name, samples in silos.items():
            updates[name] = copied(algorithm.train(silo(samples, {MODEL: model}, name, round, rounds)).tensors)
        model = copied(algorithm.combine(server(roster, {MODEL: model}, round, rounds), Uploads(updates)).parts[MODEL])
    return model


# ---- oracles


def test_cosine_learning_rate_oracle() -> None:
    expected = {0: 1e-3, 1: 0.0009972609476841367, 10: 0.00075, 15: 0.0005, 29: 2.7390523158632995e-06, 30: 0.0}
    for epoch, rate in expected.items():
        assert learning_rate(1e-3, "cosine", epoch, 30, 1) == pytest.approx(rate, abs=1e-12)


def test_the_schedule_follows_the_global_round() -> None:
    algorithm = FedAvg(FedAvgHyper(lr=1e-3, epochs=3, schedule="cosine"), SMALL_TASK)
    rates = [rate for round in range(1, 11) for rate in algorithm.rates(round, 10)]
    assert len(rates) == 30
    assert [rates[e] for e in (0, 1, 10, 15, 29)] == pytest.approx([1e-3, 9.972609477e-4, 7.5e-4, 5e-4, 2.739052316e-6], abs=1e-12)


def test_step_and_constant_schedules() -> None:
    step = FedAvg(FedAvgHyper(lr=0.1, epochs=2, schedule="step", milestones=(350, 700), decay=0.1), SMALL_TASK)
    assert [step.rates(round, 1000)[1] for round in (1, 349, 350, 699, 700)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])
    assert FedAvg(FedAvgHyper(lr=0.1, epochs=2, schedule="constant"), SMALL_TASK).rates(9, 10) == [0.1, 0.1]


@pytest.mark.parametrize(("weighting", "expected"), [("samples", [1.5, 1.0, -0.625]), ("uniform", [2.0, 0.0, -0.25])])
def test_combine_oracle(weighting: str, expected: list[float]) -> None:
    updates = Uploads({"a": {"w": torch.tensor([1.0, 2.0, -1.0]).double()}, "b": {"w": torch.tensor([3.0, -2.0, 0.5]).double()}})
    broadcast = fedavg(weighting=weighting).combine(server({"a": 30, "b": 10, "absent": 999}), updates)
    assert broadcast.parts[MODEL]["w"].tolist() == pytest.approx(expected, abs=1e-8)
    assert sum(broadcast.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(("rule", "variance"), [("average", 1.75), ("pooled", 2.5)])
def test_statistics_oracle(rule: str, variance: float) -> None:
    def norm(mean: float, var: float, count: int) -> dict[str, torch.Tensor]:
        return {
            "n.running_mean": torch.tensor([float(mean)]),
            "n.running_var": torch.tensor([float(var)]),
            "n.num_batches_tracked": torch.tensor(count),
        }

    model = fedavg(bn_buffers=rule).combine(server({"a": 30, "b": 10}), Uploads({"a": norm(0, 1, 7), "b": norm(2, 4, 4)})).parts[MODEL]
    assert (model["n.running_mean"].item(), model["n.running_var"].item(), model["n.num_batches_tracked"].item()) == (0.5, variance, 7)


# ---- centralised training


def central_steps(model: nn.Module, samples: Samples, steps: int, name: str = "silo") -> dict[str, torch.Tensor]:
    """Plain SGD written out: w <- w - lr grad, on all images in the order the silo sees them."""
    for step in range(1, steps + 1):
        order = torch.randperm(len(samples), generator=stream(0, "shuffle", name, step, "train"))
        images, labels, _ = next(samples.batches(len(samples), order))
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-SGD["lr"])
    return copied(model.state_dict())


def test_one_silo_is_centralised_sgd_bit_for_bit() -> None:
    samples = random_samples(40)
    found = federated(fedavg(), {"silo": samples}, rounds=4)
    model = Linear(48, 3)
    model.load_state_dict(initial(fedavg()))
    expected = central_steps(model, samples, 4)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not torch.equal(found["head.weight"], initial(fedavg())["head.weight"])


def test_one_silo_is_centralised_sgd_bit_for_bit_with_a_convolutional_network() -> None:
    task = dataclasses.replace(SMALL_TASK, backbone="small-cnn", image_size=16)
    algorithm = FedAvg(FedAvgHyper(**SGD), task)
    pixels = torch.randint(256, (20, 16, 16, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).numpy()
    samples = Samples(
        [(pixels, (pixels[:, 0, 0, 0] % 3).astype("int64"), torch.arange(20).numpy())], task.mean, task.std, torch.device("cpu")
    )
    start = initial(algorithm)
    torch.manual_seed(5)
    update = copied(algorithm.train(silo(samples, {MODEL: start})).tensors)
    combined = algorithm.combine(server({"silo": 20}, {MODEL: start}), Uploads({"silo": update})).parts[MODEL]
    model = build_model("small-cnn", 3, 3, 16).to(memory_format=torch.channels_last)
    model.load_state_dict(start)
    torch.manual_seed(5)
    expected = central_steps(model.train(), samples, 1)
    assert all(torch.equal(combined[name], expected[name]) for name in expected)


def test_one_step_of_all_silos_is_one_step_on_the_union() -> None:
    silos = {name: random_samples(count, name) for name, count in (("a", 5), ("b", 20), ("c", 75))}
    found = federated(fedavg(), silos, rounds=1)
    images, labels, _ = (torch.cat(part) for part in zip(*(next(samples.batches(100)) for samples in silos.values()), strict=True))
    model = Linear(48, 3)
    model.load_state_dict(initial(fedavg()))
    F.cross_entropy(model(images), labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[name], parameter.detach() - 0.1 * parameter.grad, rtol=0, atol=1e-14)


def test_uniform_weights_do_not_give_the_pooled_step() -> None:
    silos = {name: random_samples(count, name) for name, count in (("a", 5), ("b", 75))}
    assert not torch.allclose(
        federated(fedavg(), silos, 1)["head.weight"], federated(fedavg(weighting="uniform"), silos, 1)["head.weight"], atol=1e-6
    )


# ---- the network


def test_initial_weights_are_fixed_by_the_seed_and_leave_the_global_stream_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = initial(fedavg(), 3), initial(fedavg(), 3), initial(fedavg(), 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first["head.weight"], again["head.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_building_the_network_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    algorithm = FedAvg(FedAvgHyper(), Task("small-cnn", 3, 3, 16, SMALL_TASK.mean, SMALL_TASK.std))
    assert algorithm.network is algorithm.network
    assert len(algorithm.upload) == len(algorithm.network.state_dict())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_with_other_tensors_is_not_loaded() -> None:
    algorithm = fedavg()
    with pytest.raises(ValueError, match=r"head\.bias"):
        algorithm.load({"head.weight": torch.zeros(3, 48)}, torch.device("cpu"))


def test_the_upload_layout_is_the_network_without_local_statistics() -> None:
    task = Task("small-cnn", 3, 3, 16, SMALL_TASK.mean, SMALL_TASK.std)
    everything = FedAvg(FedAvgHyper(), task).upload
    assert everything["head.weight"] == TensorShape(torch.float32, (3, 128))
    without = FedAvg(FedAvgHyper(bn_buffers="local"), task).upload
    assert {name for name in everything if name not in without} == {n for n in everything if "running_" in n or "num_batches" in n}
    assert len(everything) - len(without) == 12


# ---- the local loop


def test_zero_epochs_send_the_model_back() -> None:
    algorithm = fedavg(epochs=0)
    start = initial(algorithm)
    update = algorithm.train(silo(random_samples(5), {MODEL: start}))
    assert all(torch.equal(update.tensors[name], start[name]) for name in start)


def test_every_epoch_sees_every_image_once_in_a_new_order() -> None:
    seen: list[list[int]] = []
    model, samples = Linear(48, 3), random_samples(10)
    samples.labels = torch.arange(10)

    def loss(batch: Batch) -> torch.Tensor:
        seen.append(batch.labels.tolist())
        return model(batch.images).sum()

    fit(model, silo(samples, {}), make_optimizer("sgd", model.parameters(), 0, 0), [0.1, 0.1], 4, loss)
    assert [len(batch) for batch in seen] == [4, 4, 2, 4, 4, 2]
    first, second = ([label for batch in epoch for label in batch] for epoch in (seen[:3], seen[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_steps_per_epoch(steps: int) -> None:
    sizes: list[int] = []
    model = Linear(48, 3)

    def loss(batch: Batch) -> torch.Tensor:
        sizes.append(len(batch.labels))
        return model(batch.images).sum()

    fit(model, silo(random_samples(10), {}), make_optimizer("sgd", model.parameters(), 0, 0), [0.1], 4, loss, steps_per_epoch=steps)
    assert sizes == [4] * steps


def test_a_last_batch_of_one_is_left_out_only_where_the_network_cannot_take_it() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    normalised = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, 3))
    image = torch.zeros(1, 3, 4, 4)
    assert (fails_on_one_image(plain, image), fails_on_one_image(normalised, image)) == (False, True)
    for model, expected in ((plain, [4, 4, 1]), (normalised, [4, 4])):
        sizes: list[int] = []

        def loss(batch: Batch, model: nn.Module = model, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(len(batch.labels))
            return model(batch.images).sum()

        fit(model, silo(random_samples(9), {}), make_optimizer("sgd", model.parameters(), 0, 0), [0.1], 4, loss)
        assert sizes == expected


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_optimiser_slots_survive_being_stored(kind: str) -> None:
    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            optimizer.param_groups[0]["lr"] = 0.1
            optimizer.zero_grad()
            model(torch.ones(2, 3, 4, 4)).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    whole = Linear(48, 3)
    parts = Linear(48, 3)
    parts.load_state_dict(whole.state_dict())
    steps(whole, make_optimizer(kind, whole.parameters(), 0.9, 1e-4), 4)
    first = make_optimizer(kind, parts.parameters(), 0.9, 1e-4)
    steps(parts, first, 2)
    stored = copied(optimizer_slots(first))
    assert stored
    second = make_optimizer(kind, parts.parameters(), 0.9, 1e-4)
    restore_slots(second, stored)
    steps(parts, second, 2)
    assert torch.equal(whole.head.weight, parts.head.weight)


# ---- participants


def test_participants_are_drawn_without_replacement_and_by_round() -> None:
    algorithm, roster = fedavg(participants=3), {f"s{i}": 1 for i in range(8)}
    draws = [algorithm.sample(server(roster, round=round)) for round in range(40)]
    assert all(len(set(draw)) == 3 and sorted(draw) == draw for draw in draws)
    assert {name for draw in draws for name in draw} == set(roster)
    assert draws == [algorithm.sample(server(roster, round=round)) for round in range(40)]
    assert draws != [algorithm.sample(server(roster, round=round, seed=1)) for round in range(40)]
    assert fedavg().sample(server(roster)) is None


def test_more_participants_than_silos_are_refused() -> None:
    fedavg(participants=2).refuse(["a", "b"])
    with pytest.raises(Unusable, match=r"hyper\.participants: 3 silos a round, but the federation has 2"):
        fedavg(participants=3).refuse(["a", "b"])
