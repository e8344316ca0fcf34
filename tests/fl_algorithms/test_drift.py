"""Drift: worked out by hand, and silent where there is nothing to say."""

from __future__ import annotations

import pytest
import torch

from fl_algorithms.drift import drift


def test_drift_is_the_norm_of_the_change_without_running_statistics_and_counters() -> None:
    before = {"a": torch.tensor([1.0, 2.0]), "b": torch.zeros(2, 2), "bn.running_mean": torch.zeros(3), "n": torch.tensor(1)}
    after = {"a": torch.tensor([4.0, 2.0]), "b": torch.full((2, 2), 2.0), "bn.running_mean": torch.full((3,), 9.0), "n": torch.tensor(7)}
    assert drift(after, before)["drift"] == pytest.approx((3**2 + 4 * 2**2) ** 0.5)
    assert drift(before, before) == {"drift": 0.0}


def test_an_update_that_is_no_model_has_no_drift() -> None:
    assert drift({}, {"a": torch.zeros(1)}) == {}
    assert drift({"statistics": torch.ones(1)}, {"a": torch.zeros(1)}) == {}
