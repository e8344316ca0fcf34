"""FedDG: the oracles of specs/FedDG.md, the bank, and episodes whose gradients reach what they must."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from components.wire import Payload
from fl_algorithms.contract import TensorShape
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.feddg import BANK, FedDG, FedDGHyper, amplitudes, mix_amplitudes, stepped_state
from fl_algorithms.randomness import stream
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Batch, Samples
from tests.federations import SMALL_TASK, Start, Uploads, copied, linear, random_samples, server, silo

TOLERANCE = 1e-8
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant", "momentum": 0.0, "epochs": 2, "batch_size": 8}
OWN = [[1, 2, 3, 4], [2, 4, 6, 8], [0, 1, 0, 1], [5, 5, 5, 5]]
FOREIGN = [[9, 8, 7, 6], [1, 1, 2, 2], [3, 3, 3, 0], [4, 0, 4, 0]]


def image(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor([[rows]], dtype=torch.float64)


def algorithm(**hyper: Any) -> Any:
    return linear(FedDG(FedDGHyper(**{**SGD, **hyper}), SMALL_TASK))


def with_bank(one: Any, counts: tuple[int, ...] = (2, 3), samples: Samples | None = None, round: int = 1) -> Any:
    """Made ready for a round, with random amplitudes of other silos."""
    reach = one._reach
    shown = amplitudes(torch.rand(sum(counts), 3, 4, 4, generator=stream(0, "bank")), reach)
    me = silo(samples or random_samples(8), {BANK: {"amplitude": shown, "counts": torch.tensor(counts)}}, round=round)
    one.begin(one.network, me)
    return me


# ---- oracles


def test_amplitude_oracle() -> None:
    found = amplitudes(image(OWN), 1)[0, 0]
    assert found.shape == (3, 2)
    assert found[1].tolist() == pytest.approx([52.0, 8.48528137423857], abs=TOLERANCE)
    assert amplitudes(image(OWN), 0).item() == 52.0


@pytest.mark.parametrize(("ratio", "shift"), [(0.0, 0.0625), (0.4, 0.0375)])
def test_mean_alone_oracle(ratio: float, shift: float) -> None:
    mixed = mix_amplitudes(image(OWN), amplitudes(image(FOREIGN), 0), torch.tensor([1 - ratio], dtype=torch.float64), 0)
    torch.testing.assert_close(mixed, image(OWN) + shift, atol=TOLERANCE, rtol=0)


def test_window_oracle() -> None:
    mixed = mix_amplitudes(image(OWN), amplitudes(image(FOREIGN), 1), torch.tensor([0.6], dtype=torch.float64), 1)[0, 0]
    assert mixed[0].tolist() == pytest.approx([2.565327946852, 3.318143648702, 3.473925519958, 4.721109817173], abs=TOLERANCE)
    assert mixed[3].tolist() == pytest.approx([4.949095857195, 4.825503707846, 5.125904142805, 5.249496292154], abs=TOLERANCE)


def swapped(own: np.ndarray, foreign: np.ndarray, share: float, reach: int) -> np.ndarray:
    """The transform as the paper's demo does it: full spectrum, shifted, one channel."""
    spectrum = np.fft.fft2(own)
    amplitude, other = np.fft.fftshift(np.abs(spectrum)), np.fft.fftshift(np.abs(np.fft.fft2(foreign)))
    middle = [side // 2 for side in own.shape]
    window = tuple(slice(m - reach, m + reach + 1) for m in middle)
    amplitude[window] = (1 - share) * amplitude[window] + share * other[window]
    result: np.ndarray = np.real(np.fft.ifft2(np.fft.ifftshift(amplitude) * np.exp(1j * np.angle(spectrum))))
    return result


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 13), st.floats(0, 0.499), st.floats(0, 1), st.integers(0, 99))
def test_half_the_spectrum_is_enough_for_any_size_and_window(size: int, level: float, share: float, seed: int) -> None:
    images = torch.rand(2, 1, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    reach = FedDG(FedDGHyper(level=level), dataclasses.replace(SMALL_TASK, image_size=size))._reach
    mixed = mix_amplitudes(images[:1].clone(), amplitudes(images[1:], reach), torch.tensor([share], dtype=torch.float64), reach)
    expected = swapped(images[0, 0].numpy(), images[1, 0].numpy(), share, reach)
    np.testing.assert_allclose(mixed[0, 0].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("reach", [0, 1, 5])
def test_without_foreign_amplitude_an_image_stays_and_each_has_its_own_share(reach: int) -> None:
    images, foreign = torch.rand(2, 2, 3, 12, 12, generator=stream(0, "images"))
    mixed = mix_amplitudes(images, amplitudes(foreign, reach), torch.tensor([0.0, 1.0]), reach)
    torch.testing.assert_close(mixed[0], images[0], atol=1e-6, rtol=0)
    assert (mixed[1] - images[1]).abs().max() > 1e-3
    torch.testing.assert_close(amplitudes(mixed, reach)[1], amplitudes(foreign, reach)[1], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("reach", [0, 1])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_images_of_one_colour(reach: int, value: float) -> None:
    flat, foreign = torch.full((1, 3, 4, 4), value), torch.rand(1, 3, 4, 4, generator=stream(0, "foreign"))
    mixed = mix_amplitudes(flat, amplitudes(foreign, reach), torch.ones(1), reach)
    assert torch.isfinite(mixed).all()
    torch.testing.assert_close(mixed.mean((2, 3)), foreign.mean((2, 3)))


# ---- the bank


@pytest.mark.parametrize(
    ("level", "size", "shape", "size_in_bytes"),
    [(0.01, 224, (None, 3, 5, 3), 180), (0.0, 224, (None, 3, 1, 1), 12), (0.01, 32, (None, 3, 1, 1), 12), (0.25, 4, (None, 3, 3, 2), 72)],
)
def test_only_the_window_is_uploaded_and_only_once(level: float, size: int, shape: tuple[int | None, ...], size_in_bytes: int) -> None:
    one: Any = linear(FedDG(FedDGHyper(level=level), dataclasses.replace(SMALL_TASK, image_size=size)))
    assert [[exchange.name for exchange in one.exchanges(round)] for round in (0, 1, 2)] == [["join"], ["spectrum", "train"], ["train"]]
    assert one.exchanges(1)[0].upload == {"amplitude": TensorShape(torch.float32, shape)}
    assert 4 * np.prod([length for length in shape if length]) == size_in_bytes


@pytest.mark.parametrize(("images", "share", "shown"), [(40, 0.125, 5), (41, 0.125, 6), (3, 0.125, 1), (1, 0.125, 1), (9, 1.0, 9)])
def test_a_silo_shows_amplitudes_of_some_of_its_pixels(images: int, share: float, shown: int) -> None:
    samples = random_samples(images)
    one = algorithm(bank_share=share, level=0.25)
    found = one.show_amplitudes(silo(samples, {})).tensors["amplitude"]
    every = amplitudes(samples.images(torch.arange(images)) * 0.25 + 0.5, 1)
    matches = torch.isclose(found[:, None], every[None], atol=1e-4).flatten(2).all(2)
    assert matches.sum(1).tolist() == [1] * shown
    assert matches.sum(0).max() == 1
    assert torch.equal(one.show_amplitudes(silo(samples, {}, round=1)).tensors["amplitude"], found)


def test_each_silo_receives_the_amplitudes_of_the_others_only() -> None:
    shown = {name: {"amplitude": torch.full((rows, 3, 1, 1), float(i))} for i, (name, rows) in enumerate((("a", 2), ("b", 3), ("c", 1)))}
    broadcast = algorithm().deal_bank(server({"a": 9, "b": 9, "c": 9, "late": 9}), Uploads(shown))
    assert broadcast.parts == {}
    banks = broadcast.personal[BANK]
    assert {name: bank["counts"].tolist() for name, bank in banks.items()} == {"a": [3, 1], "b": [2, 1], "c": [2, 3], "late": [2, 3, 1]}
    assert banks["b"]["amplitude"][:, 0, 0, 0].tolist() == [0, 0, 2]


def test_every_silo_shows_its_amplitudes_and_then_the_drawn_ones_train() -> None:
    names = [f"s{i}" for i in range(8)]
    one, plain = algorithm(participants=3), linear(FedAvg(FedAvgHyper(participants=3), SMALL_TASK))
    first = server(dict.fromkeys(names, 5), round=0)
    assert one.initialise(first, Uploads({})).participants is None
    shown = Uploads({name: {"amplitude": torch.ones(1, 3, 1, 1)} for name in names})
    assert one.deal_bank(server(dict.fromkeys(names, 5)), shown).participants == plain.initialise(first, Uploads({})).participants


def test_one_silo_is_refused() -> None:
    with pytest.raises(Unusable, match="needs at least 2 silos, found 1"):
        algorithm().refuse(["a"])
    algorithm().refuse(["a", "b"])


# ---- copies


def test_other_silos_are_drawn_evenly_however_much_they_showed() -> None:
    one = algorithm(level=0.0, mix="full")
    with_bank(one, counts=(1, 9))
    bank = torch.cat([torch.full((1, 3, 1, 1), 0.25), torch.linspace(0.5, 0.9, 9).view(9, 1, 1, 1).expand(9, 3, 1, 1)]) * 16
    images = torch.zeros(2000, 3, 4, 4)
    means = (one.transform(images, bank, torch.tensor([1, 9])) * 0.25 + 0.5).mean((1, 2, 3))
    assert float((means < 0.3).float().mean()) == pytest.approx(0.5, abs=0.05)
    assert len(means.mul(1000).round().unique()) == 10


def test_copies_stay_in_range_repeat_and_differ_between_rounds() -> None:
    one = algorithm(level=0.25, mix="full")
    images = random_samples(8).images(torch.arange(8))

    def copies(round: int) -> torch.Tensor:
        me = with_bank(one, round=round)
        bank = me.received[BANK]
        found: torch.Tensor = one.transform(images, bank["amplitude"] * 3, bank["counts"])
        return found

    first = copies(1)
    pixels = first * 0.25 + 0.5
    assert pixels.min() >= -1e-6
    assert pixels.max() <= 1 + 1e-6
    assert float((pixels > 1 - 1e-6).float().mean()) > 0.1  # so the clamp is at work
    assert torch.equal(copies(1), first)
    assert not torch.equal(copies(2), first)
    assert not first.requires_grad


def test_a_silo_left_alone_trains_like_fedavg() -> None:
    plain = linear(FedAvg(FedAvgHyper(**SGD), SMALL_TASK))
    start = copied(plain.initialise(server({}), Uploads({})).parts[MODEL])
    lonely = algorithm().deal_bank(server({"a": 1}), Uploads({"a": {"amplitude": torch.ones(1, 3, 1, 1)}}))
    assert lonely.personal[BANK] == {}
    found, expected = (copied(one.train(silo(random_samples(20), {MODEL: start})).tensors) for one in (algorithm(), plain))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# ---- episodes


def gradients(one: Any, batch: Batch, me: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients as the training loop computes them."""
    one.network.zero_grad(set_to_none=True)
    value = one.loss(one.network, batch, me)
    value.backward()
    return value.item(), {name: parameter.grad.clone() for name, parameter in one.network.named_parameters()}


def fixed_copies(one: Any, monkeypatch: pytest.MonkeyPatch, images: torch.Tensor) -> None:
    monkeypatch.setattr(one, "transform", lambda *_: images)


@pytest.mark.parametrize(("beta", "clip"), [(0.0, 100.0), (0.5, 100.0), (0.5, 0.01)])
def test_the_gradient_is_that_of_both_losses_to_first_order(monkeypatch: pytest.MonkeyPatch, beta: float, clip: float) -> None:
    """By finite differences: the inner loss at w plus the outer loss at w minus a constant step."""
    one = algorithm(inner_lr=beta, clip=clip)
    me = with_bank(one)
    batch = next(random_samples(6).batches(6))
    others = random_samples(6, "others").images(torch.arange(6))
    fixed_copies(one, monkeypatch, others)
    network = one.network
    weights = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    inner = F.cross_entropy(network(batch.images), batch.labels)
    step = {n: beta * g.clamp(-clip, clip) for n, g in zip(weights, torch.autograd.grad(inner, list(network.parameters())), strict=True)}
    value, found = gradients(one, batch, me)

    def total(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        moved = {name: tensor - step[name] for name, tensor in state.items()}
        first = F.cross_entropy(functional_call(network, dict(state), (batch.images,)), batch.labels)
        return first + F.cross_entropy(functional_call(network, moved, (others,)), batch.labels)

    assert value == pytest.approx(float(total(weights)), abs=1e-12)
    for name, at in (("head.weight", (1, 5)), ("head.weight", (2, 40)), ("head.bias", (0,))):
        change = torch.zeros_like(weights[name])
        change[at] = 1e-6
        up, down = (float(total({**weights, name: weights[name] + sign * change})) for sign in (1, -1))
        assert float(found[name][at]) == pytest.approx((up - down) / 2e-6, abs=1e-7)


def test_without_inner_step_an_episode_is_the_sum_of_both_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = next(random_samples(6).batches(6))
    together, episode, moved = (algorithm(**hyper) for hyper in ({"episodic": False}, {"inner_lr": 0.0}, {"inner_lr": 1.0}))
    state = copied(together.network.state_dict())
    results = []
    for one in (together, episode, moved):
        one.network.load_state_dict(state)
        fixed_copies(one, monkeypatch, batch.images.flip(0))
        results.append(gradients(one, batch, with_bank(one)))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-12)
    for name in results[0][1]:
        torch.testing.assert_close(results[0][1][name], results[1][1][name], atol=1e-12, rtol=0)
    assert results[2][0] != pytest.approx(results[1][0], abs=1e-4)


def test_the_step_is_clipped_keeps_the_graph_and_leaves_frozen_parameters() -> None:
    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.tensor([[300.0, -0.5]])
    state = stepped_state(model, 0.1, 100.0)
    torch.testing.assert_close(state["weight"], model.weight - torch.tensor([[10.0, -0.05]]))
    assert state["bias"] is model.bias
    state["weight"].sum().backward()
    assert model.weight.grad.tolist() == [[301.0, 0.5]]


def test_the_outer_pass_moves_no_statistics_and_the_weights_stay() -> None:
    task = dataclasses.replace(SMALL_TASK, backbone="small-cnn", image_size=16)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), np.uint8)
    samples = Samples([(pixels, np.arange(6) % 3, np.arange(6))], task.mean, task.std, torch.device("cpu"))
    batch = next(samples.batches(6))

    def statistics(make: Callable[[], Any]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        one = make()
        torch.manual_seed(0)
        one.network.load_state_dict(one.build().state_dict())
        one.network.train()
        shown = {"amplitude": torch.full((2, 3, 1, 1), 100.0), "counts": torch.tensor([2])}
        me = silo(samples, {BANK: shown})
        one.begin(one.network, me)
        before = copied(dict(one.network.named_parameters()))
        one.loss(one.network, batch, me).backward()
        assert all(torch.equal(before[name], parameter) for name, parameter in one.network.named_parameters())
        return dict(one.network.named_buffers()), dict(one.network.named_parameters())

    plain, _ = statistics(lambda: FedAvg(FedAvgHyper(), task))
    episode, parameters = statistics(lambda: FedDG(FedDGHyper(), task))
    both, _ = statistics(lambda: FedDG(FedDGHyper(episodic=False), task))
    assert all(torch.equal(plain[name], episode[name]) for name in plain)
    assert not torch.equal(plain["body.0.1.running_mean"], both["body.0.1.running_mean"])
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in parameters.values())


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(5)), st.booleans())
def test_the_order_of_a_batch_does_not_matter(order: list[int], episodic: bool) -> None:
    one = algorithm(episodic=episodic, inner_lr=0.3)
    me = with_bank(one)
    batch = next(random_samples(5).batches(5))
    results = []
    for rows in (list(range(5)), order):
        shuffled = Batch(*(tensor[rows] for tensor in batch))
        one.transform = lambda images, *_: images * 0.5 + 0.1
        results.append(gradients(one, shuffled, me))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-10)
    for name in results[0][1]:
        torch.testing.assert_close(results[0][1][name], results[1][1][name], atol=1e-10, rtol=0)


@pytest.mark.parametrize("hyper", [{}, {"episodic": False}, {"level": 0.25}])
@pytest.mark.parametrize("images", [1, 3, 9])
def test_tiny_silos_of_one_class(hyper: dict[str, Any], images: int) -> None:
    samples = random_samples(images)
    samples.labels = torch.zeros_like(samples.labels)
    one = algorithm(**hyper)
    me = with_bank(one, samples=samples)
    me = dataclasses.replace(me, received={**me.received, MODEL: copied(one.network.state_dict())})
    update = one.train(me)
    assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
    assert np.isfinite(update.metrics["loss"])
    assert me.private == {}


# ---- whole runs


@pytest.mark.parametrize("hyper", [{}, {"episodic": False, "level": 0.2}, {"participants": 2, "level": 0.2, "mix": "full"}])
def test_the_same_digest_again_and_with_every_step_in_a_new_process(start: Start, hyper: dict[str, Any]) -> None:
    digest = start("feddg", hyper).digest
    assert start("feddg", hyper).digest == digest
    forgetful = start("feddg", hyper)
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest


def test_a_run_publishes_models_and_amplitudes_and_nothing_else(start: Start) -> None:
    run = start("feddg", {"level": 0.2}, rounds=1)
    run.result()
    model = set(run.federation.algorithm.build().state_dict())
    published = [set(Payload(path)) for path in run.stored(".safetensors")]
    assert all(names in (model, {"amplitude"}, {"amplitude", "counts"}, {"confusion"}) for names in published)  # the last: the evaluator
    assert {"amplitude", "counts"} in published
    assert not list((run.folder / "private").rglob("*.safetensors"))


def test_presets() -> None:
    released = FedDGHyper(**ALGORITHMS["feddg-elcfs-code"].defaults)
    assert (released.level, released.mix, released.inner_lr, released.clip, released.episodic) == (0.0, "full", 1e-3, 100.0, True)
    assert (released.optimizer, released.schedule, released.weight_decay, released.persist_optimizer) == ("adam", "constant", 0.0, True)
    assert not FedDGHyper(**ALGORITHMS["feddg-augmentation"].defaults).episodic
