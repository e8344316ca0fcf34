"""Power-of-choice: the law of the draw, the ranking, and the loss that is reported."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL
from fl_algorithms.power_of_choice import PowerOfChoice, PowerOfChoiceHyper
from fl_algorithms.randomness import stream
from fl_algorithms.selection import draw_biased, draw_without_replacement, largest
from tests.federations import SMALL_TASK, Linear, Start, Uploads, copied, linear, random_samples, server, silo

SHARES = (0.4, 0.3, 0.2, 0.1)
PAIRS = {
    (0, 1): 0.3714285714,
    (0, 2): 0.2333333333,
    (0, 3): 0.1111111111,
    (1, 2): 0.1607142857,
    (1, 3): 0.07619047619,
    (2, 3): 0.04722222222,
}
LOSSES = (1.0, 2.5, 0.5, 4.0)
SELECTED = (0.2333333333, 0.5321428571, 0.0, 0.2345238095)
DRAWS = 20_000
ROSTER = {"a": 40, "b": 30, "c": 20, "d": 10}


def algorithm(**hyper: Any) -> Any:
    options = {"optimizer": "sgd", "lr": 0.5, "schedule": "constant", "epochs": 1, "batch_size": 8, **hyper}
    return linear(PowerOfChoice(PowerOfChoiceHyper(**options), SMALL_TASK))


def within_three_sigma(count: int, probability: float) -> bool:
    return abs(count - DRAWS * probability) <= 3 * math.sqrt(DRAWS * probability * (1 - probability))


# ---- the draw


def test_pair_and_selection_probabilities() -> None:
    generator = stream(0, "test")
    drawn = [draw_without_replacement(SHARES, 2, generator) for _ in range(DRAWS)]
    assert all(len(set(pair)) == 2 for pair in drawn)
    pairs = Counter(tuple(sorted(pair)) for pair in drawn)
    for pair, probability in PAIRS.items():
        assert within_three_sigma(pairs[pair], probability), pair
    chosen = Counter(max(pair, key=lambda i: LOSSES[i]) for pair in drawn)
    for silo_number, probability in enumerate(SELECTED):
        assert within_three_sigma(chosen[silo_number], probability), silo_number
    firsts = Counter(pair[0] for pair in drawn)
    assert all(within_three_sigma(firsts[i], share) for i, share in enumerate(SHARES))


def test_the_scale_of_the_weights_does_not_matter_and_zero_is_never_drawn() -> None:
    for count in (1, 2, 3, 9):
        small, large = (draw_without_replacement([w * factor for w in (0.0, 1, 2, 3)], count, stream(1, "x")) for factor in (1e-9, 1e9))
        assert small == large
        assert 0 not in small
        assert len(small) == min(count, 3)


def test_drawing_all_gives_all() -> None:
    assert sorted(draw_without_replacement(SHARES, 4, stream(0, "x"))) == [0, 1, 2, 3]


@pytest.mark.parametrize(("probability", "first"), [(1.0, 3), (0.0, 0)])
def test_biased_draw(probability: float, first: int) -> None:
    names = [f"s{i}" for i in range(10)]
    for seed in range(50):
        drawn = draw_biased(names, 3, probability, 0.3, stream(seed, "x"))
        assert len(set(drawn)) == 3
        assert sum(name in names[:3] for name in drawn) == first


def test_biased_draw_continues_where_a_group_is_used_up() -> None:
    assert draw_biased(["a", "b", "c"], 3, 1.0, 0.3, stream(0, "x")) == ["a", "b", "c"]
    assert draw_biased(["a", "b", "c"], 3, 0.0, 0.3, stream(0, "x")) == ["a", "b", "c"]


# ---- the ranking


@pytest.mark.parametrize(
    ("losses", "count", "expected"),
    [
        ({"a": 1.0, "b": 2.5, "c": 0.5, "d": 4.0}, 1, ["d"]),
        ({"a": 1.0, "b": 2.5, "c": 0.5, "d": 4.0}, 3, ["d", "b", "a"]),
        ({"b": 1.0, "c": 1.0, "a": 1.0}, 2, ["a", "b"]),
        ({"a": 9.0, "b": math.nan, "c": 1.0}, 1, ["b"]),
        ({"a": 9.0, "b": None, "c": 1.0}, 2, ["b", "a"]),
        ({"c": math.inf, "b": math.nan, "a": 1.0}, 2, ["b", "c"]),
        ({"a": -1.0, "b": -math.inf}, 1, ["a"]),
        ({"a": 1.0}, 5, ["a"]),
        ({}, 1, []),
    ],
)
def test_the_largest_losses(losses: dict[str, float | None], count: int, expected: list[str]) -> None:
    assert largest(losses, count) == expected
    for order in itertools.permutations(losses):
        assert largest({name: losses[name] for name in order}, count) == expected


def test_asking_everyone_is_deterministic() -> None:
    one = algorithm(participants=2)
    assert all(one.sample(server(ROSTER, round=round, seed=seed)) == ["a", "b", "c", "d"] for round in range(5) for seed in range(5))
    reports = Uploads({name: {} for name in ROSTER}, {name: {"loss": loss} for name, loss in zip(ROSTER, LOSSES, strict=True)})
    assert {tuple(one.choose(server(ROSTER, seed=seed), reports).participants) for seed in range(5)} == {("b", "d")}


def test_as_many_candidates_as_participants_is_a_weighted_draw() -> None:
    one = algorithm(participants=1, candidates=1)
    drawn = Counter(one.sample(server(ROSTER, seed=seed))[0] for seed in range(2000))
    for name, images in ROSTER.items():
        assert abs(drawn[name] / 2000 - images / 100) < 3 * math.sqrt(images / 100 * (1 - images / 100) / 2000)
    alike = Counter(algorithm(participants=1, candidates=1, weighted=False).sample(server(ROSTER, seed=seed))[0] for seed in range(2000))
    assert all(abs(count / 2000 - 0.25) < 3 * math.sqrt(0.25 * 0.75 / 2000) for count in alike.values())


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"participants": 3, "candidates": 2}, r"hyper.candidates: 2, expected between participants \(3\) and the number of silos \(4\)"),
        ({"candidates": 5}, r"hyper.candidates: 5, expected between participants \(2\)"),
        ({"participants": 5}, "hyper.participants: 5 silos a round"),
        ({"participants": 2, "reserves": 3}, r"hyper.reserves: 3, expected at most the candidates that are no participants \(2\)"),
        ({"participants": 2, "candidates": 3, "reserves": 2}, "hyper.reserves: 2, expected at most"),
        ({"participants": 2, "reserves": 1, "selector": "biased"}, "hyper.reserves: expected 0 with selector=biased"),
    ],
)
def test_impossible_numbers_are_refused(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        algorithm(**hyper).refuse(list(ROSTER))


# ---- selectors


@pytest.mark.parametrize(
    ("selector", "exchanges", "asked"),
    [
        ("pow-d", ["loss", "train"], 3), ("cpow-d", ["loss", "train"], 3), ("adapow-d", ["loss", "train"], 4),
        ("rpow-d", ["train"], 2), ("random", ["train"], 2), ("biased", ["train"], 2),
    ],
)  # fmt: skip
def test_selectors(selector: str, exchanges: list[str], asked: int) -> None:
    one = algorithm(selector=selector, participants=2, candidates=3)
    assert [exchange.name for exchange in one.exchanges(1)] == exchanges
    assert [exchange.name for exchange in one.exchanges(0)] == ["join"]
    assert len(set(one.sample(server(ROSTER, round=0, rounds=10)))) == asked


def test_adapow_asks_fewer_in_the_second_half() -> None:
    one = algorithm(selector="adapow-d", participants=2)
    assert [len(one.sample(server(ROSTER, round=round - 1, rounds=6))) for round in range(1, 7)] == [4, 4, 4, 2, 2, 2]


def test_rpow_uses_the_last_known_loss_and_prefers_the_unknown() -> None:
    one = algorithm(selector="rpow-d", participants=2, candidates=4)
    state = copied(one.initialise(server(ROSTER), Uploads({})).parts[MODEL])
    central = server(ROSTER, {MODEL: state})
    assert one.combine(central, Uploads({"a": state, "d": state}, {"a": {"loss": 5.0}, "d": {"loss": 1.0}})).participants == ["b", "c"]
    assert central.private["last_loss"].tolist() == [5.0, math.inf, math.inf, 1.0]
    assert one.combine(central, Uploads({"b": state, "c": state}, {"b": {"loss": 0.5}, "c": {"loss": 3.0}})).participants == ["a", "c"]
    assert one.combine(central, Uploads({"a": state, "c": state}, {"a": {"loss": None}, "c": {"loss": 0.1}})).participants == ["a", "d"]


def test_selected_silos_are_averaged_alike_by_default() -> None:
    state = copied(algorithm().initialise(server(ROSTER), Uploads({})).parts[MODEL])
    for hyper, expected in (({}, [0.5, 0.5]), ({"weighting": "samples"}, [0.8, 0.2])):
        weights = algorithm(**hyper).combine(server(ROSTER, {MODEL: state}), Uploads({"a": state, "d": state})).weights
        assert [weights["a"], weights["d"]] == pytest.approx(expected)


# ---- drop-outs


@pytest.mark.parametrize("selector", ["pow-d", "rpow-d", "random"])
def test_a_participant_that_drops_out_is_replaced_by_the_next_in_rank(selector: str) -> None:
    one = algorithm(selector=selector, participants=2, reserves=1)
    states = {name: {"head.weight": torch.full((3, 48), float(i)), "head.bias": torch.zeros(3)} for i, name in enumerate(ROSTER)}
    central = server(ROSTER, {MODEL: states["a"]}, rounds=3)
    one.initialise(central, Uploads({}))
    if selector == "pow-d":
        one.choose(central, Uploads({name: {} for name in ROSTER}, {n: {"loss": loss} for n, loss in zip(ROSTER, LOSSES, strict=True)}))
    first, second, reserve = (list(ROSTER)[i] for i in central.private["ranking"].tolist())
    assert selector != "pow-d" or (first, second, reserve) == ("d", "b", "a")
    for delivered in ([first, second, reserve], [first, reserve], [second, reserve], [second]):
        before = replace(central, private=dict(central.private))
        broadcast = one.combine(before, Uploads({name: states[name] for name in delivered}))
        counted = delivered[:2]
        assert broadcast.weights == {name: 1 / len(counted) for name in sorted(counted)}
        mean = sum(float(states[name]["head.weight"][0, 0]) for name in counted) / len(counted)
        assert broadcast.parts[MODEL]["head.weight"].unique().tolist() == [mean]


def test_reserves_in_a_run(start: Start) -> None:
    """They change nothing where nobody drops out."""
    hyper = {"participants": 1, "selector": "pow-d"}
    alone, backed, lossy = (start("power-of-choice", {**hyper, "reserves": reserves}, quorum=0.5) for reserves in (0, 1, 1))
    result = alone.result()
    assert backed.digest == result["digest"]
    lossy.go(until=(0, "join"))
    broadcast = lossy.exchange(1, "loss", lossy.silos)
    (best,) = result["history"][0]["weights"]
    (reserve,) = set(broadcast.participants) - {best}
    after = lossy.exchange(1, "train", [reserve])
    assert (after.weights, after.accepted, after.missing) == ({reserve: 1.0}, [reserve], [best])


# ---- the reported loss


class Spy(Linear):
    def __init__(self) -> None:
        super().__init__(48, 3)
        self.seen: list[tuple[bool, bool, int]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.training, torch.is_grad_enabled(), len(images)))
        return super().forward(images)


@pytest.mark.parametrize(("selector", "images"), [("pow-d", 100), ("cpow-d", 8)])
def test_the_loss_is_that_of_the_broadcast_in_evaluation_mode_without_gradient(selector: str, images: int) -> None:
    one = algorithm(selector=selector)
    spy = Spy()
    one.build = lambda: spy
    samples = random_samples(100)
    received = copied(Linear(48, 3).state_dict())
    first = one.report_loss(silo(samples, {MODEL: received})).metrics["loss"]
    assert [(training, grad) for training, grad, _ in spy.seen] == [(False, False)] * len(spy.seen)
    assert sum(size for *_, size in spy.seen) == images
    if selector == "pow-d":
        everything, labels, _ = next(samples.batches(100))
        expected = F.cross_entropy(F.linear(everything.flatten(1).double(), received["head.weight"], received["head.bias"]), labels)
        assert first == pytest.approx(expected.item(), rel=1e-9)
    trained = one.train(silo(samples, {MODEL: received}))
    assert not torch.equal(trained.tensors["head.weight"], received["head.weight"])
    assert one.report_loss(silo(samples, {MODEL: received})).metrics["loss"] == first


def test_a_loss_reports_no_tensors() -> None:
    received = copied(Linear(48, 3).state_dict())
    assert algorithm().report_loss(silo(random_samples(9), {MODEL: received})).tensors == {}
    assert algorithm().exchanges(1)[0].upload == {}
