"""FedSR: the oracles of specs/FedSR.md, what each penalty moves, whose the reference is, and how predictions are averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from components.wire import Payload
from fl_algorithms.contract import Task
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.fedsr import REFERENCE, FedSR, FedSRHyper, Reference, averaged, conditional_divergence, l2r, log_softplus
from fl_algorithms.models import MODELS, Network, build_model, load_weights
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Batch
from tests.federations import Start, Uploads, copied, global_model, picture_samples, server, silo, uploaded

TASK = Task("small-cnn", classes=3, channels=3, image_size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
QUICK: dict[str, Any] = {"steps_per_epoch": None, "batch_size": 8}
SHARED = {"reference.mean", "reference.raw", "reference.log_scale"}


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


M, S = tensor([[0.5, -1.0], [0.0, 2.0]]), tensor([[0.0, 1.0], [-1.0, 0.5]])
MU, RHO, Y = tensor([[0.1, 0.0], [0.3, 1.5]]), tensor([[1.0, 1.0], [0.5, 2.0]]), torch.tensor([1, 0])
Z = tensor([[3.0, 4.0], [0.0, -2.0]])


def fedsr(task: Task = TASK, **hyper: Any) -> Any:
    return FedSR(FedSRHyper(**{**QUICK, **hyper}), task)


def start_of(algorithm: Any) -> dict[str, torch.Tensor]:
    return copied(algorithm.initialise(server({}), Uploads({})).parts[MODEL])


def step(algorithm: Any, received: dict[str, torch.Tensor], count: int = 20, private: Any = None, round: int = 1, **made: Any) -> Any:
    """One round on one silo: what it sends and what it keeps."""
    torch.manual_seed(0)  # of dropout, as the caller of a step does
    one = silo(picture_samples([count], **made), {MODEL: received}, round=round)
    one.private.update(copied(private or {}))
    update = algorithm.train(one)
    return copied(update.tensors), copied(one.private)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- oracles


def test_oracle_divergence() -> None:
    assert F.softplus(S).flatten().tolist() == pytest.approx([0.6931471806, 1.313261688, 0.3132616875, 0.9740769842], abs=1e-8)
    elements = conditional_divergence(M, S, MU[Y], RHO[Y], tensor(0.0))
    assert elements.flatten().tolist() == pytest.approx([0.1145095581, 0.8635716062, 0.964579368, 1.233507028], abs=1e-8)
    assert elements.sum(1).mean().item() == pytest.approx(1.588083780164818, abs=1e-8)
    scaled = conditional_divergence(M, S, MU[Y], RHO[Y], tensor(1.5).log())
    assert scaled.sum(1).mean().item() == pytest.approx(2.1638056443145057, abs=1e-8)


def test_oracle_norm() -> None:
    assert l2r(Z).item() == pytest.approx(3.5, abs=1e-8)
    assert l2r(Z, "squared").item() == pytest.approx(14.5, abs=1e-8)


def test_oracle_total() -> None:
    reference = Reference(torch.nn.Linear(2, 2)).double()
    with torch.no_grad():
        reference.mean.copy_(MU)
        reference.raw.copy_(RHO)
    total = fedsr().penalised(tensor(1.0), Z, M, S, Y, reference)
    assert total.item() == pytest.approx(1.0365880837801646, abs=1e-8)
    assert fedsr(l2r="squared").penalised(tensor(1.0), Z, M, S, Y, reference).item() == pytest.approx(1.0365880837801646 + 0.11, abs=1e-8)
    assert fedsr(alpha_l2r=0, alpha_cmi=0).penalised(tensor(1.0), Z, M, S, Y, None).item() == 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(2, 4), st.integers(0, 999))
def test_it_is_the_divergence_of_two_gaussians_whatever_the_order_of_samples_and_classes(
    batch: int, width: int, classes: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    mean, raw = (torch.randn(batch, width, generator=draw, dtype=torch.float64) for _ in range(2))
    mu, rho = (torch.randn(classes, width, generator=draw, dtype=torch.float64) for _ in range(2))
    labels, k = torch.randint(classes, (batch,), generator=draw), torch.randn((), generator=draw, dtype=torch.float64)
    found = conditional_divergence(mean, raw, mu[labels], rho[labels], k)
    encoded = torch.distributions.Normal(k.exp() * mean, k.exp() * F.softplus(raw))
    reference = torch.distributions.Normal(mu[labels], F.softplus(rho[labels]))
    assert torch.allclose(found, torch.distributions.kl_divergence(encoded, reference), rtol=1e-9, atol=1e-9)
    samples, renamed = torch.randperm(batch, generator=draw), torch.randperm(classes, generator=draw)
    moved = renamed.argsort()[labels[samples]]  # class c is now called where renamed == c
    again = conditional_divergence(mean[samples], raw[samples], mu[renamed][moved], rho[renamed][moved], k)
    assert torch.allclose(again, found[samples], rtol=0, atol=1e-12)


def test_finite_differences() -> None:
    inputs = tuple(t.clone().requires_grad_() for t in (M, S, MU, RHO, tensor(0.3)))
    assert torch.autograd.gradcheck(lambda m, s, mu, rho, k: conditional_divergence(m, s, mu[Y], rho[Y], k).sum(1).mean(), inputs)
    z = Z.clone().requires_grad_()
    for form in ("norm", "squared"):
        assert torch.autograd.gradcheck(lambda x, form=form: l2r(x, form), z)
    assert torch.autograd.gradcheck(averaged, tensor([[[1.0, 2.0, 0.5]], [[-1.0, 0.3, 0.2]]]).requires_grad_())


def test_extremes_have_finite_values_and_gradients() -> None:
    zero = torch.zeros(2, 3, requires_grad=True)
    l2r(zero).backward()
    assert zero.grad is not None
    assert zero.grad.abs().sum() == 0
    raw = torch.tensor([-1e4, -200.0, -40.0, -39.0, 0.0, 50.0], requires_grad=True)
    value = log_softplus(raw)
    assert value.tolist() == pytest.approx([-1e4, -200.0, -40.0, -39.0, -0.36651292, 3.91202301])
    value.sum().backward()
    assert raw.grad is not None
    assert raw.grad[:4].tolist() == pytest.approx([1.0] * 4)  # a deviation that vanished is still pushed up


# ---- the network


@pytest.mark.parametrize("backbone", MODELS)
def test_extra_tensors_are_the_encoder_and_the_reference(backbone: str) -> None:
    task = Task(backbone, 7, 3, 64, TASK.mean, TASK.std)
    plain, ours = FedAvg(FedAvgHyper(), task).upload, fedsr(task).upload
    width = plain["head.weight"].shape[1]
    assert width is not None
    assert set(ours) - set(plain) == {"encoder.weight", "encoder.bias"} | SHARED
    assert ours["encoder.weight"].shape == (2 * width, width)
    assert ours["reference.mean"].shape == ours["reference.raw"].shape == (7, width)
    assert set(fedsr(task, share_reference=False).upload) - set(plain) == {"encoder.weight", "encoder.bias"}
    narrow = fedsr(task, width=5, probabilistic=False, alpha_cmi=0.0).upload
    assert (narrow["encoder.weight"].shape, narrow["head.weight"].shape) == ((5, width), (7, 5))


def test_the_reference_begins_as_in_the_paper() -> None:
    state = start_of(fedsr())
    assert state["reference.mean"].abs().sum() == 0
    assert (state["reference.raw"] == 1).all()
    assert state["reference.log_scale"].item() == 0  # c = 1


def test_published_weights_still_fit(tmp_path: Any) -> None:
    path = tmp_path / "plain.pth"
    plain = build_model("small-cnn", 9, 3, 16)
    torch.save(plain.state_dict(), path)
    network = fedsr().build()
    load_weights(network, path)
    assert torch.equal(network.body[0][0].weight, plain.body[0][0].weight)


def test_prediction_averages_the_softmax_of_draws() -> None:
    logits = tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[-1.0, 3.0]]])
    assert torch.allclose(averaged(logits).exp(), logits.softmax(2).mean(0), rtol=0, atol=1e-12)
    one = fedsr(draws=3)
    network, images = one.network.eval(), next(picture_samples([5]).batches(5)).images
    mean, raw = network.distribution(images)
    by_hand = torch.stack([network.head(mean + F.softplus(raw) * eps).softmax(1) for eps in network.noise]).mean(0)
    assert network.noise.shape == (3, 1, 128)
    assert torch.allclose(network(images).exp(), by_hand, atol=1e-6)
    assert torch.allclose(network(images)[3:4], network(images[3:4]), atol=1e-5)  # whatever its batch
    assert torch.equal(network.features(images), mean)
    assert not any("noise" in name for name in network.state_dict())
    exact = fedsr(draws=0)
    exact.network.load_state_dict(network.state_dict())
    assert torch.allclose(exact.network.eval()(images), network.head(mean), atol=1e-6)


def test_many_draws_come_near_the_expectation() -> None:
    noise, more = fedsr(draws=2000).network.noise, fedsr(draws=20).network.noise
    assert noise.mean().abs() < 0.01
    assert abs(noise.std().item() - 1) < 0.01
    assert torch.equal(more, fedsr(draws=20).network.noise)


# ---- training


def loss_of(algorithm: Any, network: Any, batch: Batch, round: int = 1) -> torch.Tensor:
    algorithm.begin(network, silo(picture_samples([4]), {}, round=round))
    value: torch.Tensor = algorithm.loss(network, batch, None)
    return value


@pytest.mark.parametrize(("l2r_weight", "cmi_weight"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)])
def test_what_each_penalty_moves(l2r_weight: float, cmi_weight: float) -> None:
    one = fedsr(alpha_l2r=l2r_weight, alpha_cmi=cmi_weight)
    network, batch = one.network, next(picture_samples([6]).batches(6))
    loss_of(one, network, batch).backward()
    moved = {name for name, parameter in network.named_parameters() if parameter.grad is not None and parameter.grad.abs().sum() > 0}
    assert moved >= {"encoder.weight", "encoder.bias", "head.weight", "body.0.0.weight"}
    assert (moved >= SHARED) == (cmi_weight > 0)
    absent = set(range(3)) - set(batch.labels.tolist())
    if cmi_weight and absent:
        assert network.reference.mean.grad[list(absent)].abs().sum() == 0


def test_the_penalties_do_not_reach_the_classifier() -> None:
    one, batch = fedsr(alpha_l2r=0.5, alpha_cmi=0.5), next(picture_samples([6]).batches(6))
    network = one.network.eval()  # no dropout: the passes differ in the penalties only
    gradients = []
    for algorithm in (one, fedsr(alpha_l2r=0.0, alpha_cmi=0.0)):
        network.zero_grad()
        loss_of(algorithm, network, batch).backward()
        gradients.append((network.head.weight.grad.clone(), network.encoder.weight.grad.clone()))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert not torch.equal(gradients[0][1], gradients[1][1])


def test_noise_belongs_to_the_silo_and_the_round() -> None:
    one, batch = fedsr(), next(picture_samples([6]).batches(6))
    network = one.network.eval()
    first = loss_of(one, network, batch)
    assert torch.equal(loss_of(one, network, batch), first)
    assert not torch.equal(loss_of(one, network, batch, round=2), first)


class Deeper(FedAvg[FedAvgHyper]):
    """FedAvg on the same network with one linear layer more."""

    def build(self) -> Network:
        return fedsr(probabilistic=False, alpha_cmi=0.0).build()  # type: ignore[no-any-return]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_penalties_and_noise_it_is_fedavg_with_a_layer_more(optimizer: str) -> None:
    hyper = {"optimizer": optimizer, "lr": 0.05, "schedule": "constant", "weight_decay": 0.0, "epochs": 1, "batch_size": 8}
    point = fedsr(alpha_l2r=0.0, alpha_cmi=0.0, probabilistic=False, **hyper)
    received = start_of(point)
    expected, _ = step(Deeper(FedAvgHyper(**hyper), TASK), received)  # type: ignore[arg-type]
    assert same(step(point, received)[0], expected)
    assert not same(step(fedsr(alpha_cmi=0.0, probabilistic=False, **hyper), received)[0], expected)

    gaussian = fedsr(alpha_l2r=0.0, alpha_cmi=0.0, **hyper)  # sigma forced to 0
    wide = dict(received)
    wide["encoder.weight"] = torch.cat([received["encoder.weight"], torch.zeros(128, 128)])
    wide["encoder.bias"] = torch.cat([received["encoder.bias"], torch.full((128,), -1e4)])
    found, _ = step(gaussian, wide)
    for name, value in expected.items():
        assert torch.allclose(found[name][: len(value)] if value.dim() else found[name], value, atol=1e-5), name
    assert (found["encoder.bias"][128:] == -1e4).all()


def test_a_point_has_no_divergence() -> None:
    with pytest.raises(Unusable, match=r"hyper\.alpha_cmi: expected 0 with probabilistic=false"):
        fedsr(probabilistic=False).refuse(["a"])
    fedsr(probabilistic=False, alpha_cmi=0.0).refuse(["a"])


@pytest.mark.parametrize(
    ("count", "made"),
    [(1, {}), (3, {}), (9, {}), (8, {"classes": 1}), (8, {"flat": True})],
    ids=["one image", "three", "an odd last batch", "one class", "equal images"],
)
@pytest.mark.parametrize("preset", ["fedsr", "fedl2r", "fedcmi", "fedsr-official", "fedsr-in-benchmark"])
def test_small_and_odd_silos(preset: str, count: int, made: dict[str, Any]) -> None:
    one = fedsr(**{**ALGORITHMS[preset].defaults, **QUICK})
    sent, kept = step(one, start_of(one), count, **made)
    assert sent.keys() == one.upload.keys()
    assert all(torch.isfinite(value).all() for value in [*sent.values(), *kept.values()])


# ---- whose the reference is


def test_a_shared_reference_is_averaged_with_the_model() -> None:
    one = fedsr()
    received = start_of(one)
    sent = {name: step(fedsr(), received, count)[0] for name, count in (("a", 20), ("b", 9))}
    combined = one.combine(server({"a": 20, "b": 9}, {MODEL: received}), Uploads(sent)).parts[MODEL]
    for name in SHARED:
        assert not torch.equal(sent["a"][name], received[name])
        assert torch.allclose(combined[name], (sent["a"][name] + sent["b"][name]) / 2, atol=1e-7)


def test_a_local_reference_goes_on_where_it_was_and_never_leaves() -> None:
    hyper = {"share_reference": False, "persist_optimizer": True}
    one = fedsr(**hyper)
    received = start_of(one)
    sent, kept = step(one, received)
    names = {REFERENCE + name.removeprefix("reference.") for name in SHARED}
    assert {name for name in kept if name.startswith(REFERENCE)} == names
    assert not any("reference" in name for name in sent)
    assert kept[REFERENCE + "mean"].abs().sum() > 0
    again, further = step(one, sent, private=kept, round=2)
    assert not torch.equal(further[REFERENCE + "mean"], kept[REFERENCE + "mean"])
    fresh, afresh = step(fedsr(**hyper), sent, private=kept, round=2)  # a process that has just started
    assert same(fresh, again)
    assert same(afresh, further)
    _, idle = step(fedsr(**hyper, epochs=0), sent, private=kept, round=2)
    assert all(torch.equal(idle[name], kept[name]) for name in names)
    forgot = {name: value for name, value in kept.items() if name not in names}
    assert not same(step(fedsr(**hyper), sent, private=forgot, round=2)[0], again)


# ---- whole runs


@pytest.mark.parametrize("algorithm", ["fedsr", "fedl2r", "fedcmi", "fedsr-official"])
def test_a_run_repeats_resumes_and_sends_what_it_declares(start: Start, algorithm: str) -> None:
    hyper = {"steps_per_epoch": None}
    resident, forgetful = start(algorithm, hyper), start(algorithm, hyper)
    digest = resident.digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    declared = set(resident.federation.algorithm.upload)  # type: ignore[attr-defined]
    assert uploaded(resident) == {"join": set(), "train": declared}
    assert set(global_model(resident, 2)) == declared
    assert (declared >= SHARED) == (algorithm in ("fedsr", "fedcmi"))
    private = {name for path in (resident.folder / "private").rglob("*.safetensors") for name in Payload(path)}
    assert any(name.startswith(REFERENCE) for name in private) == (algorithm == "fedsr-official")
    assert not private & {name for path in resident.stored(".safetensors") for name in Payload(path)}


def test_the_presets_are_the_settings_of_the_papers() -> None:
    hyper = {name: FedSRHyper(**entry.defaults) for name, entry in ALGORITHMS.items() if entry.location == "fedsr:FedSR"}
    assert set(hyper) == {
        "fedsr", "fedl2r", "fedcmi", "fedsr-official", "fedsr-in-benchmark", "fedsr-in-fedccrl", "fedsr-in-feddann",
    }  # fmt: skip
    weights = {name: (one.alpha_l2r, one.alpha_cmi) for name, one in hyper.items()}
    assert weights == {
        "fedsr": (0.01, 0.001), "fedl2r": (0.01, 0.0), "fedcmi": (0.0, 0.001), "fedsr-official": (0.01, 0.001),
        "fedsr-in-benchmark": (0.01, 0.001), "fedsr-in-fedccrl": (0.001, 0.001), "fedsr-in-feddann": (0.01, 1e-4),
    }  # fmt: skip
    assert [name for name, one in hyper.items() if not one.probabilistic] == ["fedl2r"]
    assert {name for name, one in hyper.items() if not one.share_reference} == {"fedsr-official", "fedsr-in-feddann"}
    assert (hyper["fedsr"].optimizer, hyper["fedsr"].lr, hyper["fedsr"].weight_decay, hyper["fedsr"].steps_per_epoch) == (
        "sgd",
        0.01,
        5e-4,
        5,
    )
