"""What a report computes from a model: against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fl_algorithms.explain import Answers, answer, choose, confusion, embed, grad_cam, spread
from fl_algorithms.models import MODELS, Network, build_model
from tests.federations import picture_samples


def test_spread_takes_every_class_as_often_as_it_can() -> None:
    labels = np.array([0] * 50 + [1] * 5 + [2] * 50)
    rows = spread(labels, 25, 0, "test")
    assert np.bincount(labels[rows]).tolist() == [10, 5, 10]
    assert (np.diff(rows) > 0).all()
    assert spread(labels, 25, 0, "test").tolist() == rows.tolist()
    assert spread(labels, 25, 1, "test").tolist() != rows.tolist()
    assert spread(labels, 1000, 0, "test").tolist() == list(range(105))
    assert spread(labels[:0], 10, 0, "test").tolist() == []


def test_confusion_counts_pairs() -> None:
    assert confusion(np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 2]), 3).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_the_surest_of_each_class_come_first() -> None:
    labels, predicted = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 1, 0, 0, 1])
    answers = Answers(labels, predicted, np.array([0.9, 0.95, 0.4, 0.6, 0.7, 0.8], np.float32), None)
    assert choose(answers, 3) == ([1, 2, 0], [5, 3, 4])
    assert choose(answers, 1) == ([1], [5])


def averaging(weights: torch.Tensor) -> Network:
    """The image itself as maps, averaged, then a linear head: Grad-CAM of it can be written down."""
    head = nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    head.weight.data.copy_(weights)
    return Network(nn.Sequential(nn.Identity()), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), head, taps=()).eval()


def test_grad_cam_is_the_weighted_sum_of_the_maps() -> None:
    torch.manual_seed(0)
    weights, images = torch.randn(4, 3), torch.randn(2, 3, 5, 5)
    found = grad_cam(averaging(weights), images.clone(), [1, 3])
    expected = torch.stack([(weights[c][:, None, None] * images[i]).sum(0).clamp_min(0) for i, c in enumerate([1, 3])])
    expected = expected / expected.amax((1, 2), keepdim=True)
    assert found is not None
    assert found == pytest.approx(expected.detach().numpy(), abs=1e-5)
    assert found.min() >= 0 and found.max() == pytest.approx(1.0)


def test_grad_cam_without_maps_or_without_evidence() -> None:
    images = torch.ones(1, 3, 4, 4)
    assert grad_cam(nn.Flatten(), images, [0]) is None
    assert grad_cam(averaging(torch.ones(2, 3)), torch.ones(1, 3, 1, 1), [0]) is None
    against = grad_cam(averaging(-torch.ones(2, 3)), images, [0])
    assert against is not None and against.max() == 0.0


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"alexnet", "resnet-50"}))
def test_every_kind_of_backbone_can_be_asked_and_watched(name: str) -> None:
    model = build_model(name, 3, 3, 32).eval()
    samples = picture_samples([4], size=32)
    answers = answer(model, samples, 0)
    assert answers.features is not None and len(answers.features) == len(answers) == 4
    with torch.inference_mode():
        logits = model(samples.images(torch.arange(4)))
    assert answers.predicted.tolist() == logits.argmax(1).tolist()
    assert answers.confidence == pytest.approx(logits.softmax(1).amax(1).numpy(), abs=1e-5)
    maps = grad_cam(model, samples.images(torch.arange(4)), answers.predicted.tolist())
    assert maps is None or (maps.shape[0] == 4 and np.isfinite(maps).all())


def test_the_plane_keeps_groups_apart_and_is_the_same_every_time() -> None:
    draw = np.random.default_rng(0)
    features = np.concatenate([draw.normal(0, 0.1, (30, 8)), draw.normal(5, 0.1, (30, 8))])
    places = embed(features, 0)
    assert places is not None and places.shape == (60, 2)
    assert places.min() >= -1e-6 and places.max() <= 1 + 1e-6
    first, second = places[:30].mean(0), places[30:].mean(0)
    assert np.linalg.norm(places[:30] - first, axis=1).max() < np.linalg.norm(places[:30] - second, axis=1).min()
    again = embed(features, 0)
    assert again is not None and (again == places).all()


def test_too_little_to_arrange() -> None:
    assert embed(np.zeros((20, 4)), 0) is None
    assert embed(np.random.default_rng(0).normal(size=(3, 4)), 0) is None
    odd = np.random.default_rng(0).normal(size=(12, 1))
    odd[0] = np.nan
    assert embed(odd, 0) is not None
