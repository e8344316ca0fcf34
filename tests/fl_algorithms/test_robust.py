"""Robust aggregation: oracles worked out with numpy, identities, what f malicious silos can reach, memory, whole runs."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from components.errors import DeadlineError, InputError, QuorumError
from components.received import read_broadcast
from components.server import server_step
from components.silo import silo_step
from fl_algorithms.aggregation import average
from fl_algorithms.contract import Broadcast
from fl_algorithms.errors import TooFew, Unusable
from fl_algorithms.fedavg import MODEL
from fl_algorithms.registry import ALGORITHMS, Entry
from fl_algorithms.robust import HELD, Robust, RobustHyper
from tests.federations import SMALL_TASK, Start, Uploads, global_model, linear, server, update_file

TOLERANCE = 1e-8
# rows: silos; the last is far away
UPDATES = np.array([[1.0, 2.0, -1.0], [1.5, 1.0, 0.0], [0.5, 3.0, -2.0], [2.0, 2.5, 0.5], [1.25, 1.75, -0.5], [-40.0, 60.0, 90.0]])
BASE = np.array([0.5, 1.5, -0.25])
NAMES = "abcdef"


def uploads(rows: np.ndarray, dtype: torch.dtype = torch.float64, names: str = NAMES) -> Uploads:
    """A model of two tensors, so that norms and distances run over both."""
    return Uploads({name: tensors(row, dtype) for name, row in zip(names, rows, strict=False)})


def tensors(row: np.ndarray, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    vector = torch.tensor(row, dtype=dtype)
    return {"first": vector[:1], "rest": vector[1:].view(1, -1)}


def combined(rows: np.ndarray, base: np.ndarray = BASE, **hyper: Any) -> tuple[np.ndarray, Broadcast]:
    names = "".join(chr(97 + i) for i in range(len(rows)))
    central = server({name: i + 1 for i, name in enumerate(names)}, {MODEL: tensors(base)})
    broadcast = Robust(RobustHyper(**hyper), SMALL_TASK).combine(central, uploads(rows, names=names))
    model = broadcast.parts[MODEL]
    return torch.cat([model["first"], model["rest"].flatten()]).numpy(), broadcast


# ---- oracles


def test_median_oracle() -> None:
    found, broadcast = combined(UPDATES, rule="median")
    assert found == pytest.approx([1.125, 2.25, -0.25], abs=TOLERANCE)  # even number: the mean of the two in the middle
    assert combined(UPDATES[:5], rule="median")[0] == pytest.approx([1.25, 2.0, -0.5], abs=TOLERANCE)
    assert broadcast.weights == pytest.approx(dict.fromkeys(NAMES, 1 / 6))


def test_trimmed_mean_oracle() -> None:
    assert combined(UPDATES, rule="trimmed-mean")[0] == pytest.approx([4.25 / 4, 9.25 / 4, -1.0 / 4], abs=TOLERANCE)
    assert combined(UPDATES, rule="trimmed-mean", byzantine=2)[0] == pytest.approx([1.125, 2.25, -0.25], abs=TOLERANCE)


def krum_order(rows: np.ndarray, f: int) -> list[int]:
    squares = ((rows[:, None] - rows[None]) ** 2).sum(2)
    scores = [np.sort(np.delete(squares[i], i))[: len(rows) - f - 2].sum() for i in range(len(rows))]
    return [int(i) for i in np.argsort(scores, kind="stable")]


def test_krum_oracle() -> None:
    # by hand: squared distances of a to the 3 nearest of b, c, d, e, f: .375, 2.25, 2.25; of e: .375, .875, 2.125
    found, broadcast = combined(UPDATES, rule="krum")
    assert krum_order(UPDATES, 1)[0] == 4
    assert found.tolist() == UPDATES[4].tolist()
    assert broadcast.weights == {**dict.fromkeys(NAMES, 0.0), "e": 1.0}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_multi_krum_oracle(weighting: str) -> None:
    chosen = sorted(krum_order(UPDATES, 1)[:5])
    assert chosen == [0, 1, 2, 3, 4]
    shares = np.array([1, 2, 3, 4, 5]) / 15 if weighting == "samples" else np.full(5, 0.2)
    found, broadcast = combined(UPDATES, rule="multi-krum", weighting=weighting)
    assert found == pytest.approx(shares @ UPDATES[:5], abs=TOLERANCE)
    assert broadcast.weights == pytest.approx({**dict(zip(NAMES, shares, strict=False)), "f": 0.0})


@pytest.mark.parametrize(
    ("hyper", "bound"), [({"clip_norm": 1.2}, 1.2), ({"clip_median": True}, None), ({"clip_norm": 9.0, "clip_median": True}, None)]
)
def test_clipping_oracle(hyper: dict[str, Any], bound: float | None) -> None:
    difference = UPDATES - BASE
    norms = np.sqrt((difference**2).sum(1))
    bound = bound or sorted(norms)[2]  # the lower of the two in the middle
    clipped = BASE + difference * np.minimum(1, bound / norms)[:, None]
    found, broadcast = combined(UPDATES, rule="mean", **hyper)
    assert found == pytest.approx(clipped.mean(0), abs=TOLERANCE)
    assert broadcast.weights == pytest.approx(dict.fromkeys(NAMES, 1 / 6))
    assert combined(UPDATES, rule="median", **hyper)[0] == pytest.approx(np.median(clipped, axis=0), abs=TOLERANCE)
    assert combined(UPDATES, rule="krum", **hyper)[0] == pytest.approx(clipped[krum_order(clipped, 1)[0]], abs=TOLERANCE)


@given(st.integers(0, 2**32 - 1), st.integers(5, 12), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_rules_agree_with_numpy(seed: int, count: int, f: int) -> None:
    f = min(f, (count - 3) // 2)
    rows = np.random.default_rng(seed).normal(size=(count, 7))
    base = np.zeros(7)
    ordered = np.sort(rows, axis=0)
    assert combined(rows, base, rule="median")[0] == pytest.approx(np.median(rows, axis=0), abs=TOLERANCE)
    assert combined(rows, base, rule="trimmed-mean", byzantine=f)[0] == pytest.approx(ordered[f : count - f].mean(0), abs=TOLERANCE)
    order = krum_order(rows, f)
    assert combined(rows, base, rule="krum", byzantine=f)[0] == pytest.approx(rows[order[0]], abs=TOLERANCE)
    assert combined(rows, base, rule="multi-krum", byzantine=f)[0] == pytest.approx(rows[order[: count - f]].mean(0), abs=TOLERANCE)


def test_a_tensor_of_many_blocks() -> None:
    count = HELD // 5 * 2 + 7
    rows = torch.randn(5, count, generator=torch.Generator().manual_seed(1))
    central = server(dict.fromkeys("abcde", 1), {MODEL: {"w": torch.zeros(count)}})
    updates = Uploads({name: {"w": row} for name, row in zip("abcde", rows, strict=True)})
    found = Robust(RobustHyper(rule="median"), SMALL_TASK).combine(central, updates).parts[MODEL]["w"]
    assert torch.equal(found, rows.median(0).values)


# ---- identities


def test_trimming_nothing_is_the_uniform_mean() -> None:
    assert combined(UPDATES, rule="trimmed-mean", byzantine=0)[0] == pytest.approx(UPDATES.mean(0), abs=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_bound_that_nothing_reaches_is_fedavg_bit_for_bit(dtype: torch.dtype) -> None:
    states = {
        name: {"w": torch.randn(70_001, generator=torch.Generator().manual_seed(i)).to(dtype), "n": torch.tensor(i)}
        for i, name in enumerate(NAMES)
    }
    central = server({name: i + 3 for i, name in enumerate(NAMES)}, {MODEL: {"w": torch.zeros(70_001, dtype=dtype), "n": torch.tensor(0)}})
    one = Robust(RobustHyper(rule="mean", clip_norm=1e9, weighting="samples"), SMALL_TASK)
    found, plain = one.combine(central, Uploads(states)), average(Uploads(states), one.weigh(central, Uploads(states)))
    for name, tensor in plain.items():
        assert torch.equal(found.parts[MODEL][name], tensor)
        assert found.parts[MODEL][name].dtype == tensor.dtype
    assert found.weights == one.weigh(central, Uploads(states))


RULES: list[dict[str, Any]] = [
    {"rule": "mean", "clip_median": True}, {"rule": "median"}, {"rule": "trimmed-mean"}, {"rule": "krum"}, {"rule": "multi-krum"},
    {"rule": "median", "clip_norm": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("hyper", RULES, ids=lambda hyper: "+".join(str(value) for value in hyper.values()))
def test_it_does_not_matter_who_sends_what(hyper: dict[str, Any]) -> None:
    found = [combined(UPDATES[list(order)], **hyper)[0] for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 37)]
    assert all(other == pytest.approx(found[0], abs=1e-12) for other in found)


@pytest.mark.parametrize("hyper", RULES, ids=lambda hyper: "+".join(str(value) for value in hyper.values()))
def test_when_all_agree_that_is_the_result(hyper: dict[str, Any]) -> None:
    found, _ = combined(np.tile(UPDATES[0], (6, 1)), UPDATES[0], **hyper)
    assert found == pytest.approx(UPDATES[0], abs=1e-15)


# ---- what malicious silos can reach

VALUES = st.floats(-1e18, 1e18)  # all that the guards let through


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@given(data=st.data(), honest=st.integers(3, 7))
@settings(max_examples=60, deadline=None)
def test_every_coordinate_stays_within_the_honest_values(rule: str, data: st.DataObject, honest: int) -> None:
    f = data.draw(st.integers(1, honest - 1 if honest < 4 else 3).filter(lambda f: f < honest))
    rows = np.array(data.draw(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=honest, max_size=honest)))
    bad = np.array(data.draw(st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=f, max_size=f)))
    order = data.draw(st.permutations(range(honest + f)))
    found, _ = combined(np.concatenate([rows, bad])[order], rule=rule, byzantine=f)
    assert (found >= rows.min(0) - 1e-9).all()
    assert (found <= rows.max(0) + 1e-9).all()


@given(data=st.data(), f=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_krum_returns_an_honest_update_where_these_are_clustered(data: st.DataObject, f: int) -> None:
    honest = f + 3
    rows = np.array(data.draw(st.lists(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3), min_size=honest, max_size=honest)))
    bad = np.array(data.draw(st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=f, max_size=f)))
    assume((np.abs(bad).max(1) > 100).all())
    order = data.draw(st.permutations(range(honest + f)))
    found, _ = combined(np.concatenate([rows, bad])[order], rule="krum", byzantine=f)
    assert found.tolist() in rows.tolist()


@given(bad=st.lists(VALUES, min_size=3, max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_clipped_silo_moves_the_mean_by_no_more_than_its_share(bad: list[float]) -> None:
    rows = np.concatenate([UPDATES[:5], [bad]])
    limit = np.sqrt(((UPDATES[:5] - BASE) ** 2).sum(1)).max()
    found, _ = combined(rows, rule="mean", clip_median=True)
    assert np.linalg.norm(found - BASE) <= limit + 1e-9


# ---- counters and statistics


def states(counters: list[int], variances: list[float]) -> Uploads:
    rows = zip("abcde", counters, variances, strict=True)
    return Uploads({name: {"bn.num_batches_tracked": torch.tensor(n), "bn.running_var": torch.tensor([v])} for name, n, v in rows})


@pytest.mark.parametrize(("rule", "counter"), [("mean", 10**18), ("median", 7), ("trimmed-mean", 7), ("multi-krum", 6), ("krum", 6)])
def test_one_silo_cannot_move_a_counter(rule: str, counter: int) -> None:
    model = {"bn.num_batches_tracked": torch.tensor(0), "bn.running_var": torch.tensor([1.0])}
    central = server(dict.fromkeys("abcde", 1), {MODEL: model})
    updates = states([5, 6, 7, 8, 10**18], [1.0, 1.1, 1.25, 1.5, 9.0])
    found = Robust(RobustHyper(rule=rule), SMALL_TASK).combine(central, updates).parts[MODEL]
    assert found["bn.num_batches_tracked"].item() == counter
    assert found["bn.num_batches_tracked"].dtype == torch.int64


@given(st.lists(st.floats(0, 2.0**59, width=32), min_size=5, max_size=5), st.floats(0, 1e3, width=32), st.sampled_from(RULES))
@settings(max_examples=60, deadline=None)
def test_a_variance_stays_a_variance(variances: list[float], before: float, hyper: dict[str, Any]) -> None:
    model = {"bn.num_batches_tracked": torch.tensor(0), "bn.running_var": torch.tensor([before])}
    central = server(dict.fromkeys("abcde", 1), {MODEL: model})
    found = Robust(RobustHyper(**hyper), SMALL_TASK).combine(central, states([1] * 5, variances)).parts[MODEL]
    assert found["bn.running_var"].item() >= 0


# ---- what is refused


@pytest.mark.parametrize(
    ("hyper", "fewest"),
    [
        ({"rule": "krum"}, 5),
        ({"rule": "krum", "byzantine": 0}, 3),
        ({"rule": "multi-krum", "byzantine": 2}, 7),
        ({"rule": "median"}, 3),
        ({"rule": "trimmed-mean", "byzantine": 2}, 5),
        ({"rule": "mean", "clip_median": True}, 3),
        ({"rule": "mean"}, 1),
    ],
)
def test_fewer_silos_than_a_rule_needs(hyper: dict[str, Any], fewest: int) -> None:
    one, names = linear(Robust(RobustHyper(**hyper), SMALL_TASK)), list("abcdefgh")
    one.refuse(names[:fewest])
    drawn = linear(Robust(RobustHyper(**hyper, participants=max(1, fewest - 1)), SMALL_TASK))
    if fewest == 1:
        return
    for refused, silos in ((one, names[: fewest - 1]), (drawn, names)):
        with pytest.raises(TooFew, match=rf"needs {fewest} silos a round, found {fewest - 1};"):
            refused.refuse(silos)
    with pytest.raises(TooFew, match=rf"needs {fewest} accepted updates, found {fewest - 1};"):
        combined(UPDATES[: fewest - 1], **hyper)


@pytest.mark.parametrize("behind", ["csac:CSAC", "ga:GA", "copa:COPA", "power_of_choice:PowerOfChoice"])
def test_an_algorithm_that_combines_in_its_own_way_is_refused(behind: str) -> None:
    cls = Entry(f"robust:Robust+{behind}", "").load()
    with pytest.raises(Unusable, match=r"^algorithm \w+: .*; (leave the robust rule out|use one of the two)$"):
        cls(cls.Hyper(), replace(SMALL_TASK, backbone="small-cnn", image_size=16, domains=3)).refuse(list(NAMES))


def test_pooled_statistics_are_refused(start: Start) -> None:
    with pytest.raises(InputError, match=r"hyper.bn_buffers: pooled"):
        start("median", {"bn_buffers": "pooled"})
    with pytest.raises(InputError, match=r"needs 5 silos a round, found 3"):
        start("krum")


# ---- whole runs

NAMED = ["krum", "median", "multi-krum", "norm-clipping", "robust-fedavgm", "robust-fedccrl", "robust-fedprox", "trimmed-mean"]


@pytest.mark.parametrize("algorithm", ["krum", "norm-clipping", "robust-fedavgm", "robust-fedccrl", "trimmed-mean"])
def test_a_run_repeats_and_resumes(start: Start, algorithm: str) -> None:
    resident, forgetful = start(algorithm, silos_per_domain=2), start(algorithm, silos_per_domain=2)
    digest = resident.digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    last = read_broadcast(resident.federation, 2, "train")
    assert last is not None
    assert list(last.weights) == resident.silos
    assert sum(last.weights.values()) == pytest.approx(1.0)
    variances = [tensor for name, tensor in global_model(resident, 2).items() if name.endswith("running_var")]
    assert all((tensor >= 0).all() for tensor in variances)


@pytest.mark.parametrize(
    ("behind", "hyper"), [("fedavg", {}), ("fedavg", {"bn_buffers": "local"}), ("fedavgm", {}), ("fedprox", {"mu": 0.5})]
)
def test_in_front_of_another_it_replaces_only_the_average(start: Start, behind: str, hyper: dict[str, Any]) -> None:
    name = "norm-clipping" if behind == "fedavg" else f"robust-{behind}"
    still = {**hyper, "rule": "mean", "clip_norm": 1e9, "clip_median": False}
    assert start(name, still, rounds=3).digest == start(behind, {**hyper, "weighting": "uniform"}, rounds=3).digest


def test_a_round_with_too_few_accepted_updates_ends_the_run(start: Start) -> None:
    """A weaker rule in its place would be the attacker's choice, not the user's."""
    run = start("trimmed-mean", rounds=1, quorum=0.5)
    run.go(until=(0, "join"))
    for silo in run.silos[:2]:
        silo_step(run.role(silo), 1, "train")
    needs = "round 1 train: hyper.byzantine: rule trimmed-mean with 1 malicious silos needs 3 accepted updates, found 2"
    with pytest.raises(DeadlineError, match=rf"^silo cedar: published nothing within 3600 s; {needs}"):
        server_step(run.role("server"), 1, "train")
    silo_step(run.role("cedar"), 1, "train")
    update_file(run, "cedar", 1, "train").unlink()
    with pytest.raises(QuorumError, match=rf"^{needs}; .*; rejected cedar: malformed"):
        server_step(run.role("server"), 1, "train")


def test_the_names() -> None:
    assert {name for name, entry in ALGORITHMS.items() if "robust:" in entry.location} == set(NAMED)


# ---- memory

MEASURE = """
import json, resource, torch
from fl_algorithms.fedavg import MODEL
from fl_algorithms.robust import Robust, RobustHyper
from tests.fl_algorithms.test_robust import RULES, Generated
from tests.federations import SMALL_TASK, server
torch.set_num_threads(1)
peaks = []
for count in (5, 40):
    updates = Generated(count)
    central = server(dict.fromkeys(updates.names, 1), {MODEL: {"w": torch.zeros(updates.size)}})
    for hyper in RULES[:4]:
        Robust(RobustHyper(**hyper), SMALL_TASK).combine(central, updates)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(json.dumps(peaks))
"""


class Generated:
    """Updates that take no memory until somebody copies them."""

    size = 1 << 19

    def __init__(self, count: int) -> None:
        self.names = [f"silo{i:02}" for i in range(count)]

    def metrics(self, silo: str) -> dict[str, float | None]:
        return {}

    def keys(self) -> list[str]:
        return ["w"]

    def each(self, key: str) -> Iterator[torch.Tensor]:
        for i in range(len(self.names)):
            yield torch.tensor(float(i)).expand(self.size)


def test_memory_does_not_grow_with_the_number_of_silos() -> None:
    command = [sys.executable, "-c", MEASURE]
    answer = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=240)
    five, forty = json.loads(answer.stdout)
    assert forty - five < 8 * 4 * Generated.size  # eight updates, where thirty-five came on top
