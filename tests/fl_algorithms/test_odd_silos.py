"""Silos as they happen to be: of one image, of three, of one class, all pictures alike. Every algorithm trains on them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

import fl_algorithms.fedavg
from components.federation import Federation, resolve
from components.spec import parse_spec
from fl_algorithms.adain import adain, overall_style, single_styles
from fl_algorithms.augment import transfer_style
from fl_algorithms.errors import Unusable
from fl_algorithms.feddg import amplitudes, mix_amplitudes
from fl_algorithms.losses import multi_kernel_mmd, supervised_contrastive
from fl_algorithms.mixstyle import mix_statistics
from fl_algorithms.models import Network, build_model
from fl_algorithms.samples import Batch, Samples
from tests.federations import ALGORITHMS, values
from tests.in_memory import CLASSES, DOMAINS, Rounds, samples

few = settings(derandomize=True, deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
TRAINING = ("acquire", "classify", "train")  # stages in which a silo goes through all its images


def federation(name: str, odd: Samples, **hyper: Any) -> Rounds:
    """An odd silo beside an ordinary one; DeepAll has one silo, the odd one."""
    silos = {"odd": odd, "plain": samples(4, 1)}
    return Rounds(name, {"odd": odd} if name == "deepall" else silos, **hyper)


def finite(rounds: Rounds) -> None:
    for update in rounds.updates:
        assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
        assert all(torch.isfinite(torch.tensor(value)) for value in update.metrics.values())
    assert all(torch.isfinite(tensor).all() for tensors in rounds.parts.values() for tensor in tensors.values())


@pytest.mark.parametrize("name", ALGORITHMS)
@few
@example(1, 2)
@example(3, 2)
@example(3, 64)
@given(st.integers(1, 9), st.integers(1, 5))
def test_any_number_of_images_and_any_batch_size(name: str, images: int, batch_size: int) -> None:
    rounds = federation(name, samples(images), batch_size=max(2, batch_size) if name == "csac" else batch_size).go()
    finite(rounds)
    rounds.reported.clear()
    rounds.silos["odd"].exchanges(2)[-1].silo(rounds.silo("odd", 2))
    assert all(done == total for stage, (done, total) in rounds.reported.items() if stage in TRAINING), "an odd last batch was left out"


def normalising(*task: Any) -> Network:
    """A network that cannot take one image: it normalises over the batch what has no other extent."""
    network = build_model(*task)
    network.neck = nn.Sequential(network.neck, nn.BatchNorm1d(network.head.in_features))
    return network


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_batch_of_one_is_left_out_where_the_network_cannot_take_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fl_algorithms.fedavg, "build_model", normalising)
    hyper = {"batch_size": 2, **({"styles": 1} if name == "ccst" else {})}  # with more, CCST has every image more than once
    rounds = federation(name, samples(5), **hyper).go()
    finite(rounds)
    rounds.silos["odd"].exchanges(2)[-1].silo(rounds.silo("odd", 2))
    assert rounds.reported["train"] == (4, 5)
    with pytest.raises(Unusable, match="silo odd: a batch of one image"):
        federation(name, samples(1), **hyper).go()


@pytest.mark.parametrize("odd", [partial(samples, 7, classes=1), partial(samples, 3), partial(samples, 5, flat=True)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_class_three_images_equal_images(name: str, odd: partial[Samples]) -> None:
    """Also the gradients of the next step are finite."""
    rounds = federation(name, odd()).go()
    finite(rounds)
    one, silo = rounds.silos["odd"], rounds.silo("odd", 2)
    model = one.received_model(silo)
    one.begin(model, silo)
    loss = one.loss(model, next(silo.train.batches(4)), silo)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert loss.isfinite() and gradients and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_images_of_all_silos_equal(name: str) -> None:
    rounds = Rounds(name, {"odd": samples(5, flat=True)} if name == "deepall" else {s: samples(5, flat=True) for s in "ab"})
    finite(rounds.go())


@few
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_images_without_contrast_take_a_style(level: float, foreign: float, share: float) -> None:
    """There is nothing to divide by but eps: the result is flat too, of the mean that was asked for."""
    images = torch.full((3, 2, 8, 8), level)
    mean, std = torch.full((3, 2, 1, 1), foreign), torch.full((3, 2, 1, 1), 0.3)
    expected = images + share * (foreign - level)
    shares = torch.full((3,), share)
    both, partner = torch.cat([images, torch.full_like(images, foreign)]), torch.arange(6).roll(3)
    found = {
        "FedCCRL": transfer_style(images, mean, std, shares),
        "FedDG": mix_amplitudes(images, amplitudes(torch.full_like(images, foreign), 1), shares, 1),
        "MixStyle": mix_statistics(both, 1 - shares.repeat(2), partner)[:3],
    }
    for name, styled in found.items():
        torch.testing.assert_close(styled, expected, rtol=0, atol=2e-3, msg=name)
    torch.testing.assert_close(adain(images, mean[:, :, 0, 0], std[:, :, 0, 0]), torch.full_like(images, foreign), rtol=0, atol=2e-3)
    assert all(part.isfinite().all() for style in (overall_style([images]), single_styles(images)) for part in style)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_of_equal_rows_have_moderate_gradients(dtype: torch.dtype) -> None:
    """Bandwidth and norms of nothing must not turn rounding into a step."""
    for value in (0.0, 0.1, 3.7, 1e4):
        x, y = (torch.full((4, 33), value, dtype=dtype, requires_grad=True) for _ in range(2))
        loss = multi_kernel_mmd(x, y) + supervised_contrastive(x, y, torch.tensor([0, 0, 1, 2]), 0.1)
        loss.backward()
        assert loss.isfinite()
        for rows in (x, y):
            assert rows.grad is not None and rows.grad.abs().max() < 10, (value, rows.grad.abs().max())


# ---- labels


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Sizes of all batches that are gathered, each of which is checked."""
    gather, sizes = Samples.batches, set()

    def checked(self: Samples, size: int, order: torch.Tensor | None = None) -> Iterator[Batch]:
        for batch in gather(self, size, order):
            sizes.add(len(batch.labels))
            assert batch.labels.dtype == batch.domains.dtype == torch.int64
            assert len(batch.images) == len(batch.labels) == len(batch.domains)
            assert batch.labels.min() >= 0 and batch.labels.max() < CLASSES
            assert batch.domains.min() >= 0 and batch.domains.max() < DOMAINS
            yield batch

    monkeypatch.setattr(Samples, "batches", checked)
    return sizes


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_sees_a_label_or_a_domain_out_of_range(name: str, watched: set[int]) -> None:
    federation(name, samples(7)).go()
    assert {4} <= watched


@few
@given(
    st.permutations(["ash", "birch", "cedar"]),
    st.integers(1, 3),
    st.sampled_from([{"rule": "domain"}, {"rule": "dirichlet", "silos": 2}, {"rule": "lambda", "silos": 3, "heterogeneity": 0.5}]),
)
def test_labels_and_domains_of_every_silo(pictures: Path, sources: list[str], count: int, partition: dict[str, Any]) -> None:
    """Whatever the order of the sources and whichever of them are used: numbers from 0, without a gap."""
    spec = resolve(parse_spec(values(pictures, sources=sources[:count], partition=partition)))
    one = Federation(spec, "run", Path())
    shares = one.shares(spec.sources or ())
    seen: set[tuple[int, int]] = set()
    for share in shares.values():
        for rows in (share.train, share.validation):
            found = one.samples(rows)
            seen |= set(zip(found.domains.tolist(), found.labels.tolist(), strict=True))
            names = [domain for domain, index in sorted(rows.items()) for _ in index]
            assert [sorted(sources[:count])[number] for number in found.domains] == names
    assert seen == {(domain, label) for domain in range(one.task.domains) for label in range(one.task.classes)}
