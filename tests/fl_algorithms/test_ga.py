"""GA: the oracles of specs/GA.md, when a gap is measured and when it counts, on top of other algorithms too."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from components.received import read_broadcast, read_update
from components.wire import Payload
from fl_algorithms.contract import Server, Silo
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.ga import GA, LAST, SHARES, GAHyper, adjusted, step_length
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples
from tests.federations import SMALL_TASK, Run, Start, Uploads, copied, linear, random_samples, server, silo, uploaded

THIRDS = (1 / 3, 1 / 3, 1 / 3)
ACCURACY_GAPS, LOSS_GAPS = (-0.05, -0.12, 0.01), (0.30, 0.40, -0.10)
HYPER: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant", "epochs": 1, "batch_size": 8}
ROSTER = {"a": 30, "b": 20, "c": 10}
STATE = {"head.weight": torch.zeros(3, 48, dtype=torch.float64), "head.bias": torch.zeros(3, dtype=torch.float64)}


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def algorithm(**hyper: Any) -> Any:
    return linear(GA(GAHyper(**{**HYPER, **hyper}), SMALL_TASK))


def reports(**metrics: tuple[float | None, float | None]) -> Uploads:
    """Uploads with (before, after) of each silo."""
    return Uploads(dict.fromkeys(metrics, STATE), {name: {"before": b, "after": a} for name, (b, a) in metrics.items()})


def later(central: Server, round: int) -> Server:
    return Server(round, central.rounds, 0, central.roster, central.parts, copied(central.private))


# ---- oracles


def test_released_update() -> None:
    worse = -double(ACCURACY_GAPS)
    once = adjusted(double(THIRDS), worse, 0.2, "official")
    assert once.tolist() == pytest.approx([0.3316326531, 0.3673469388, 0.3010204082], abs=1e-8)
    assert adjusted(once, worse, 0.2, "official").tolist() == pytest.approx([0.3300708038, 0.3985839234, 0.2713452728], abs=1e-8)


def test_released_update_is_clipped() -> None:
    moved = adjusted(double((0.02, 0.5, 0.48)), double((-0.1, 0.05, 0.02)), 0.3, "official")
    assert moved.tolist() == pytest.approx([0, 0.5238095238, 0.4761904762], abs=1e-8)


def test_centred_updates() -> None:
    # the oracle's step is not divided by K = 3
    centred = adjusted(double(THIRDS), double(LOSS_GAPS), 3 * 0.05, "centred")
    assert centred.tolist() == pytest.approx([0.35, 0.3666666667, 0.2833333333], abs=1e-8)
    paper = adjusted(double(THIRDS), double(LOSS_GAPS), 0.05, "paper")
    assert paper.tolist() == pytest.approx([0.3583333333, 0.3833333333, 0.2583333333], abs=1e-8)


def test_step_lengths() -> None:
    assert [step_length(0.2, r, 40, "official") for r in (0, 1, 20, 40)] == pytest.approx([0.205, 0.2, 0.105, 0.005], abs=1e-8)
    assert [step_length(0.2, r, 40) for r in (0, 1, 20, 40)] == pytest.approx([0.2, 0.195, 0.1, 0], abs=1e-8)


# ---- the update


@pytest.mark.parametrize("form", ["centred", "official", "paper"])
@given(
    gaps=st.lists(st.one_of(st.floats(-10, 10), st.just(math.nan), st.just(0.5)), min_size=2, max_size=6),
    length=st.floats(0, 2),
    rest=st.randoms(use_true_random=False),
)
def test_weights_stay_weights_and_follow_their_silo(form: Any, gaps: list[float], length: float, rest: Any) -> None:
    start = torch.rand(len(gaps), dtype=torch.float64, generator=torch.Generator().manual_seed(len(gaps))) + 0.01
    start /= start.sum()
    moved = adjusted(start, double(gaps), length, form)
    assert ((moved >= 0) & (moved <= 1)).all()
    assert moved.sum().item() == pytest.approx(1.0, abs=1e-12)
    order = list(range(len(gaps)))
    rest.shuffle(order)
    assert torch.allclose(adjusted(start[order], double(gaps)[order], length, form), moved[order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", ["centred", "paper"])
@pytest.mark.parametrize("gaps", [(0.2, 0.2, 0.2), (0.0, 0.0, 0.0), (math.nan, 0.3, math.nan), (math.nan,) * 3])
def test_nothing_moves_where_no_silo_is_worse_off_than_another(form: Any, gaps: tuple[float, ...]) -> None:
    start = double((0.5, 0.3, 0.2))
    assert torch.equal(adjusted(start, double(gaps), 0.2, form), start)


def test_nothing_moves_in_the_released_form_without_a_gap() -> None:
    start = double((0.5, 0.3, 0.2))
    assert torch.equal(adjusted(start, double((0.0, 0.0, 1e-13)), 0.2, "official"), start)
    assert torch.equal(adjusted(double(THIRDS), double((-1.0, -1.0, -1.0)), 1.0, "official"), double(THIRDS))  # all would be 0


def test_a_silo_without_a_gap_keeps_its_weight() -> None:
    moved = adjusted(double((0.5, 0.3, 0.2)), double((0.1, math.nan, -0.1)), 0.3)
    assert moved.tolist() == pytest.approx([0.6, 0.3, 0.1], abs=1e-12)


# ---- the server


@pytest.mark.parametrize(("metric", "favoured"), [("loss", "b"), ("accuracy", "c")])
def test_the_gap_of_a_round_counts_in_the_next(metric: str, favoured: str) -> None:
    one = algorithm(gap_metric=metric, gap_step=0.3)
    first = server(ROSTER, {MODEL: STATE}, round=1, rounds=10)
    assert one.combine(first, reports(a=(1.0, None), b=(0.5, None), c=(0.7, None))).weights == pytest.approx(dict.fromkeys(ROSTER, 1 / 3))
    assert SHARES not in first.private
    second = later(first, 2)
    weights = one.combine(second, reports(a=(9.0, 1.1), b=(9.0, 0.8), c=(9.0, 0.5))).weights  # gaps .1, .3, -.2
    assert max(weights, key=lambda name: weights[name]) == favoured
    sign = 1 if metric == "loss" else -1
    centred = sign * (double((0.1, 0.3, -0.2)) - 0.2 / 3)
    expected = 1 / 3 + 0.3 / 3 * centred / centred.abs().max()
    assert [weights[name] for name in "abc"] == pytest.approx((expected / expected.sum()).tolist(), abs=1e-12)
    assert second.private[LAST].tolist() == [9.0, 9.0, 9.0]
    third = later(second, 3)
    one.combine(third, reports(a=(1.0, 9.0), b=(1.0, 9.0), c=(1.0, 9.0)))  # equal gaps
    assert torch.equal(third.private[SHARES], second.private[SHARES])


def test_absent_silos_keep_their_weight_and_the_present_share_the_rest() -> None:
    one = algorithm(gap_step=0.3)
    first = server(ROSTER, {MODEL: STATE}, round=1, rounds=10)
    one.combine(first, reports(a=(1.0, None), b=(1.0, None)))
    second = later(first, 2)
    weights = one.combine(second, reports(b=(1.0, 2.0), c=(1.0, 5.0))).weights  # one gap: nothing to compare it with
    assert weights == pytest.approx({"b": 0.5, "c": 0.5})
    third = later(second, 3)
    weights = one.combine(third, reports(b=(1.0, 2.0), c=(1.0, None))).weights
    assert weights == pytest.approx({"b": 0.5, "c": 0.5})
    last = later(third, 4)
    weights = one.combine(last, reports(a=(1.0, 1.0), b=(1.0, 2.0), c=(1.0, 0.5))).weights
    assert weights["b"] > weights["a"] > weights["c"]  # a was absent and stays where it was


def test_silos_whose_weight_is_zero_are_averaged_as_at_the_start() -> None:
    one, central = algorithm(weighting="samples"), server(ROSTER, {MODEL: STATE})
    central.private[SHARES] = double((0.0, 1.0, 0.0))
    assert one.weigh(central, reports(a=(1.0, 1.0), c=(1.0, 1.0))) == pytest.approx({"a": 0.75, "c": 0.25})
    assert one.weigh(central, reports(a=(1.0, 1.0), b=(1.0, 1.0))) == pytest.approx({"a": 0.0, "b": 1.0})


@pytest.mark.parametrize(("weighting", "start"), [("uniform", THIRDS), ("samples", (0.5, 1 / 3, 1 / 6))])
def test_the_first_weights(weighting: str, start: tuple[float, ...]) -> None:
    one = algorithm(weighting=weighting, gap_step=0.3)
    central = server(ROSTER, {MODEL: STATE}, round=1, rounds=10)
    weights = one.combine(central, reports(a=(1.0, None), b=(1.0, None), c=(1.0, None))).weights
    assert [weights[name] for name in "abc"] == pytest.approx(start)
    second = later(central, 2)
    one.combine(second, reports(a=(1.0, 2.0), b=(1.0, 1.0), c=(1.0, 0.0)))
    assert second.private[SHARES].tolist() == pytest.approx([start[0] + 0.1, start[1], start[2] - 0.1], abs=1e-12)


@pytest.mark.parametrize(("silos", "hyper"), [(["a"], {}), (["a", "b"], {"participants": 1})])
def test_one_silo_is_refused(silos: list[str], hyper: dict[str, Any]) -> None:
    with pytest.raises(Unusable, match="needs at least 2 silos a round"):
        algorithm(**hyper).refuse(silos)
    algorithm().refuse(["a", "b"])


# ---- a silo


def with_validation(train: Samples, received: Any, validation: Samples | None, round: int) -> Silo:
    place = silo(train, received, round=round)
    place.validation = validation
    return place


def mean_loss(state: Any, samples: Samples) -> float:
    images, labels, _ = next(samples.batches(len(samples)))
    return F.cross_entropy(F.linear(images.flatten(1).double(), state["head.weight"], state["head.bias"]), labels).item()


@pytest.mark.parametrize(("images", "held_back"), [("validation", True), ("validation", False), ("train", True)])
def test_a_silo_reports_the_received_and_its_own_model_on_the_same_images(images: Any, held_back: bool) -> None:
    one = algorithm(gap_images=images)
    received = copied(one.initialise(server({}), Uploads({})).parts[MODEL])
    train, validation = random_samples(20), random_samples(7, "validation") if held_back else None
    update = one.train(with_validation(train, {MODEL: received}, validation, 2))
    used = validation if validation is not None and images == "validation" else train
    assert update.metrics["after"] == pytest.approx(mean_loss(received, used), rel=1e-9)
    assert update.metrics["before"] == pytest.approx(mean_loss(update.tensors, used), rel=1e-9)
    assert update.metrics.keys() == {"loss", "before", "after"}
    assert not torch.equal(update.tensors["head.weight"], received["head.weight"])


def test_accuracies() -> None:
    one = algorithm(gap_metric="accuracy")
    train, validation = random_samples(20), random_samples(9, "validation")
    state = {"head.weight": torch.zeros(3, 48, dtype=torch.float64), "head.bias": double((0.0, 1.0, 0.0))}
    metrics = one.train(with_validation(train, {MODEL: state}, validation, 3)).metrics
    assert metrics["after"] == pytest.approx((validation.labels == 1).double().mean().item())
    assert 0 <= metrics["before"] <= 1


def test_the_initial_model_is_not_measured_and_measuring_changes_no_bit() -> None:
    one, plain = algorithm(), linear(FedAvg(FedAvgHyper(**HYPER), SMALL_TASK))
    received = copied(one.initialise(server({}), Uploads({})).parts[MODEL])
    for round in (1, 2):
        ours = one.train(with_validation(random_samples(3), {MODEL: received}, random_samples(1, "validation"), round))
        theirs = plain.train(silo(random_samples(3), {MODEL: received}, round=round))
        assert ("after" in ours.metrics) == (round == 2)
        assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in theirs.tensors)


# ---- whole runs


@pytest.mark.parametrize("hyper", [{}, {"bn_buffers": "local", "persist_optimizer": True, "weighting": "uniform"}])
def test_without_a_step_it_is_uniform_fedavg_bit_for_bit(start: Start, hyper: dict[str, Any]) -> None:
    still = start("ga", {**hyper, "gap_step": 0.0}, rounds=3)
    assert still.digest == start("fedavg", {**hyper, "weighting": "uniform"}, rounds=3).digest
    assert still.digest != start("ga", {**hyper, "gap_step": 0.5}, rounds=3).digest


@pytest.mark.parametrize("algorithm", ["ga", "ga-fedprox", "ga-fedccrl", "ga-official"])
def test_a_run_repeats_and_resumes_and_two_numbers_more_leave_a_silo(start: Start, algorithm: str) -> None:
    resident, forgetful = start(algorithm, rounds=3), start(algorithm, rounds=3)
    digest = resident.digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    plain = {"ga-fedprox": "fedprox", "ga-fedccrl": "fedccrl"}.get(algorithm, "fedavg")
    without = start(plain, rounds=3)
    without.go()
    assert uploaded(resident) == uploaded(without)
    for round in (1, 2, 3):
        assert metrics(resident, round) == {"loss", "before", "drift"} | ({"after"} if round > 1 else set())
        weights = read_broadcast(resident.federation, round, "train")
        assert weights is not None
        assert sum(weights.weights.values()) == pytest.approx(1.0)
    kept = {name for path in (resident.folder / "private" / "server").rglob("*.safetensors") for name in Payload(path)}
    assert kept == {SHARES, LAST}
    assert not {name for path in resident.stored(".safetensors") for name in Payload(path)} & kept


def metrics(run: Run, round: int) -> set[str]:
    manifest = read_update(run.federation, run.silos[0], round, "train")
    assert manifest is not None
    return set(manifest.metrics)


def test_the_presets() -> None:
    official = GAHyper(**ALGORITHMS["ga-official"].defaults)
    assert (official.gap_step, official.gap_form, official.gap_metric, official.weighting) == (0.2, "official", "accuracy", "uniform")
    assert (official.lr, official.momentum, official.weight_decay, official.batch_size, official.epochs) == (1e-3, 0.9, 5e-4, 16, 5)
    rates = [FedAvg(official, SMALL_TASK).rates(round, 40)[0] for round in (1, 32, 33, 40)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])  # a tenth after 80 % of the rounds
