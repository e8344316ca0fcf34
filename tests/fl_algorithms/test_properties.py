"""What must not matter: the names of silos, the order of images in a batch, the numbering of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl_algorithms.contract import Layout, Server, Silo
from fl_algorithms.copa import mean_cross_entropy
from fl_algorithms.fedadg import discriminator_loss, extractor_loss, generator_loss
from fl_algorithms.feddann import domain_loss
from fl_algorithms.fediir import classifier_gradient, squared_distance
from fl_algorithms.fedsr import conditional_divergence, l2r
from fl_algorithms.losses import cross_entropy, jensen_shannon, layer_attention, multi_kernel_mmd, supervised_contrastive
from fl_algorithms.mixstyle import mix_statistics
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Batch
from tests.federations import ALGORITHMS, Uploads
from tests.in_memory import CLASSES, DOMAINS, Rounds, algorithm, samples

few = settings(derandomize=True, deadline=None, max_examples=15)
WIDTH = 6


def permutations(count: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(count))


# ---- images of a batch, in float64: rows [n,...] of what belongs to one image are moved together


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(seed, "properties"), dtype=torch.float64)


HEAD = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)
DOMAIN_HEAD = nn.Linear(WIDTH, DOMAINS, dtype=torch.float64)
ENSEMBLE = draw(1, 3, CLASSES, WIDTH), draw(2, 3, CLASSES)


def gradient_penalty(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    _, gradient = classifier_gradient(HEAD, x, labels, 0.1)
    return squared_distance(gradient, [torch.ones_like(part) for part in gradient])


def attention(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    first, second = x.view(-1, 2, 1, 3), y.view(-1, 2, 1, 3)
    return layer_attention([first, second], [second, first])


# two sets of rows [n,WIDTH] and labels [n] -> a loss
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "cross-entropy": lambda x, y, labels: cross_entropy(HEAD(x), labels, 0.1, "eps/(C-1)"),
    "contrast": lambda x, y, labels: supervised_contrastive(x, y, labels, 0.1),
    "contrast, released": lambda x, y, labels: supervised_contrastive(x, y, labels, 0.1, self_in_positives=True),
    "Jensen-Shannon": lambda x, y, labels: jensen_shannon([x, y, x + y]),
    "MMD": lambda x, y, labels: multi_kernel_mmd(x, y) if len(x) > 1 else x.sum() * 0,
    "layer attention": attention,
    "gradient penalty": gradient_penalty,
    "frozen classifiers": lambda x, y, labels: mean_cross_entropy(x, *ENSEMBLE, labels, 0.1),
    "domain": lambda x, y, labels: domain_loss(x, DOMAIN_HEAD, labels % DOMAINS, 0.3, "loss"),
    "L2R": lambda x, y, labels: l2r(x) + l2r(y, "squared"),
    "CMI": lambda x, y, labels: conditional_divergence(x, y, draw(3, CLASSES, WIDTH)[labels], x, draw(4)).sum(1).mean(),
    "discriminator": lambda x, y, labels: discriminator_loss(x[:, 0], y[:, 0], "lsgan") + discriminator_loss(x[:, 0], y[:, 0], "eq2"),
    "extractor, generator": lambda x, y, labels: extractor_loss(x[:, 0]) + generator_loss(y[:, 0], "eq4"),
}


@pytest.mark.parametrize("name", LOSSES)
@few
@given(st.integers(1, 9).flatmap(permutations), st.integers(0, 99))
def test_the_order_of_images_does_not_change_a_loss(name: str, order: list[int], seed: int) -> None:
    x, y = draw(seed, 2, len(order), WIDTH)
    labels = torch.randint(CLASSES, (len(order),), generator=stream(seed, "labels"))
    found = LOSSES[name](x, y, labels)
    assert found.isfinite().all()
    torch.testing.assert_close(LOSSES[name](x[order], y[order], labels[order]), found, rtol=1e-10, atol=1e-10)


@few
@given(permutations(5), permutations(5), st.integers(0, 99))
def test_mmd_compares_sets(first: list[int], second: list[int], seed: int) -> None:
    x, y = draw(seed, 2, 5, WIDTH)
    found = multi_kernel_mmd(x, y)
    torch.testing.assert_close(multi_kernel_mmd(x[first], y[second]), found, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(multi_kernel_mmd(y, x), found, rtol=1e-10, atol=1e-10)


@few
@given(permutations(6), permutations(6), st.integers(0, 99))
def test_mixed_statistics_follow_the_image(order: list[int], partner: list[int], seed: int) -> None:
    maps, share = draw(seed, 6, 2, 3, 3), draw(seed + 1, 6).sigmoid()
    moved_to = torch.tensor(order).argsort()
    found = mix_statistics(maps[order], share[order], moved_to[torch.tensor(partner)[order]])
    torch.testing.assert_close(found, mix_statistics(maps, share, torch.tensor(partner))[order], rtol=1e-10, atol=1e-10)


# ---- images of a batch and numbers of classes, in the loss of each algorithm as a silo computes it

# Where a loss draws random numbers for each row, the settings under which it draws none or the same for all.
WITHOUT_DRAWS: dict[str, dict[str, Any]] = {
    "fedccrl": {"ccdt": False, "difp": False},
    "feddg": {"mix": "full"},  # with one foreign row there is no choice either
    "fedsr": {"probabilistic": False, "alpha_cmi": 0.0},
    "mixstyle": {"probability": 0.0},
}


@cache
def about_to_train(name: str, *hyper: tuple[str, Any]) -> Rounds:
    silos = {"a": samples(8, 0), "b": samples(8, 1)}
    return Rounds(name, {"a": silos["a"]} if name == "deepall" else silos, **dict(hyper)).go(but_the_last=True)


def loss(one: Any, silo: Silo, batch: Batch) -> float:
    """Of the received model, without dropout."""
    model = one.received_model(silo)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    model.zero_grad()
    one.begin(model, silo)
    return float(one.loss(model, batch, silo).detach())


def batch_of(count: int) -> Batch:
    images, labels, _ = next(samples(count, 7).batches(count))
    return Batch(images, labels, torch.arange(count) % DOMAINS)


@pytest.mark.parametrize("name", ALGORITHMS)
@few
@given(st.integers(1, 7).flatmap(permutations))
def test_the_order_of_images_does_not_matter_to_any_algorithm(name: str, order: list[int]) -> None:
    rounds, batch = about_to_train(name, *WITHOUT_DRAWS.get(name, {}).items()), batch_of(len(order))
    expected = loss(rounds.silos["a"], rounds.silo("a", 2), batch)
    found = loss(rounds.silos["a"], rounds.silo("a", 2), Batch(*(part[order] for part in batch)))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def renumbered(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """What has a row or column for each class, with classes in another order."""
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("layers.0.weight"):  # FedADG's players get the class vector behind their other inputs
            tensor = torch.cat([tensor[:, :-CLASSES], tensor[:, -CLASSES:][:, order]], 1)
        for dimension, size in enumerate(tensor.shape):
            tensor = tensor.index_select(dimension, order) if size == CLASSES else tensor
        result[name] = tensor
    return result


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        *((name, ()) for name in ALGORITHMS),
        ("csac", [("align", "logits")]),
        ("fediir", [("classifier", "mlp")]),
        ("fedadg", [("one_hot", 0.7)]),
    ],
)
@few
@given(permutations(CLASSES))
def test_the_numbers_of_classes_do_not_matter_to_any_algorithm(name: str, hyper: Any, order: list[int]) -> None:
    rounds, batch, moved = about_to_train(name, *hyper), batch_of(6), torch.tensor(order)
    silo = rounds.silo("a", 2)
    expected = loss(rounds.silos["a"], silo, batch)
    received = {part: renumbered(tensors, moved) if part in ("model", "gradient") else tensors for part, tensors in silo.received.items()}
    other = replace(silo, received=received, private=renumbered(silo.private, moved))
    found = loss(rounds.silos["a"], other, batch._replace(labels=moved.argsort()[batch.labels]))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


# ---- silos


def uploads(layout: Layout, silo: int, *step: str | int) -> dict[str, Tensor]:
    draws, found = stream(silo, "uploads", *step), {}
    for name, wanted in layout.items():
        shape = [2 + silo if length is None else length for length in wanted.shape]
        whole = torch.randint(DOMAINS, shape, generator=draws) if not wanted.dtype.is_floating_point else None
        found[name] = torch.randn(shape, generator=draws) if whole is None else whole.to(wanted.dtype)
    return found


def served(name: str, names: list[str], rounds: int = 3) -> list[Any]:
    """What the server broadcasts in each exchange when silo i, which always sends the same, is called names[i]."""
    one, parts, private = algorithm(name), {}, {}
    found = []
    for round in range(rounds + 1):
        for step in one.exchanges(round):
            sent = {names[i]: uploads(step.upload, i, round, step.name) for i in range(len(names))}
            told = {
                names[i]: dict(zip(("loss", "before", "after"), torch.rand(3, generator=stream(i, "told", round)).tolist(), strict=True))
                for i in range(len(names))
            }
            roster = {name: 10 + 7 * names.index(name) for name in sorted(names)}
            broadcast = step.server(Server(round, rounds, 0, roster, parts, private), Uploads(sent, told))
            parts = {**parts, **broadcast.parts}
            found.append(broadcast)
    return found


def as_rows(tensors: Mapping[str, Tensor]) -> list[list[float]]:
    """A pool is a set: rows of all its tensors side by side, sorted."""
    rows = [tensor.flatten(1) for tensor in tensors.values() if tensor.ndim > 1]
    return sorted(torch.cat(rows, 1).tolist())


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "deepall"])
@settings(few, max_examples=5)
@given(permutations(4))
def test_the_names_of_silos_do_not_matter_to_any_server(name: str, order: list[int]) -> None:
    before = list("abcd")
    after = [before[i] for i in order]
    new = dict(zip(before, after, strict=True))
    for old, now in zip(served(name, before), served(name, after), strict=True):
        assert {new[silo]: weight for silo, weight in old.weights.items()} == pytest.approx(now.weights)
        assert (now.participants is None) == (old.participants is None)
        assert sorted(new[silo] for silo in old.participants or ()) == sorted(now.participants or ())
        for part, tensors in old.parts.items():
            for key, tensor in tensors.items():
                stem, _, silo = key.rpartition(".")
                own = f"{stem}.{new[silo]}" if silo in new else key  # a style is published under its silo's name
                torch.testing.assert_close(now.parts[part][own], tensor, rtol=1e-5, atol=1e-6)
        for part, by_silo in old.personal.items():
            assert {new[silo]: as_rows(tensors) for silo, tensors in by_silo.items()} == {
                silo: as_rows(tensors) for silo, tensors in now.personal[part].items()
            }
