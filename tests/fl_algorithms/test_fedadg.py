"""FedADG: its losses, whose turn moves what, what stays on the silo, and what remains when the adversary is taken away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from components.wire import Payload
from fl_algorithms import fedadg, fedavg
from fl_algorithms.contract import Silo, Task
from fl_algorithms.fedadg import (
    PRIVATE,
    Discriminator,
    FedADG,
    FedADGHyper,
    Generator,
    discriminator_loss,
    extractor_loss,
    fixed_reference,
    generator_loss,
    random_projection,
)
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Batch
from tests.federations import Start, Uploads, copied, picture_samples, server, silo, uploaded

CNN = Task("small-cnn", 3, 3, 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
QUICK: dict[str, Any] = {
    "classification_epochs": 1,
    "epochs": 1,
    "batch_size": 8,
    "lr": 0.01,
    "lr_generator": 0.01,
    "lr_discriminator": 0.01,
}
PLAIN: dict[str, Any] = {"hidden_classifier": False, "label_smoothing": 0.0, "weight_decay": 1e-4, "batch_size": 8, "lr": 0.01}


def algorithm(**hyper: Any) -> FedADG:
    return FedADG(FedADGHyper(**{**QUICK, **hyper}), CNN)


def initial(one: FedAvg[Any]) -> dict[str, torch.Tensor]:
    return copied(one.initialise(server({}), Uploads({})).parts[MODEL])


def trained(one: FedAvg[Any], where: Silo) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # the caller of a step does: dropout draws from the global stream
    return copied(one.train(where).tensors)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


# ---- the losses


def test_loss_oracles() -> None:
    h, g = t(0.3, 0.6), t(0.8, 0.55)
    assert discriminator_loss(h, g, "eq2").item() == pytest.approx(-0.79625, abs=1e-8)
    assert discriminator_loss(h, g, "lsgan").item() == pytest.approx(0.34625, abs=1e-8)
    assert extractor_loss(h).item() == pytest.approx(0.325, abs=1e-8)
    assert generator_loss(g, "eq4").item() == pytest.approx(0.12125, abs=1e-8)
    assert generator_loss(g, "toward_features").item() == pytest.approx(0.47125, abs=1e-8)


@pytest.mark.parametrize(
    ("mode", "of_extracted", "of_reference"), [("eq2", [0.7, 0.4], [-0.8, -0.55]), ("lsgan", [0.3, 0.6], [-0.2, -0.45])]
)
def test_both_forms_push_extracted_features_down_and_the_reference_up(
    mode: Any, of_extracted: list[float], of_reference: list[float]
) -> None:
    h, g = t(0.3, 0.6), t(0.8, 0.55)
    discriminator_loss(h, g, mode).backward()
    assert h.grad is not None and h.grad.tolist() == pytest.approx(of_extracted, abs=1e-8)
    assert g.grad is not None and g.grad.tolist() == pytest.approx(of_reference, abs=1e-8)


@pytest.mark.parametrize(
    ("hyper", "expected"), [({}, 1.06875), ({"lambda_adv": 0.0}, 1.02), ({"lambda_adv": 1.0, "lambda_err": 0.0}, 0.325)]
)
def test_composition_oracle(monkeypatch: pytest.MonkeyPatch, hyper: dict[str, float], expected: float) -> None:
    one: Any = algorithm(**hyper)
    one._discriminator = lambda features, classes: t(0.3, 0.6)
    monkeypatch.setattr(fedadg, "cross_entropy", lambda *_: t(1.2).squeeze())
    batch = next(picture_samples([2]).batches(2))
    assert one.loss(one.network, batch, None).item() == pytest.approx(expected, abs=1e-8)


def test_gradients_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    judge = Discriminator(4, 3, torch.randn(6, 4)).double()
    features, reference = (torch.randn(5, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    classes = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 1, 0]]
    for mode in ("lsgan", "eq2"):
        assert torch.autograd.gradcheck(
            lambda h, g, m=mode: discriminator_loss(judge(h, classes), judge(g, classes), m), (features, reference)
        )
    assert torch.autograd.gradcheck(lambda h: extractor_loss(judge(h, classes)), features)
    for mode in ("toward_features", "eq4"):
        assert torch.autograd.gradcheck(lambda g, m=mode: generator_loss(judge(g, classes), m), reference)


def test_the_order_of_a_batch_does_not_matter() -> None:
    one = algorithm()
    one.begin(one.network.eval(), silo(picture_samples([9]), {}))
    images, labels, domains = next(picture_samples([9]).batches(9))
    order = torch.tensor([4, 2, 8, 0, 1, 7, 3, 6, 5])
    found = [one.loss(one.network, batch, None) for batch in (Batch(images, labels, domains), Batch(images[order], labels[order], domains))]
    assert found[0].item() == pytest.approx(found[1].item(), abs=1e-6)


# ---- whose turn moves what


def test_each_turn_moves_its_own_player_only(monkeypatch: pytest.MonkeyPatch) -> None:
    one = algorithm(classification_epochs=0, batch_size=32)
    turns: list[tuple[set[str], set[str]]] = []  # who has a gradient, who moved
    original: Callable[..., None] = fedadg.descend

    def watched(*arguments: Any) -> None:
        assert one._discriminator is not None
        parts = {"body": one.network.body, "head": one.network.head, "G": one.network.get_submodule("generator"), "D": one._discriminator}
        before = {name: copied(dict(part.named_parameters())) for name, part in parts.items()}
        for part in parts.values():
            part.zero_grad(set_to_none=True)
        original(*arguments)
        reached = {name for name, part in parts.items() if any(p.grad is not None for p in part.parameters())}
        turns.append((reached, {name for name, part in parts.items() if not same(copied(dict(part.named_parameters())), before[name])}))

    monkeypatch.setattr(fedadg, "descend", watched)
    trained(one, silo(picture_samples([16]), {MODEL: initial(one)}))
    assert turns == [(players, players) for players in ({"D"}, {"body", "head"}, {"G"})]


@pytest.mark.parametrize(("mode", "sign"), [("toward_features", -1), ("eq4", 1)])
def test_the_generator_moves_towards_what_looks_extracted_unless_it_follows_the_print(mode: str, sign: int) -> None:
    one = algorithm(g_mode=mode, lr_generator=0.1)
    model = one.load(initial(one), torch.device("cpu"))
    where = silo(picture_samples([16]), {})
    one.begin(model, where)
    judge = one._discriminator
    assert judge is not None
    classes = one.class_vectors(where.train.labels, torch.zeros(1))
    optimizer = one._optimizers(model, judge)["generator"]

    def verdict() -> torch.Tensor:
        one.begin(model, where)  # the same noise again
        return judge(one.draw_reference(model, classes, torch.zeros(16, 128)), classes).mean()

    before = verdict().item()
    fedadg.descend(optimizer, generator_loss(judge(one.draw_reference(model, classes, torch.zeros(16, 128)), classes), mode), 0.1)
    assert (verdict().item() - before) * sign > 1e-6


@pytest.mark.parametrize(("hyper", "moves"), [({}, True), ({"reference": "frozen"}, False), ({"epochs": 0}, False)])
def test_the_generator_trains_unless_the_slip_of_the_released_code_is_asked_for(hyper: dict[str, Any], moves: bool) -> None:
    one = algorithm(weight_decay=0.0, **hyper)  # which would move it without any gradient
    start = initial(one)
    found = trained(one, silo(picture_samples([16]), {MODEL: start}))
    names = [name for name in found if name.startswith("generator.")]
    assert len(names) == 4
    assert all(torch.equal(found[name], start[name]) != moves for name in names)


def test_the_discriminator_is_trained_on_features_in_evaluation_mode() -> None:
    """So its turn neither draws dropout's numbers nor touches running statistics: without pull, F and C are FedAvg's, bit for bit."""
    for buffers in ("average", "frozen"):
        ours = FedADG(FedADGHyper(**PLAIN, classification_epochs=0, epochs=2, lambda_adv=0.0, lambda_err=1.0, bn_buffers=buffers), CNN)
        theirs = FedAvg(FedAvgHyper(optimizer="sgd", schedule="constant", lr=0.01, batch_size=8, epochs=2, bn_buffers=buffers), CNN)
        where = silo(picture_samples([19]), {MODEL: initial(ours)})
        expected = trained(theirs, replace(where, received={MODEL: initial(theirs)}))
        found = trained(ours, where)
        assert same({name: found[name] for name in expected}, expected)
        assert not torch.equal(found["generator.layers.0.weight"], where.received[MODEL]["generator.layers.0.weight"])


def test_without_generator_and_discriminator_it_is_fedavg_with_all_the_epochs() -> None:
    ours = FedADG(FedADGHyper(**PLAIN, classification_epochs=1, epochs=2, adversarial=False, weighting="samples"), CNN)
    theirs = FedAvg(FedAvgHyper(optimizer="sgd", schedule="constant", lr=0.01, batch_size=8, epochs=3), CNN)
    where = silo(picture_samples([19]), {MODEL: initial(ours)})
    assert same(trained(ours, where), trained(theirs, where))
    assert where.private == {}
    assert ours.upload == theirs.upload


# ---- what stays on the silo


def test_discriminator_and_its_momentum_stay_and_nothing_else() -> None:
    one = algorithm()
    where = silo(picture_samples([16]), {MODEL: initial(one)})
    found = trained(one, where)
    assert found.keys() == one.upload.keys()
    assert not [name for name in found if "discriminator" in name or "projection" in name]
    assert {"generator.layers.0.weight", "head.2.bias", "body.0.0.weight"} < found.keys()
    layers = [f"layers.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
    slots = [f"discriminator.optimizer.{i}.momentum_buffer" for i in range(4)]
    assert sorted(where.private) == sorted(PRIVATE + name for name in [*(f"weights.{name}" for name in layers), *slots])
    kept = algorithm(persist_optimizer=True)
    trained(kept, where)
    assert {PRIVATE + "generator.optimizer.0.momentum_buffer", PRIVATE + "classifier.optimizer.0.momentum_buffer"} < where.private.keys()


@pytest.mark.parametrize("hyper", [{}, {"persist_optimizer": True, "bn_buffers": "local"}, {"optimizer": "adam"}])
def test_a_fresh_process_continues_from_the_private_state_bit_for_bit(hyper: dict[str, Any]) -> None:
    resident = algorithm(**hyper)
    start, samples = initial(resident), picture_samples([16])
    first = silo(samples, {MODEL: start})
    trained(resident, first)
    stored = copied(first.private)
    second = replace(first, round=2)
    expected, kept = trained(resident, second), copied(second.private)
    again = replace(first, round=2, private=copied(stored))
    assert same(trained(algorithm(**hyper), again), expected)
    assert same(copied(again.private), kept)
    for lost in ("weights.", "discriminator."):
        partial = {name: tensor for name, tensor in copied(stored).items() if not name.startswith(PRIVATE + lost)}
        assert not same(trained(algorithm(**hyper), replace(first, round=2, private=partial)), expected), lost


def test_the_projection_is_the_same_on_every_silo_and_never_trained() -> None:
    one = algorithm()
    start, seen = initial(one), []
    for name, round in (("a", 1), ("a", 2), ("b", 1)):
        where = silo(picture_samples([8]), {MODEL: start}, name, round)
        one.begin(one.network, where)
        assert one._discriminator is not None
        fresh = copied(dict(one._discriminator.named_parameters()))
        trained(one, where)
        assert one._discriminator.projection is not None
        seen.append((one._discriminator.projection.clone(), fresh))
    assert seen[0][0].shape == (128, 32)
    assert all(torch.equal(matrix, seen[0][0]) for matrix, _ in seen)
    assert not same(seen[0][1], seen[2][1])


def test_the_projection_keeps_squared_lengths() -> None:
    matrix = random_projection(400, 100, torch.Generator().manual_seed(0))
    rows = torch.randn(200, 400, generator=torch.Generator().manual_seed(1))
    ratio = (rows @ matrix).square().sum(1) / rows.square().sum(1)
    assert ratio.mean().item() == pytest.approx(1.0, abs=0.03)
    assert matrix.std().item() == pytest.approx(0.1, abs=0.002)


# ---- shapes and hyper-parameters


def test_sizes_on_alexnet() -> None:
    with torch.device("meta"):
        generator = Generator(2048, 7, 4096)
        judge = Discriminator(1024, 7, torch.empty(4096, 1024))
    assert sum(p.numel() for p in generator.parameters()) == 25_202_688
    assert judge.projection is not None
    assert sum(p.numel() for p in judge.parameters()) + judge.projection.numel() == 5_252_097
    assert "projection" not in judge.state_dict()


def test_ablations_take_the_inputs_away() -> None:
    def layers(**hyper: Any) -> tuple[tuple[int, ...], ...]:
        one = algorithm(**hyper)
        one.begin(one.network, silo(picture_samples([8]), {}))
        assert one._discriminator is not None
        generator = one.network.get_submodule("generator")
        return tuple(tuple(net.get_parameter("layers.0.weight").shape) for net in (generator, one._discriminator))

    assert layers() == ((128, 64 + 3), (32, 32 + 3))
    assert layers(one_hot=0.0) == ((128, 64), (32, 32))
    assert layers(projection=0) == ((128, 64 + 3), (128, 128 + 3))
    assert layers(projection=5, noise=7) == ((128, 7 + 3), (5, 5 + 3))
    assert algorithm(one_hot=0.6).class_vectors(torch.tensor([2, 0]), torch.zeros(1)).tolist() == [
        pytest.approx([0, 0, 0.6]),
        pytest.approx([0.6, 0, 0]),
    ]


def test_fixed_references() -> None:
    draws = {
        kind: fixed_reference(kind, torch.Size((400, 200)), torch.Generator().manual_seed(0)) for kind in ("gaussian", "uniform", "laplace")
    }
    expected = {"gaussian": (1.0, 3.0), "uniform": (1 / 3, 1.8), "laplace": (1.0, 6.0)}  # variance, kurtosis
    for kind, sample in draws.items():
        assert torch.isfinite(sample).all()
        assert sample.mean().item() == pytest.approx(0.0, abs=0.02)
        assert sample.var().item() == pytest.approx(expected[kind][0], rel=0.02)
        assert (sample.pow(4).mean() / sample.var() ** 2).item() == pytest.approx(expected[kind][1], rel=0.06)
    assert draws["uniform"].abs().max() <= 1


@pytest.mark.parametrize("reference", ["gaussian", "uniform", "laplace"])
def test_a_fixed_reference_needs_no_generator(reference: str) -> None:
    one = algorithm(reference=reference)
    assert not [name for name in one.upload if name.startswith("generator.")]
    where = silo(picture_samples([10]), {MODEL: initial(one)})
    assert all(torch.isfinite(tensor).all() for tensor in trained(one, where).values())
    assert PRIVATE + "weights.layers.0.weight" in where.private


def test_all_players_follow_one_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    one = algorithm(
        classification_epochs=1, epochs=2, schedule="cosine", lr=0.01, lr_generator=0.004, lr_discriminator=0.002, batch_size=32
    )
    assert one.rates(2, 2) == pytest.approx([0.5 * 0.01 * (1 + c) for c in (0.0, -0.5, -(3**0.5) / 2)])
    seen: list[float] = []
    monkeypatch.setattr(fedadg, "descend", lambda optimizer, loss, rate, before_step=None: seen.append(rate))
    trained(one, silo(picture_samples([16]), {MODEL: initial(one)}, round=2, rounds=2))
    last = one.rates(2, 2)[1:]
    assert seen == pytest.approx([rate * factor for rate in last for factor in (0.2, 1.0, 0.4)])


def test_silos_count_alike() -> None:
    one = algorithm()
    start = initial(one)
    assert one.combine(server({"a": 1, "b": 9}, {MODEL: start}), Uploads({"a": start, "b": start})).weights == {"a": 0.5, "b": 0.5}


def test_presets_are_the_papers_rows() -> None:
    def preset(name: str) -> FedADGHyper:
        return FedADGHyper(**ALGORITHMS[name].defaults)

    default, vlcs, home = preset("fedadg"), preset("fedadg-vlcs"), preset("fedadg-officehome")
    assert (default.lr, default.lr_generator, default.lr_discriminator) == (0.001, 0.0007, 0.0007)
    assert (default.classification_epochs, default.epochs, default.batch_size, default.weighting) == (3, 7, 16, "uniform")
    assert (vlcs.lr, vlcs.lr_generator, vlcs.lr_discriminator) == (0.01, 0.007, 0.007)
    assert (home.lr, home.lr_generator, home.lr_discriminator) == (0.05, 0.007, 0.001)
    printed = preset("fedadg-printed")
    assert (printed.lambda_adv, printed.lambda_err, printed.d_mode, printed.g_mode) == (0.85, 0.15, "eq2", "eq4")


# ---- odd silos


@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("kind", ["odd", "one class", "three images", "flat"])
def test_any_silo_trains(kind: str, batch_size: int) -> None:
    samples = picture_samples([{"three images": 3}.get(kind, 9)], flat=kind == "flat")
    if kind == "one class":
        samples.labels[:] = 2
    one = algorithm(batch_size=batch_size)
    update = one.train(silo(samples, {MODEL: initial(one)}))
    assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
    assert update.metrics["loss"] > 0


def test_a_pretrained_body_is_taken_over(tmp_path: Path) -> None:
    donor = fedavg.build_model("small-cnn", 3, 3, 16).state_dict()
    save_file(donor, tmp_path / "donor.safetensors")
    one = FedADG(FedADGHyper(), replace(CNN, weights=str(tmp_path / "donor.safetensors")))
    found = initial(one)
    assert all(torch.equal(found[name], donor[name]) for name in donor if name.startswith("body."))
    assert isinstance(one.network.head, nn.Sequential)


# ---- whole runs


@pytest.mark.parametrize(("preset", "hyper"), [("fedadg", {}), ("fedadg", {"persist_optimizer": True}), ("fedadg-no-gd", {})])
def test_a_run_repeats_resumes_and_keeps_its_discriminators_home(start: Start, preset: str, hyper: dict[str, Any]) -> None:
    hyper = {"classification_epochs": 1, **hyper}
    resident, again, forgetful = (start(preset, hyper, rounds=2) for _ in range(3))
    digest = resident.digest
    assert again.digest == digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    published = uploaded(resident)["train"]
    assert published == set(resident.federation.algorithm.exchanges(1)[0].upload)
    assert any(name.startswith("generator.") for name in published) == (preset == "fedadg")
    shown = {name for path in resident.stored(".safetensors") for name in Payload(path)}
    assert not [name for name in shown if name.startswith(PRIVATE)]
    for name in resident.silos:
        kept = {key for path in (resident.folder / "private" / name).rglob("*.safetensors") for key in Payload(path)}
        assert any(key.startswith(PRIVATE) for key in kept) == (preset == "fedadg")
