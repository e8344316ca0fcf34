"""FedDANN: the sign and the scale of the reversed gradient, what lambda = 0 leaves, and what is told about domains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from components.received import read_update
from components.wire import Payload
from fl_algorithms import fedavg
from fl_algorithms.contract import Silo, Task
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.feddann import FedDANN, FedDANNHyper, domain_accuracy, domain_loss, ramp, reverse_gradient
from fl_algorithms.models import Network
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Batch
from tests.federations import Start, Uploads, copied, picture_samples, server, silo, uploaded

CNN = Task("small-cnn", 3, 3, 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), domains=3)
QUICK: dict[str, Any] = {"batch_size": 8, "lr": 0.01}
HEAD = "domain_head."


def algorithm(**hyper: Any) -> FedDANN:
    return FedDANN(FedDANNHyper(**{**QUICK, **hyper}), CNN)


def initial(one: FedAvg[Any]) -> dict[str, torch.Tensor]:
    return copied(one.initialise(server({}), Uploads({})).parts[MODEL])


def trained(one: FedAvg[Any], where: Silo) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # the caller of a step does: dropout draws from the global stream
    return copied(one.train(where).tensors)


# ---- the loss


def oracle(place: str, weight: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """L_y, L_d and the gradients of their sum in z and in the first row of U."""
    z = torch.tensor([[1.0, -0.5]], dtype=torch.float64, requires_grad=True)
    classify, name_domain = (nn.Linear(2, rows, bias=False).double() for rows in (2, 3))
    with torch.no_grad():
        classify.weight.copy_(torch.tensor([[0.5, 1.0], [-1.0, 0.25]]).double())
        name_domain.weight.copy_(torch.tensor([[0.2, -0.4], [0.6, 0.1], [-0.3, 0.5]], dtype=torch.float64))
    label, domain = torch.tensor([0]), torch.tensor([2])
    classification, adversary = F.cross_entropy(classify(z), label), domain_loss(z, name_domain, domain, weight, place)
    (classification + adversary).backward()
    assert z.grad is not None and name_domain.weight.grad is not None
    return classification.detach(), adversary.detach(), z.grad[0], name_domain.weight.grad[0]


def test_oracles_of_the_loss_and_of_what_comes_back_through_the_reversal() -> None:
    classification, adversary, dz, du = oracle("loss", 1.0)
    assert classification.item() == pytest.approx(0.2811501362, abs=1e-8)
    assert adversary.item() == pytest.approx(1.885534484, abs=1e-8)
    of_classification = torch.tensor([-0.3676275197, -0.1838137598], dtype=torch.float64)
    assert (dz - of_classification).tolist() == pytest.approx([-0.6064764259, 0.5354888730], abs=1e-8)
    assert du.tolist() == pytest.approx([0.3923760908, -0.1961880454], abs=1e-8)


def test_oracle_of_lambda_in_the_loss() -> None:
    _, adversary, dz, du = oracle("loss", 0.01)
    assert adversary.item() == pytest.approx(0.01885534484, abs=1e-8)
    assert dz.tolist() == pytest.approx([-0.3736922840, -0.1784588711], abs=1e-8)
    assert du.tolist() == pytest.approx([0.003923760908, -0.001961880454], abs=1e-8)


def test_lambda_in_the_reversal_leaves_the_domain_classifier_its_full_gradient() -> None:
    _, adversary, dz, du = oracle("grl", 0.01)
    assert adversary.item() == pytest.approx(1.885534484, abs=1e-8)
    assert dz.tolist() == pytest.approx([-0.3736922840, -0.1784588711], abs=1e-8)
    assert du.tolist() == pytest.approx([0.3923760908, -0.1961880454], abs=1e-8)


def test_oracle_of_the_ramp() -> None:
    assert [ramp(p) for p in (0.0, 0.1, 0.5, 1.0)] == pytest.approx([0.0, 0.4621171573, 0.9866142982, 0.9999092043], abs=1e-8)


def test_gradients_agree_with_finite_differences_but_for_the_sign() -> None:
    torch.manual_seed(0)
    features = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    u = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    domains = torch.tensor([0, 2, 1, 2])

    class Head(nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.own = weight

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows @ self.own.T

    assert torch.autograd.gradcheck(lambda w: domain_loss(features.detach(), Head(w), domains, 0.3, "loss"), u)
    # reversed twice, the gradient is the true one
    assert torch.autograd.gradcheck(lambda z: domain_loss(reverse_gradient(z), Head(u.detach()), domains, 0.3, "loss"), features)
    assert torch.equal(reverse_gradient(features), features)


def test_features_and_domain_classifier_pull_in_opposite_directions() -> None:
    """One small step of the whole loss: G_d names the domain better, the features hide it better."""
    one = algorithm(lambda_domain=1.0)
    model = one.load(initial(one), torch.device("cpu")).eval()
    batch = next(picture_samples([6, 6, 6]).batches(18))
    head = model.get_submodule("domain_head")

    def confusion() -> torch.Tensor:
        return F.cross_entropy(head(model.features(batch.images)), batch.domains)

    before = confusion()
    domain_loss(model.features(batch.images), head, batch.domains, 1.0, "loss").backward()
    for part, better in ((head, -1), (model.body, 1)):
        start = copied(model.state_dict())
        with torch.no_grad():
            for parameter in part.parameters():
                assert parameter.grad is not None
                parameter -= 0.01 * parameter.grad
        assert (confusion() - before).item() * better > 1e-5
        model.load_state_dict(start)


def test_the_ramp_starts_at_nothing_and_follows_the_round() -> None:
    one = algorithm(lambda_domain=0.5, ramp=True)
    batch, model = next(picture_samples([4, 4]).batches(8)), one.network.eval()

    def adversary(round: int) -> float:
        where = silo(picture_samples([4, 4]), {}, round=round, rounds=10)
        return (one.loss(model, batch, where) - F.cross_entropy(model(batch.images), batch.labels)).item()

    full = algorithm(lambda_domain=0.5)
    full.network.load_state_dict(model.state_dict())
    whole = (
        full.loss(full.network.eval(), batch, silo(picture_samples([4]), {})) - F.cross_entropy(model(batch.images), batch.labels)
    ).item()
    assert adversary(1) == pytest.approx(0.0, abs=1e-7)
    assert adversary(2) == pytest.approx(0.4621171573 * whole, abs=1e-6)
    assert adversary(6) == pytest.approx(0.9866142982 * whole, abs=1e-6)


def test_the_order_of_a_batch_does_not_matter() -> None:
    one = algorithm(lambda_domain=1.0)
    images, labels, domains = next(picture_samples([3, 4, 2]).batches(9))
    order = torch.tensor([4, 2, 8, 0, 1, 7, 3, 6, 5])
    where, model = silo(picture_samples([3]), {}), one.network.eval()
    found = [
        one.loss(model, batch, where).item()
        for batch in (Batch(images, labels, domains), Batch(images[order], labels[order], domains[order]))
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-6)


# ---- lambda = 0


@pytest.mark.parametrize("place", ["loss", "grl"])
def test_with_lambda_zero_the_classifier_is_fedavgs_bit_for_bit(place: str) -> None:
    ours = algorithm(lambda_domain=0.0, lambda_place=place, epochs=2)
    theirs = FedAvg(FedAvgHyper(optimizer="sgd", schedule="constant", lr=0.01, batch_size=8, epochs=2), CNN)
    start = initial(ours)
    plain = {name: tensor for name, tensor in start.items() if not name.startswith(HEAD)}
    samples = picture_samples([7, 6, 6])
    found, expected = trained(ours, silo(samples, {MODEL: start})), trained(theirs, silo(samples, {MODEL: plain}))
    assert expected.keys() == plain.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    other = trained(algorithm(lambda_domain=1.0, lambda_place=place, epochs=2), silo(samples, {MODEL: start}))
    assert not torch.equal(other["body.0.0.weight"], expected["body.0.0.weight"])


def test_with_lambda_zero_only_weight_decay_touches_the_domain_classifier() -> None:
    start = initial(algorithm())
    samples = picture_samples([16])
    still = trained(algorithm(lambda_domain=0.0, weight_decay=0.0), silo(samples, {MODEL: start}))
    decayed = trained(algorithm(lambda_domain=0.0, weight_decay=0.1, momentum=0.0), silo(samples, {MODEL: start}))
    for name in (name for name in start if name.startswith(HEAD)):
        assert torch.equal(still[name], start[name])
        assert torch.allclose(decayed[name], start[name] * (1 - 0.01 * 0.1) ** 2, rtol=1e-6, atol=0)  # two steps


# ---- the network


def test_sizes_on_femnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's network: 2,278,334 numbers, and 2,104,326 more for the domain classifier."""
    monkeypatch.setattr(fedavg, "build_model", lambda *_: Network(nn.Sequential(), nn.Flatten(), nn.Linear(2048, 62), ()))
    six = FedDANN(FedDANNHyper(**ALGORITHMS["feddann-femnist"].defaults), replace(CNN, classes=62, domains=5))
    sizes = {name: shape.shape for name, shape in six.upload.items() if name.startswith(HEAD)}
    assert sum(torch.Size(shape).numel() for shape in sizes.values()) == 2_104_326
    assert sizes["domain_head.2.bias"] == (6,)
    assert algorithm().upload["domain_head.2.bias"].shape == (3,)
    assert algorithm(domain_hidden=5).upload["domain_head.0.bias"].shape == (5,)


