"""CSAC: the fusion oracles of specs/CSAC.md, the frozen model, and what calibration aligns."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fl_algorithms import csac
from fl_algorithms.csac import CSAC, FROZEN, PROJECTIONS, CSACHyper, distances, fusion_weights, layer_weights, projection
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL
from fl_algorithms.samples import Batch, Samples
from tests.federations import SMALL_TASK, Uploads, copied, server, silo

TASK = dataclasses.replace(SMALL_TASK, backbone="small-cnn", image_size=16)
MODELS = [[1.0, 0.0, 2.0], [2.0, 1.0, 0.0], [6.0, -1.0, 1.0]]
TOLERANCE = 1e-8


def uploads(models: list[list[float]] = MODELS, **more: list[Any]) -> Uploads:
    return Uploads(
        {
            str(i): {
                "m.w": torch.tensor(model, dtype=torch.float64),
                **{f"m.{name}": torch.tensor(values[i]) for name, values in more.items()},
            }
            for i, model in enumerate(models)
        }
    )


def algorithm(**hyper: Any) -> CSAC:
    return CSAC(CSACHyper(**{"epochs": 1, "acquisition_epochs": 1, "batch_size": 8, "proj_channels": 4, **hyper}), TASK)


def samples(count: int = 20) -> Samples:
    pixels = torch.randint(256, (count, 16, 16, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).numpy()
    return Samples(
        [(pixels, (pixels[:, 0, 0, 0] % 3).astype("int64"), torch.arange(count).numpy())], TASK.mean, TASK.std, torch.device("cpu")
    )


# ---- fusion


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("l2", [2.23606797749979, 1.7320508075688772, 3.1622776601683795]),
        ("l1", [3.0, 3.0, 4.0]),
        ("cosine", [0.29289321881345254, 0.15147186257614298, 0.025320565519103555]),
    ],
)
def test_distance_oracle(metric: str, expected: list[float]) -> None:
    assert distances(uploads(), "m.w", metric) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("fusion", "metric", "weights", "fused"),
    [
        (
            "divergence",
            "l2",
            (0.3135965853614543, 0.242910870506485, 0.4434925441320607),
            (3.460373591166788, -0.2005816736, 1.070685714855),
        ),
        ("divergence", "l1", (0.3, 0.3, 0.4), (3.3, -0.1, 1.0)),
        (
            "divergence",
            "cosine",
            (0.6235941437452, 0.32249625589599, 0.05390960035878),
            (1.59204425768990, 0.26858665553721, 1.30109788784923),
        ),
        ("similarity", "l2", (0.3335444414016329, 0.4306040222561934, 0.23585153634217368), None),
        ("average", "l2", (1 / 3, 1 / 3, 1 / 3), (3.0, 0.0, 1.0)),
    ],
)
def test_fusion_oracle(fusion: str, metric: str, weights: tuple[float, ...], fused: tuple[float, ...] | None) -> None:
    assert layer_weights(uploads(), fusion, metric)["m.w"] == pytest.approx(weights, abs=TOLERANCE)
    broadcast = algorithm(fusion=fusion, metric=metric).fuse(server({"0": 1, "1": 1, "2": 1}), uploads())
    expected = fused or [sum(w * model[i] for w, model in zip(weights, MODELS, strict=True)) for i in range(3)]
    assert broadcast.parts[MODEL]["m.w"].tolist() == pytest.approx(expected, abs=TOLERANCE)
    assert [broadcast.weights[name] for name in ("0", "1", "2")] == pytest.approx(weights, abs=TOLERANCE)


def test_fusion_does_not_look_at_the_number_of_images() -> None:
    few, many = (algorithm().fuse(server({"0": 1, "1": images, "2": 1}), uploads()).parts[MODEL]["m.w"] for images in (1, 10**6))
    assert torch.equal(few, many)


@pytest.mark.parametrize("fusion", ["divergence", "similarity", "average"])
def test_equal_tensors_are_averaged(fusion: str) -> None:
    same = uploads([[1.0, 2.0, 3.0]] * 3)
    assert layer_weights(same, fusion)["m.w"] == pytest.approx([1 / 3] * 3)
    fused = algorithm(fusion=fusion).fuse(server({}), same).parts[MODEL]["m.w"]
    assert fused.tolist() == pytest.approx([1.0, 2.0, 3.0], abs=1e-15)


def test_one_silo_at_the_mean_counts_nothing_or_everything() -> None:
    assert fusion_weights([0.0, 1.0, 3.0], "divergence") == [0.0, 0.25, 0.75]
    assert fusion_weights([0.0, 1.0, 3.0], "similarity") == [1.0, 0.0, 0.0]
    assert fusion_weights([0.0, 0.0, 3.0], "similarity") == [0.5, 0.5, 0.0]
    fused = algorithm().fuse(server({}), uploads([[0.0, 0.0], [2.0, 2.0], [1.0, 1.0]])).parts[MODEL]["m.w"]
    assert fused.tolist() == pytest.approx([1.0, 1.0], abs=TOLERANCE)


def test_counters_are_the_maximum_and_weigh_nothing() -> None:
    counted = uploads(num_batches_tracked=[3, 9, 5])
    broadcast = algorithm().fuse(server({}), counted)
    assert broadcast.parts[MODEL]["m.num_batches_tracked"].item() == 9
    assert layer_weights(counted, granularity="module")["m.w"] == pytest.approx(layer_weights(uploads())["m.w"])


def test_tensors_of_a_module_may_share_their_weights() -> None:
    biased = uploads(bias=[[0.0], [0.0], [3.0]])
    apart, together = layer_weights(biased), layer_weights(biased, granularity="module")
    assert apart["m.bias"] == pytest.approx([0.25, 0.25, 0.5])
    assert apart["m.w"] != pytest.approx(together["m.w"])
    sums = [d + b for d, b in zip(distances(biased, "m.w", "l2"), distances(biased, "m.bias", "l2"), strict=True)]
    assert together["m.w"] == together["m.bias"] == pytest.approx([s / sum(sums) for s in sums], abs=TOLERANCE)


# ---- rounds


def test_exchanges() -> None:
    one = algorithm()
    assert [[exchange.name for exchange in one.exchanges(round)] for round in (0, 1, 2, 9)] == [
        ["join"],
        ["acquire"],
        ["calibrate"],
        ["calibrate"],
    ]
    assert one.exchanges(1)[0].upload == one.exchanges(2)[0].upload == one.upload


def acquired(one: CSAC) -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A silo after round 1, the model it received, and what it uploaded."""
    start = copied(one.initialise(server({}), Uploads({})).parts[MODEL])
    client = silo(samples(), {MODEL: start})
    return client, start, copied(one.acquire(client).tensors)


