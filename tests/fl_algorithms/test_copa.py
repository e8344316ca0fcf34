"""COPA: the ensemble, the frozen classifiers, how they are assembled, and the hybrid normalisation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from components.wire import Payload
from fl_algorithms import copa, fedavg
from fl_algorithms.contract import Silo, Task, TensorShape
from fl_algorithms.copa import (
    BIAS,
    COPA,
    DOMAIN,
    WEIGHT,
    BatchInstanceNorm,
    COPAHyper,
    classifier_logits,
    domain_of,
    log_mean_probability,
    mean_cross_entropy,
)
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.models import Network, build_model
from fl_algorithms.samples import Batch, Samples
from tests.federations import Start, Uploads, copied, global_model, picture_samples, server, silo, uploaded

CNN = Task("small-cnn", 3, 3, 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), domains=3)
MAPS = torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]], [[[0.0, 2.0], [2.0, 4.0]]]], dtype=torch.float64)


def algorithm(**hyper: Any) -> COPA:
    return COPA(COPAHyper(**{"batch_size": 8, **hyper}), CNN)


def initial(one: FedAvg[Any]) -> dict[str, torch.Tensor]:
    return copied(one.initialise(server({}), Uploads({})).parts[MODEL])


def trained(one: FedAvg[Any], where: Silo) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # the caller of a step does: dropout draws from the global stream
    return copied(one.train(where).tensors)


def of_domain(domain: int, count: int = 12) -> Samples:
    return picture_samples([count if number == domain else 0 for number in range(3)])


def different(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same model with classifiers that differ."""
    draw = torch.Generator().manual_seed(7)
    return {name: t + torch.randn(t.shape, generator=draw) * 0.1 if name.startswith("head.") else t for name, t in state.items()}


# ---- the ensemble


def test_oracle_of_the_ensemble() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    assert log_mean_probability(logits).exp()[0].tolist() == pytest.approx([0.5748692497, 0.4251307503], abs=1e-8)
    assert logits.mean(1).softmax(1)[0].tolist() == pytest.approx([0.6224593312, 0.3775406688], abs=1e-8)  # what it is not


def test_predictions_are_probabilities_averaged_over_all_classifiers() -> None:
    one = algorithm()
    state = different(initial(one))
    images = next(picture_samples([5]).batches(5)).images
    predictor = one.predictor({MODEL: state}, torch.device("cpu"))
    with torch.no_grad():
        found = predictor(images)
        features = one.network.eval().features(images)
        expected = torch.stack([F.linear(features, state["head.weight"][k], state["head.bias"][k]).softmax(1) for k in range(3)]).mean(0)
    assert torch.allclose(found.exp(), expected, atol=1e-6)
    assert torch.allclose(found.exp().sum(1), torch.ones(5), atol=1e-6)
    labels = torch.tensor([0, 1, 2, 1, 0])
    assert F.cross_entropy(found, labels).item() == pytest.approx(F.nll_loss(expected.log(), labels).item(), abs=1e-6)


# ---- the loss


def test_the_frozen_classifiers_loss_is_the_mean_of_theirs() -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 1, 2, 2])
    weight, bias = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    apart = [F.cross_entropy(F.linear(features, weight[k], bias[k]), labels, label_smoothing=0.1) for k in range(2)]
    assert mean_cross_entropy(features, weight, bias, labels, 0.1).item() == pytest.approx(sum(apart).item() / 2, abs=1e-12)
    assert classifier_logits(features, weight, bias).shape == (5, 2, 3)
    assert torch.autograd.gradcheck(lambda h: mean_cross_entropy(h, weight, bias, labels, 0.1), features)
    assert torch.autograd.gradcheck(lambda h: log_mean_probability(classifier_logits(h, weight, bias)), features)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_loss_is_the_own_classifiers_plus_the_weighted_others(weight: float) -> None:
    one = algorithm(lambda_frozen=weight)
    state = different(initial(one))
    where = silo(of_domain(1), {MODEL: state})
    model = one.load(state, torch.device("cpu")).eval()
    one.begin(model, where)
    images, labels, domains = next(where.train.batches(12))
    losses = [F.cross_entropy(F.linear(model.features(images), state["head.weight"][k], state["head.bias"][k]), labels) for k in range(3)]
    expected = losses[1] + weight * (losses[0] + losses[2]) / 2
    assert one.loss(model, Batch(images, labels, domains), where).item() == pytest.approx(expected.item(), abs=1e-6)
    order = torch.tensor([4, 2, 11, 0, 1, 7, 3, 6, 5, 9, 8, 10])
    assert one.loss(model, Batch(images[order], labels[order], domains), where).item() == pytest.approx(expected.item(), abs=1e-6)


