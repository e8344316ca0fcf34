"""FedAvgM: the oracles of specs/FedAvgM.md, what gets momentum, and that the velocity survives a restart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.wire import Payload
from fl_algorithms.contract import Server, Task, Tensors
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.fedavgm import VELOCITY, FedAvgM, FedAvgMHyper, momentum_step
from tests.federations import Start, Uploads, copied, server, uploaded

CNN = Task("small-cnn", classes=3, channels=3, image_size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
AVERAGES = ((0.5, 2.5), (0.2, 2.4), (0.1, 2.0))
PLAIN = (((0.5, 2.5), (0.5, -0.5)), ((-0.1, 2.7), (0.6, -0.2)), ((-0.26, 2.12), (0.16, 0.58)))
NESTEROV = ((0.05, 2.95), (-0.07, 2.31), (0.01, 1.64))


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sequence(**options: Any) -> list[tuple[list[float], list[float]]]:
    """w and v after each of the oracle's rounds."""
    w, v, found = tensor(1, 2), None, []
    for average in AVERAGES:
        w, v = momentum_step(w, tensor(*average), v, **options)
        found.append((w.tolist(), v.tolist()))
    return found


def states(count: int, round: int) -> dict[str, dict[str, torch.Tensor]]:
    """Models of a network with BatchNorm, wide apart."""
    generator = torch.Generator().manual_seed(round)
    layout = FedAvg(FedAvgHyper(), CNN).upload
    found: dict[str, dict[str, torch.Tensor]] = {}
    for i in range(count):
        state = {}
        for name, shape in layout.items():
            drawn = torch.randn([size or 1 for size in shape.shape], generator=generator)
            state[name] = torch.tensor(round * 10 + i) if shape.dtype == torch.int64 else drawn.abs() if "running_var" in name else drawn
        found[f"silo{i}"] = state
    return found


def rounds(algorithm: Any, count: int, begin: Server | None = None) -> Server:
    """The server after so many rounds of these uploads, each round's broadcast the next one's model."""
    first = copied(algorithm.initialise(server({}), Uploads({})).parts[MODEL])
    central = begin or server({"silo0": 30, "silo1": 10, "silo2": 7}, {MODEL: first}, round=0, rounds=99)
    for round in range(central.round + 1, central.round + 1 + count):
        central = Server(round, 99, 0, central.roster, central.parts, central.private)
        central.parts = algorithm.combine(central, Uploads(states(3, round))).parts
    return central


def same(first: Tensors, second: Tensors) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---- oracles


def test_plain_momentum() -> None:
    for (w, v), (expected_w, expected_v) in zip(sequence(beta=0.6), PLAIN, strict=True):
        assert w == pytest.approx(expected_w, abs=1e-8)
        assert v == pytest.approx(expected_v, abs=1e-8)


def test_nesterov() -> None:
    assert [w for w, _ in sequence(beta=0.9, nesterov=True)] == [pytest.approx(expected, abs=1e-8) for expected in NESTEROV]


def test_a_moving_average_with_a_longer_step_is_plain_momentum() -> None:
    assert [w for w, _ in sequence(beta=0.6, lr=2.5, dampening=0.6)] == [pytest.approx(w, abs=1e-8) for w, _ in PLAIN]


@pytest.mark.parametrize("options", [{"beta": 0.6}, {"beta": 0.9, "nesterov": True}, {"beta": 0.3, "lr": 0.5}])
def test_it_is_torchs_sgd_on_the_pseudo_gradient(options: dict[str, Any]) -> None:
    w = torch.nn.Parameter(tensor(1, 2))
    sgd = torch.optim.SGD([w], lr=options.get("lr", 1.0), momentum=options["beta"], nesterov=options.get("nesterov", False))
    for average, (expected, _) in zip(AVERAGES, sequence(**options), strict=True):
        w.grad = w.detach() - tensor(*average)
        sgd.step()
        assert w.tolist() == pytest.approx(expected, abs=1e-8)


@given(st.lists(st.tuples(*[st.floats(-1e3, 1e3)] * 2), min_size=1, max_size=6), st.booleans())
def test_without_momentum_the_step_ends_at_the_average(averages: list[tuple[float, float]], nesterov: bool) -> None:
    w, v = tensor(1, 2), None
    for average in averages:
        w, v = momentum_step(w, tensor(*average), v, beta=0.0, nesterov=nesterov)
        assert w.tolist() == pytest.approx(average, abs=1e-8)


# ---- on a network with BatchNorm


@pytest.mark.parametrize("hyper", [{}, {"bn_buffers": "pooled"}, {"weighting": "uniform"}])
def test_without_momentum_it_is_fedavg_bit_for_bit(hyper: dict[str, Any]) -> None:
    without = rounds(FedAvgM(FedAvgMHyper(server_momentum=0.0, **hyper), CNN), 3)
    assert same(without.parts[MODEL], rounds(FedAvg(FedAvgHyper(**hyper), CNN), 3).parts[MODEL])
    assert without.private == {}