def test_the_predictor_ignores_the_domain_classifier() -> None:
    one = algorithm()
    start = initial(one)
    images = next(picture_samples([4]).batches(4)).images
    first = one.predictor({MODEL: start}, torch.device("cpu"))(images).clone()
    changed = {name: tensor + 1 if name.startswith(HEAD) else tensor for name, tensor in start.items()}
    assert torch.equal(one.predictor({MODEL: changed}, torch.device("cpu"))(images), first)


@pytest.mark.parametrize(
    ("domains", "hyper", "message"),
    [(1, {}, "needs at least 2 source domains, found 1"), (3, {"domain_outputs": 2}, "hyper.domain_outputs: 2, expected at least")],
)
def test_what_cannot_be_served_is_refused(domains: int, hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        FedDANN(FedDANNHyper(**hyper), replace(CNN, domains=domains)).refuse(["a", "b"])
    algorithm(domain_outputs=3).refuse(["a"])


# ---- what is told about domains


def test_domain_accuracy_is_the_received_models_on_validation_images() -> None:
    one = algorithm()
    start = initial(one)
    start["domain_head.2.weight"].zero_()
    start["domain_head.2.bias"].copy_(torch.tensor([0.0, 5.0, 0.0]))  # answers 1, whatever it sees
    validation = picture_samples([2, 3, 5])
    where = replace(silo(picture_samples([8]), {MODEL: start}), validation=validation)
    update = one.train(where)
    assert update.metrics["domain_accuracy"] == pytest.approx(0.3)
    assert update.metrics.keys() == {"loss", "domain_accuracy"}
    assert domain_accuracy(one.load(start, torch.device("cpu")), validation) == pytest.approx(0.3)
    assert one.train(silo(picture_samples([8]), {MODEL: start})).metrics.keys() == {"loss"}


@pytest.mark.parametrize("buffers", ["average", "frozen"])
def test_looking_at_validation_images_changes_no_bit_of_the_training(buffers: str) -> None:
    one = algorithm(bn_buffers=buffers)
    where = silo(picture_samples([12]), {MODEL: initial(one)})
    expected = trained(one, where)
    found = trained(one, replace(where, validation=picture_samples([9])))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# ---- odd silos, whole runs


@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("kind", ["odd", "one class", "three images", "flat"])
def test_any_silo_trains(kind: str, batch_size: int) -> None:
    samples = picture_samples([0, {"three images": 3}.get(kind, 9)], flat=kind == "flat")
    if kind == "one class":
        samples.labels[:] = 2
    one = algorithm(batch_size=batch_size)
    update = one.train(silo(samples, {MODEL: initial(one)}))
    assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
    assert update.metrics["loss"] > 0


@pytest.mark.parametrize("preset", ["feddann", "feddann-ramp", "feddann-power-of-choice-fedavgm", "feddann-biased"])
def test_a_run_repeats_and_resumes(start: Start, preset: str) -> None:
    resident, again, forgetful = (start(preset, {"lr": 0.01}, rounds=2) for _ in range(3))
    digest = resident.digest
    assert again.digest == digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    published = uploaded(resident)
    assert published["train"] == set(algorithm().upload)
    assert set(published) == ({"join", "loss", "train"} if "power" in preset else {"join", "train"})
    kept = {key for silo in resident.silos for path in (resident.folder / "private" / silo).rglob("*.safetensors") for key in Payload(path)}
    assert kept == set()


def test_a_run_records_domain_accuracy(start: Start) -> None:
    run = start("feddann", {"lr": 0.01}, rounds=1)
    run.go()
    for name in run.silos:
        update = read_update(run.federation, name, 1, "train")
        assert update is not None and 0 <= (update.metrics["domain_accuracy"] or 0.0) <= 1