def test_the_frozen_model_is_the_acquired_one_and_stays_as_it_is() -> None:
    one = algorithm(lr=0.1)
    client, start, update = acquired(one)
    assert {name: t for name, t in client.private.items() if name.startswith(FROZEN)}.keys() == {FROZEN + name for name in update}
    before = copied(client.private)
    assert all(torch.equal(before[FROZEN + name], update[name]) for name in update)
    calibrated = copied(one.train(dataclasses.replace(client, round=2, received={MODEL: start})).tensors)
    assert all(torch.equal(client.private[FROZEN + name], before[FROZEN + name]) for name in update)
    assert calibrated.keys() == update.keys()
    assert not torch.equal(calibrated["head.weight"], start["head.weight"])
    assert one._frozen is not None
    assert not one._frozen.training and not any(parameter.requires_grad for parameter in one._frozen.parameters())
    plain, images = one.blank().eval(), client.train.images(torch.arange(4))
    plain.load_state_dict(update)
    with torch.no_grad():
        found, expected = one._frozen.forward_stages(images), plain.forward_stages(images)
    torch.testing.assert_close([*found[0], found[1]], [*expected[0], expected[1]], rtol=1e-4, atol=1e-5)


def test_projections_are_kept_only_where_asked() -> None:
    for persist in (True, False):
        one = algorithm(proj_persist=persist)
        client, start, _ = acquired(one)
        one.train(dataclasses.replace(client, round=2, received={MODEL: start}))
        assert any(name.startswith(PROJECTIONS) for name in client.private) == persist