def test_only_parameters_get_momentum() -> None:
    plain, moved = rounds(FedAvg(FedAvgHyper(), CNN), 2), rounds(FedAvgM(FedAvgMHyper(), CNN), 2)
    statistics = {name for name in plain.parts[MODEL] if name.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    differing = {name for name, value in plain.parts[MODEL].items() if not torch.equal(value, moved.parts[MODEL][name])}
    assert statistics
    assert differing == plain.parts[MODEL].keys() - statistics
    assert moved.private.keys() == {VELOCITY + name for name in differing}
    assert all(moved.private[VELOCITY + name].dtype == plain.parts[MODEL][name].dtype for name in differing)
    assert moved.parts[MODEL]["body.0.1.num_batches_tracked"] == 22


def test_running_variances_stay_positive_and_weights_finite() -> None:
    model = rounds(FedAvgM(FedAvgMHyper(server_momentum=0.9), CNN), 50).parts[MODEL]
    assert all((value > 0).all() for name, value in model.items() if name.endswith("running_var"))
    assert all(value.isfinite().all() for value in model.values())


@pytest.mark.parametrize("form", [{}, {"dampening": 0.6}, {"nesterov": True}])
def test_a_new_process_continues_bit_for_bit(form: dict[str, Any]) -> None:
    algorithm = FedAvgM(FedAvgMHyper(**form), CNN)
    whole = rounds(algorithm, 5)
    half = rounds(algorithm, 2)
    stored = Server(half.round, 99, 0, half.roster, {MODEL: copied(half.parts[MODEL])}, copied(half.private))
    assert same(rounds(FedAvgM(FedAvgMHyper(**form), CNN), 3, stored).parts[MODEL], whole.parts[MODEL])


def test_a_lost_velocity_would_be_noticed() -> None:
    half = rounds(FedAvgM(FedAvgMHyper(), CNN), 2)
    forgetful = Server(half.round, 99, 0, half.roster, half.parts, {})
    whole = rounds(FedAvgM(FedAvgMHyper(), CNN), 3)
    assert not same(rounds(FedAvgM(FedAvgMHyper(), CNN), 1, forgetful).parts[MODEL], whole.parts[MODEL])


@settings(max_examples=10, deadline=None)
@given(st.permutations(["silo0", "silo1", "silo2"]))
def test_the_order_of_arrival_does_not_matter(order: list[str]) -> None:
    algorithm, uploads = FedAvgM(FedAvgMHyper(), CNN), states(3, 1)
    begin = copied(states(1, 0)["silo0"])
    found = [
        algorithm.combine(server({"silo0": 3, "silo1": 2, "silo2": 1}, {MODEL: begin}), Uploads({name: uploads[name] for name in names}))
        for names in (order, sorted(order))
    ]
    assert same(found[0].parts[MODEL], found[1].parts[MODEL])


def test_velocity_outlives_a_change_of_participants() -> None:
    algorithm, uploads = FedAvgM(FedAvgMHyper(), CNN), states(3, 1)
    central = server({"silo0": 3, "silo1": 2, "silo2": 1}, {MODEL: copied(states(1, 0)["silo0"])})
    algorithm.combine(central, Uploads({"silo0": uploads["silo0"]}))
    before = copied(central.private)
    result = algorithm.combine(central, Uploads({"silo1": uploads["silo1"], "silo2": uploads["silo2"]}))
    assert result.weights == pytest.approx({"silo1": 2 / 3, "silo2": 1 / 3})
    name = "head.weight"
    d = central.parts[MODEL][name].double() - (2 * uploads["silo1"][name].double() + uploads["silo2"][name].double()) / 3
    assert torch.allclose(central.private[VELOCITY + name].double(), 0.6 * before[VELOCITY + name].double() + d, atol=1e-5)


def test_two_forms_at_once_are_refused() -> None:
    with pytest.raises(Unusable, match=r"hyper.dampening: 0.6 with nesterov=true, expected 0"):
        FedAvgM(FedAvgMHyper(dampening=0.6, nesterov=True), CNN).refuse(["a", "b"])


# ---- whole runs


@pytest.mark.parametrize("algorithm", ["fedavgm", "power-of-choice-fedavgm"])
def test_a_run_repeats_resumes_and_keeps_its_velocity_to_itself(start: Start, algorithm: str) -> None:
    resident, forgetful = start(algorithm, rounds=3), start(algorithm, rounds=3)
    digest = resident.digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    assert uploaded(resident)["train"] == set(FedAvg(FedAvgHyper(), CNN).upload)
    shown = {name for path in resident.stored(".safetensors") for name in Payload(path)}
    assert not [name for name in shown if name.startswith(VELOCITY)]
    kept = {name for path in (resident.folder / "private" / "server").rglob("*.safetensors") for name in Payload(path)}
    assert any(name.startswith(VELOCITY) for name in kept)
    assert digest != start("power-of-choice" if "power" in algorithm else "fedavg", rounds=3).digest