def test_frozen_classifiers_reach_the_extractor_and_nothing_else() -> None:
    gradients = {}
    for weight in (0.0, 1.0):
        one = algorithm(lambda_frozen=weight)
        state = different(initial(one))
        where = silo(of_domain(0), {MODEL: state})
        model = one.load(state, torch.device("cpu")).eval()
        one.begin(model, where)
        model.zero_grad()
        one.loss(model, next(where.train.batches(12)), where).backward()
        assert one._own is not None and one._own.weight.grad is not None
        gradients[weight] = (model.get_parameter("body.0.0.weight").grad.clone(), one._own.weight.grad.clone())
        assert all(not tensor.requires_grad for tensor in model.get_submodule("head").buffers())
    assert not torch.allclose(gradients[0.0][0], gradients[1.0][0], atol=1e-4)
    assert torch.allclose(gradients[0.0][1], gradients[1.0][1], atol=1e-7)


def test_training_moves_the_own_classifier_and_no_bit_of_the_others() -> None:
    one = algorithm(weight_decay=0.1, lr=0.05)
    state = different(initial(one))
    found = trained(one, silo(of_domain(2), {MODEL: copied(state)}))
    assert one._foreign is not None
    assert torch.equal(one._foreign[0], state["head.weight"][:2]) and torch.equal(one._foreign[1], state["head.bias"][:2])
    assert torch.equal(one.network.state_dict()["head.weight"], state["head.weight"])
    assert not torch.equal(found[WEIGHT], state["head.weight"][2]) and not torch.equal(found[BIAS], state["head.bias"][2])
    assert not torch.equal(found["body.0.0.weight"], state["body.0.0.weight"])


# ---- what leaves, what the server makes of it


def test_a_silo_sends_its_own_classifier_only() -> None:
    upload = algorithm().upload
    assert not [name for name in upload if name.startswith("head.")]
    assert upload[WEIGHT] == TensorShape(torch.float32, (3, 128))
    assert upload[BIAS] == TensorShape(torch.float32, (3,))
    assert upload[DOMAIN] == TensorShape(torch.int64, ())
    one = algorithm()
    found = one.train(silo(of_domain(1), {MODEL: initial(one)})).tensors
    assert {name: TensorShape(t.dtype, tuple(t.shape)) for name, t in found.items()} == upload
    assert int(found[DOMAIN]) == 1


@pytest.mark.parametrize(("counts", "domain"), [([5], 0), ([0, 0, 4], 2), ([2, 5, 4], 1), ([3, 3], 0)])
def test_a_silo_of_several_domains_speaks_for_the_largest(counts: list[int], domain: int) -> None:
    assert domain_of(silo(picture_samples(counts), {})) == domain


def sent(state: dict[str, torch.Tensor], domain: int, value: float) -> dict[str, torch.Tensor]:
    extractor = {name: torch.full_like(t, int(value)) for name, t in state.items() if not name.startswith("head.")}
    return {**extractor, WEIGHT: torch.full((3, 128), value), BIAS: torch.full((3,), value), DOMAIN: torch.tensor(domain)}


def test_extractors_are_averaged_and_classifiers_assembled() -> None:
    one = algorithm()
    start = different(initial(one))
    uploads = {name: trained(one, silo(of_domain(k), {MODEL: start}, name)) for k, name in enumerate("abc")}
    model = one.combine(server({"a": 1, "b": 2, "c": 1}, {MODEL: start}), Uploads(uploads)).parts[MODEL]
    assert model.keys() == start.keys()
    for k, name in enumerate("abc"):
        assert torch.equal(model["head.weight"][k], uploads[name][WEIGHT])
        assert torch.equal(model["head.bias"][k], uploads[name][BIAS])
    for name in ("body.0.0.weight", "gates.0", "body.0.1.running_mean"):
        expected = sum(share * uploads[silo][name].double() for silo, share in (("a", 0.25), ("b", 0.5), ("c", 0.25)))
        assert torch.allclose(model[name].double(), expected, atol=1e-6)