@pytest.mark.parametrize("trainable", [True, False])
def test_projections_are_trained_only_where_asked(trainable: bool) -> None:
    one = algorithm(proj_trainable=trainable, lr=0.1)
    client, start, _ = acquired(one)
    one.train(dataclasses.replace(client, round=2, received={MODEL: start}))
    first = copied({name: t for name, t in client.private.items() if name.startswith(PROJECTIONS)})
    one.train(dataclasses.replace(client, round=3, received={MODEL: start}))
    changed = [name for name, tensor in first.items() if not torch.equal(tensor, client.private[name])]
    assert bool(changed) == trainable


@pytest.mark.parametrize(("size", "width"), [(2, 4), (2, 2), (7, 28), (7, 14), (7, 7), (4, 13), (4, 6), (3, 7)])
def test_a_projection_maps_every_stage_to_the_last_ones_size(size: int, width: int) -> None:
    stage = torch.zeros(2, 6, width, width)
    assert projection(stage, 5, size)(stage).shape == (2, 5, size, size)


def test_a_missing_frozen_model_is_named() -> None:
    one = algorithm()
    client, start, _ = acquired(one)
    client.private.clear()
    with pytest.raises(Unusable, match="silo silo: its frozen model of round 1 is not on its volume"):
        one.train(dataclasses.replace(client, round=2, received={MODEL: start}))


# ---- the calibration loss


