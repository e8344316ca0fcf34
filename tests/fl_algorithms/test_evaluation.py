"""Counting right answers, and the three rules that choose the round to quote."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_algorithms.evaluation import Counts, count, select
from tests.federations import Linear, random_samples


def test_counts_do_not_depend_on_the_batch_size_and_need_no_gradient() -> None:
    torch.manual_seed(0)
    model, samples = Linear(48, 3), random_samples(50)
    images, labels, _ = next(samples.batches(50))
    logits = model(images).detach()
    expected = Counts(int((logits.argmax(1) == labels).sum()), 50, float(F.cross_entropy(logits, labels, reduction="sum")))
    for size in (1, 7, 50, 64):
        found = count(model, samples, size)
        assert (found.correct, found.total) == (expected.correct, expected.total)
        assert found.loss_sum == pytest.approx(expected.loss_sum, rel=1e-9)
    assert 0 < expected.correct < 50


class Spy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.training, torch.is_grad_enabled()))
        return images.new_zeros(len(images), 3)


def test_the_mode_is_the_callers_and_gradients_are_off() -> None:
    spy = Spy()
    count(spy.train(), random_samples(3))
    count(spy.eval(), random_samples(3))
    assert spy.seen == [(True, False), (False, False)]


def test_no_images_count_nothing_and_never_reach_the_model() -> None:
    spy = Spy()
    assert count(spy, random_samples(0)) == Counts(0, 0, 0.0)
    assert spy.seen == []


@pytest.mark.parametrize(
    ("validation", "target", "expected"),
    [
        ([0.5, 0.9, 0.7], [0.1, 0.2, 0.3], (0.3, 0.2, 0.3)),
        ([0.5, 0.9, 0.7], [0.4, 0.2, 0.3], (0.3, 0.2, 0.4)),
        ([0.9, 0.9, 0.9], [0.1, 0.3, 0.2], (0.2, 0.1, 0.3)),
        ([None, 0.2, None], [0.5, 0.1, 0.4], (0.4, 0.1, 0.5)),
        ([0.9, 0.8, 0.1], [None, 0.2, 0.3], (0.3, 0.2, 0.3)),
        ([0.9, 0.1], [0.5, None], (None, 0.5, 0.5)),
        ([None, None], [0.5, 0.6], (0.6, None, 0.6)),
        ([0.5, 0.6], [None, None], (None, None, None)),
        ([], [], (None, None, None)),
        ([0.0], [0.0], (0.0, 0.0, 0.0)),
    ],
)
def test_the_three_rules(validation: list[float | None], target: list[float | None], expected: tuple[float | None, ...]) -> None:
    found = select(validation, target)
    assert (found["last"], found["best_validation"], found["oracle"]) == expected


def test_confusion_counts_every_image_once_and_is_made_on_request_only() -> None:
    class Fixed(torch.nn.Module):
        """Says 0, 1, 2, 0, 1, 2, ... whatever it is shown."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.eye(3)[torch.arange(len(images)) % 3]

    samples = random_samples(70)
    counts = count(Fixed(), samples, batch_size=30, confusion=True)
    expected = torch.zeros(3, 3, dtype=torch.int32)
    for place, label in enumerate(samples.labels.tolist()):
        expected[label, place % 30 % 3] += 1
    assert counts.confusion is not None and torch.equal(counts.confusion, expected)
    assert int(counts.confusion.sum()) == 70 and int(counts.confusion.trace()) == counts.correct
    assert count(Fixed(), samples).confusion is None