def test_silos_of_one_domain_share_a_classifier_and_absent_or_unknown_domains_change_nothing() -> None:
    one = algorithm()
    start = different(initial(one))
    roster = {"a": 1, "b": 3, "c": 4, "d": 8}
    uploads = {"a": sent(start, 2, 1.0), "b": sent(start, 2, 5.0), "c": sent(start, 0, 7.0), "d": sent(start, 99, 9.0)}
    broadcast = one.combine(server(roster, {MODEL: start}), Uploads(uploads))
    model = broadcast.parts[MODEL]
    assert (model["head.weight"][0] == 7.0).all()
    assert torch.equal(model["head.weight"][1], start["head.weight"][1]) and torch.equal(model["head.bias"][1], start["head.bias"][1])
    assert torch.allclose(model["head.bias"][2], torch.tensor(1.0 * 0.25 + 5.0 * 0.75))
    assert broadcast.weights == pytest.approx({"a": 1 / 16, "b": 3 / 16, "c": 0.25, "d": 0.5})


def test_with_one_shared_classifier_and_no_judges_it_is_fedavg_bit_for_bit() -> None:
    ours = algorithm(lambda_frozen=0.0, bin_stages=0, epochs=2)
    theirs = FedAvg(FedAvgHyper(optimizer="sgd", schedule="constant", lr=0.01, weight_decay=5e-4, batch_size=8, epochs=2), CNN)
    roster = {"a": 9, "b": 14}
    start, plain = initial(ours), initial(theirs)
    assert all(torch.equal(start["head.weight"][k], plain["head.weight"]) for k in range(3))
    for round in (1, 2):
        found, expected = (
            Uploads({name: trained(one, silo(of_domain(0, n), {MODEL: state}, name, round)) for name, n in roster.items()})
            for one, state in ((ours, start), (theirs, plain))
        )
        start = copied(ours.combine(server(roster, {MODEL: start}, round), found).parts[MODEL])
        plain = copied(theirs.combine(server(roster, {MODEL: plain}, round), expected).parts[MODEL])
        for name, tensor in plain.items():
            assert torch.equal(start[name][0] if name.startswith("head.") else start[name], tensor), name


# ---- normalisation


def hybrid(gate: float, channels: int = 1) -> BatchInstanceNorm:
    return BatchInstanceNorm(nn.BatchNorm2d(channels), nn.Parameter(torch.full((channels,), gate, dtype=torch.float64))).double()


def test_oracle_of_the_hybrid_normalisation() -> None:
    found = hybrid(0.7)(MAPS).flatten(1)
    assert found[0].tolist() == pytest.approx([-1.062457429, -0.1341639445, 0.7941295403, 1.722423025], abs=1e-8)
    assert found[1].tolist() == pytest.approx([-1.414211402, -0.3299827979, -0.3299827979, 0.7542458060], abs=1e-8)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gate", [0.0, 1.0])