class Fixed(torch.nn.Module):
    """Two stages and logits that do not depend on the image."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.forward_stages(images)[1]

    def forward_stages(self, images: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        stage = images[:, :1, :2, :2] * self.value
        return [stage, stage + 1], images[:, :3, 0, 0] * self.value


def prepared(**hyper: Any) -> tuple[Any, torch.Tensor, torch.Tensor, Any]:
    one: Any = algorithm(**hyper)
    one._frozen = Fixed(2.0)
    one._projections = torch.nn.ModuleDict({f"{side}{i}": torch.nn.Identity() for side in ("fused", "local") for i in range(2)})
    images = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return one, images, torch.tensor([0, 1, 2, 0, 1, 2]), Fixed(0.5)


def test_total_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    one, images, labels, model = prepared(lambda_align=0.6)
    monkeypatch.setattr(csac, "cross_entropy", lambda *_: torch.tensor(0.7, dtype=torch.float64))
    monkeypatch.setattr(one, "_align", lambda *_: torch.tensor(1.3, dtype=torch.float64))
    assert one.loss(model, Batch(images, labels, torch.zeros_like(labels)), None).item() == pytest.approx(1.48, abs=TOLERANCE)


def test_every_pair_of_layers_is_aligned_with_its_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    one, images, labels, model = prepared(lambda_align=1.0)
    pairs: list[tuple[float, float]] = []

    def discrepancy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pairs.append((x.mean().item(), y.mean().item()))
        return torch.tensor(10.0 ** (len(pairs) - 1))

    monkeypatch.setattr(csac, "multi_kernel_mmd", discrepancy)
    monkeypatch.setattr(csac, "layer_attention", lambda a, b, kind: torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    found = one.loss(model, Batch(images, labels, torch.zeros_like(labels)), None) - F.cross_entropy(model(images), labels)
    assert found.item() == pytest.approx(4321.0, rel=1e-5)
    fused, local = images[:, :1, :2, :2].mean().item() * 0.5, images[:, :1, :2, :2].mean().item() * 2
    assert pairs == [
        pytest.approx(pair, abs=1e-5) for pair in ((fused, local), (fused, local + 1), (fused + 1, local), (fused + 1, local + 1))
    ]
    pairs.clear()
    even = prepared(lambda_align=1.0, attention="none")[0]
    even._frozen, even._projections = one._frozen, one._projections
    found = even.loss(model, Batch(images, labels, torch.zeros_like(labels)), None) - F.cross_entropy(model(images), labels)
    assert found.item() == pytest.approx(1111 / 2, rel=1e-5)


@pytest.mark.parametrize("align", ["layers", "same-layer", "logits", "none"])
def test_what_is_aligned(align: str) -> None:
    one, images, labels, model = prepared(align=align)
    value = one.loss(model, Batch(images, labels, torch.zeros_like(labels)), None)
    plain = F.cross_entropy(model(images), labels)
    assert (value.item() == plain.item()) == (align == "none")
    value.backward()
    assert model.value.grad is not None
    assert one._frozen.value.grad is None


def test_same_layers_are_aligned_alone_and_by_either_discrepancy(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(*(lambda images, labels: (images, labels, labels))(*prepared()[1:3]))
    for discrepancy, expected in (("mmd", 20.0), ("mse", None)):
        one, images, labels, model = prepared(align="same-layer", lambda_align=1.0, discrepancy=discrepancy)
        monkeypatch.setattr(csac, "multi_kernel_mmd", lambda x, y: torch.tensor(10.0))
        found = one.loss(model, batch, None) - F.cross_entropy(model(images), labels)
        stage = images[:, :1, :2, :2]
        assert found.item() == pytest.approx(expected or 2 * float((1.5 * stage).square().mean()), rel=1e-4)


@pytest.mark.parametrize("attention", ["both", "position", "channel"])
def test_the_attention_asked_for_is_used(monkeypatch: pytest.MonkeyPatch, attention: str) -> None:
    one, images, labels, model = prepared(attention=attention)
    asked: list[str] = []
    monkeypatch.setattr(csac, "layer_attention", lambda a, b, kind: asked.append(kind) or torch.eye(2))
    one.loss(model, Batch(images, labels, labels), None)
    assert asked == [attention]


def test_calibration_without_cross_entropy_is_alignment_alone() -> None:
    one, images, labels, model = prepared(calibration_ce=False, lambda_align=1.0)
    full = prepared(lambda_align=1.0)[0]
    batch = Batch(images, labels, labels)
    difference = full.loss(model, batch, None) - one.loss(model, batch, None)
    assert difference.item() == pytest.approx(F.cross_entropy(model(images), labels).item(), abs=1e-5)
    assert one.loss(model, Batch(images[:1], labels[:1], labels[:1]), None).item() == 0.0


def test_a_batch_of_one_has_nothing_to_compare() -> None:
    one, images, labels, model = prepared()
    assert one.loss(model, Batch(images[:1], labels[:1], labels[:1]), None).item() == F.cross_entropy(model(images[:1]), labels[:1]).item()


# ---- what it cannot do


@pytest.mark.parametrize(
    ("hyper", "silos", "message"),
    [
        ({}, ["a"], "needs at least 2 silos"),
        ({"participants": 1}, ["a", "b"], "csac trains every silo in every round"),
        ({"bn_buffers": "local"}, ["a", "b"], "use average or frozen"),
        ({"bn_buffers": "pooled"}, ["a", "b"], "use average or frozen"),
        ({"calibration_ce": False, "align": "none"}, ["a", "b"], "nothing to learn from"),
        ({"calibration_ce": False, "lambda_align": 0.0}, ["a", "b"], "nothing to learn from"),
    ],
)
def test_refusals(hyper: dict[str, Any], silos: list[str], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        algorithm(**hyper).refuse(silos)
    algorithm().refuse(["a", "b"])