def test_the_gates_ends_are_batch_and_instance_normalisation(gate: float, training: bool) -> None:
    torch.manual_seed(0)
    maps, plain, ours = torch.randn(5, 4, 3, 3, dtype=torch.float64), nn.BatchNorm2d(4).double(), hybrid(gate, 4)
    for module in (plain, ours):
        module.train()(torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1)).double() * 2 + 1)
        module.train(training)
        nn.init.constant_(module.weight, 1.5)
        nn.init.constant_(module.bias, -0.5)
    expected = plain(maps) if gate else F.instance_norm(maps) * 1.5 - 0.5
    assert torch.allclose(ours(maps), expected, rtol=0, atol=1e-10)
    if gate == 0:
        plain(maps)
    for name, buffer in plain.named_buffers():
        assert torch.allclose(ours.get_buffer(name).double(), buffer.double(), rtol=0, atol=1e-12), name


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_the_normalisation_agree_with_finite_differences(training: bool) -> None:
    torch.manual_seed(0)
    maps = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    gate = torch.tensor([0.3, 0.8], dtype=torch.float64, requires_grad=True)

    def normalised(maps: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        module = BatchInstanceNorm(nn.BatchNorm2d(2), nn.Parameter(gate)).double().train(training)
        module._gate = (gate,)
        result: torch.Tensor = module(maps)
        return result

    assert torch.autograd.gradcheck(normalised, (maps, gate))


def test_equal_pictures_and_single_values_are_survived_or_named() -> None:
    assert torch.equal(hybrid(0.5)(torch.full((3, 1, 2, 2), 4.0, dtype=torch.float64)), torch.zeros(3, 1, 2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="more than 1 value"):
        hybrid(0.5)(torch.ones(1, 1, 1, 1, dtype=torch.float64))


@pytest.mark.parametrize(("stages", "gated"), [(0, []), (1, ["0", "1", "2"]), (2, ["0", "1", "2", "3"]), (9, ["0", "1", "2", "3"])])
def test_the_first_stages_are_gated(stages: int, gated: list[str]) -> None:
    network = algorithm(bin_stages=stages).build()
    assert [name for name, m in network.body.named_modules() if isinstance(m, BatchInstanceNorm)] == [f"{name}.1" for name in gated]
    assert len(list(network.get_submodule("gates").parameters())) == len(gated)
    assert all((gate == 1).all() for gate in network.get_submodule("gates").parameters())


def test_a_resnets_first_two_layers_are_gated() -> None:
    with torch.device("meta"):
        network = COPA(COPAHyper(), replace(CNN, backbone="resnet-18", image_size=32)).build()
    names = [name for name, module in network.body.named_modules() if isinstance(module, BatchInstanceNorm)]
    assert {name.partition(".")[0] for name in names} == {"bn1", "layer1", "layer2"}


def test_gates_are_trained_clipped_after_every_step_and_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    class Watched(BatchInstanceNorm):
        def forward(self, maps: torch.Tensor) -> torch.Tensor:
            seen.append(self._gate[0].detach().clone())
            return super().forward(maps)

    def gates(**hyper: Any) -> torch.Tensor:
        one = algorithm(lr=2.0, weight_decay=0.0, epochs=2, **hyper)  # so large that gates would leave their range
        found = trained(one, silo(of_domain(0, 20), {MODEL: initial(one)}))
        return torch.cat([tensor for name, tensor in found.items() if name.startswith("gates.")])

    def inside(values: torch.Tensor) -> bool:
        return bool(((values >= 0) & (values <= 1)).all())

    monkeypatch.setattr(copa, "BatchInstanceNorm", Watched)
    for buffers in ("average", "frozen"):
        final = gates(bn_buffers=buffers)
        assert inside(final) and (final < 1).any()
        assert inside(torch.cat(seen)) and (torch.cat(seen) < 1).any()
    monkeypatch.setattr(copa, "clip_gates", lambda _: None)
    assert not inside(gates())


def test_a_weight_file_without_gates_is_taken_over(tmp_path: Path) -> None:
    donor = build_model("small-cnn", 3, 3, 16).state_dict()
    save_file(donor, tmp_path / "donor.safetensors")
    found = initial(COPA(COPAHyper(), replace(CNN, weights=str(tmp_path / "donor.safetensors"))))
    assert all(torch.equal(found[name], donor[name]) for name in donor if name.startswith("body."))


# ---- refusals, odd silos, whole runs


@pytest.mark.parametrize(
    ("fields", "hyper", "message"),
    [
        ({"domains": 1}, {}, "needs at least 2 source domains, found 1"),
        ({}, {"bn_buffers": "local"}, "hyper.bn_buffers: copa averages the statistics"),
    ],
)
def test_what_cannot_be_served_is_refused(fields: dict[str, Any], hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        COPA(COPAHyper(**hyper), replace(CNN, **fields)).refuse(["a", "b"])
    algorithm().refuse(["a", "b"])


def test_a_backbone_without_batch_normalisation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedavg, "build_model", lambda *_: Network(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Flatten(), nn.Linear(4, 3), ("0",)))
    with pytest.raises(Unusable, match="has no batch normalisation there; set it to 0"):
        algorithm().refuse(["a", "b"])
    algorithm(bin_stages=0).refuse(["a", "b"])


@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("kind", ["odd", "one class", "three images", "flat", "frozen statistics"])
def test_any_silo_trains(kind: str, batch_size: int) -> None:
    samples = picture_samples([0, {"three images": 3}.get(kind, 9)], flat=kind == "flat")
    if kind == "one class":
        samples.labels[:] = 2
    one = algorithm(batch_size=batch_size, bn_buffers="frozen" if kind == "frozen statistics" else "average")
    update = one.train(silo(samples, {MODEL: initial(one)}))
    assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
    assert update.metrics["loss"] > 0


def test_a_run_repeats_resumes_and_assembles_what_silos_sent(start: Start) -> None:
    resident, again, forgetful = (start("copa", rounds=2) for _ in range(3))
    digest = resident.digest
    assert again.digest == digest
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest
    assert uploaded(resident)["train"] == set(algorithm().upload)
    model = global_model(resident, 2)
    assert model["head.weight"].shape[0] == 3
    assert not torch.equal(model["head.weight"][0], model["head.weight"][1])
    kept = {key for silo in resident.silos for path in (resident.folder / "private" / silo).rglob("*.safetensors") for key in Payload(path)}
    assert kept == set()


@pytest.mark.parametrize("fields", [{"silos_per_domain": 2}, {"partition": {"rule": "dirichlet", "silos": 4, "alpha": 1.0}}])
def test_domains_may_be_split_or_mixed(start: Start, fields: dict[str, Any]) -> None:
    assert not start("copa", rounds=1, **fields).result()["rejected"]
