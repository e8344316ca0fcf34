"""Augmentation recipes: each operation against torchvision's, image by image; draws against their law; where training uses them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as V

from fl_algorithms import augment
from fl_algorithms.colour import BRIGHTNESS, CONTRAST, HUE, SATURATION, blend, greyed, jitter, turn_hue
from fl_algorithms.contract import Task
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.geometry import draw_boxes, resized_crop
from fl_algorithms.randomness import stream
from fl_algorithms.recipes import RECIPES, Recipe
from tests.federations import Run, Start, picture_samples, silo

FLOAT32 = 5e-6  # torchvision turns the hue in float32, whatever it is given
GA = Recipe(0.7, jitter=0.4, grey=0.1)
APPLIED: dict[int, Callable[[Tensor, float], Tensor]] = {
    BRIGHTNESS: V.adjust_brightness,
    CONTRAST: V.adjust_contrast,
    SATURATION: V.adjust_saturation,
    HUE: V.adjust_hue,
}


def pictures(count: int, channels: int = 3, size: int = 24) -> Tensor:
    """Noise, a smooth half, grey and pure colours, black and white; float64, so that only another formula makes a difference."""
    images = torch.rand(count, channels, size, size, generator=stream(1, "pictures"), dtype=torch.float64)
    images[:, :, : size // 2] = torch.linspace(0, 1, size, dtype=torch.float64)
    images[:, :, :2] = 0.5
    images[:, :, 2:4] = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)[:channels, None, None]
    images[:, :, 4, :2], images[:, :, 4, 2:] = 0, 1
    return images


# ---- crops


@pytest.mark.parametrize("antialias", [False, True])
def test_crops_equal_torchvision_antialiased_or_not(antialias: bool) -> None:
    images = pictures(40)
    boxes = draw_boxes(40, 24, 0.3, stream(2, "boxes"))
    boxes[0] = torch.tensor([0, 0, 24, 24])
    boxes[1] = torch.tensor([3, 23, 20, 1])
    flip = torch.arange(40) % 2 == 1
    ours = resized_crop(images, boxes, flip)
    for found, image, box, flipped in zip(ours, images, boxes.tolist(), flip, strict=True):
        theirs = V.resized_crop(image, *box, size=[24, 24], antialias=antialias)
        torch.testing.assert_close(found, V.horizontal_flip(theirs) if flipped else theirs, atol=1e-9, rtol=0)
    torch.testing.assert_close(resized_crop(images.float(), boxes, flip), ours.float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("smallest", [0.05, 0.7, 0.8])
def test_boxes_follow_torchvisions_law(smallest: float) -> None:
    count, size = 3000, 224
    boxes = draw_boxes(count, size, smallest, stream(3, "boxes"))
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= size).all()
    assert (boxes[:, 2:] >= 1).all()
    reference = v2.RandomResizedCrop(size, (smallest, 1.0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = [reference.make_params([torch.empty(1, size, size)]) for _ in range(count)]
    theirs = torch.tensor([[one["top"], one["left"], one["height"], one["width"]] for one in drawn])
    for of in (*range(4), "area", "ratio"):
        a, b = ((_measured(one, of)).numpy() for one in (boxes, theirs))
        assert stats.ks_2samp(a, b).pvalue > 0.005, of


def _measured(boxes: Tensor, of: int | str) -> Tensor:
    if isinstance(of, int):
        return boxes[:, of].double()
    return boxes[:, 2].double() * boxes[:, 3] if of == "area" else boxes[:, 3].double() / boxes[:, 2]


def test_a_box_that_never_fits_is_the_whole_image() -> None:
    boxes = draw_boxes(4000, 32, 0.999, stream(4, "boxes"))
    whole = (boxes == torch.tensor([0, 0, 32, 32])).all(1)
    assert 0 < (~whole).sum() < 4000
    assert (boxes[:, 2] * boxes[:, 3] >= 0.9 * 32**2).all()


# ---- colours


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("operation", [BRIGHTNESS, CONTRAST, SATURATION])
def test_blends_equal_torchvision(operation: int, channels: int) -> None:
    images, factors = pictures(9, channels), torch.linspace(0.6, 1.4, 9, dtype=torch.float64)
    ours = blend(images, torch.full((9,), operation), factors)
    theirs = torch.stack([APPLIED[operation](image, factor) for image, factor in zip(images, factors.tolist(), strict=True)])
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


def test_hue_equals_torchvision() -> None:
    images, turns = pictures(11), torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)
    theirs = torch.stack([V.adjust_hue(image, turn) for image, turn in zip(images, turns.tolist(), strict=True)])
    torch.testing.assert_close(turn_hue(images, turns), theirs, atol=FLOAT32, rtol=0)
    torch.testing.assert_close(turn_hue(images.float(), turns.float()), theirs.float(), atol=1e-5, rtol=0)


def test_grey_equals_torchvision_for_the_chosen() -> None:
    images = pictures(4)
    found = greyed(images, torch.tensor([True, False, True, False]))
    torch.testing.assert_close(found[::2], V.rgb_to_grayscale(images[::2], num_output_channels=3), atol=1e-9, rtol=0)
    assert torch.equal(found[1::2], images[1::2])
    one_channel = pictures(2, channels=1)
    assert torch.equal(greyed(one_channel, torch.tensor([True, False])), one_channel)


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_equals_torchvision_in_every_order(channels: int) -> None:
    order = torch.tensor(list(itertools.permutations(range(4))))
    images = pictures(len(order), channels)
    amounts = 0.6 + 0.8 * torch.rand(len(order), 4, generator=stream(5, "amounts"), dtype=torch.float64)
    amounts[:, HUE] -= 1
    ours = jitter(images, order, amounts)
    for found, image, operations, amount in zip(ours, images, order.tolist(), amounts.tolist(), strict=True):
        for operation in operations:
            image = APPLIED[operation](image, amount[operation])
        torch.testing.assert_close(found, image, atol=FLOAT32, rtol=0)


# ---- whole recipes


def test_a_recipe_equals_torchvision_with_the_same_draws() -> None:
    images = pictures(32)
    draws = GA._draw(stream(6, "recipe"), 32, 24)
    assert draws.grey.any()
    assert not draws.grey.all()
    ours = GA(images, stream(6, "recipe"))
    for number, image in enumerate(images):
        image = V.resized_crop(image, *draws.boxes[number].tolist(), size=[24, 24], antialias=True)
        image = V.horizontal_flip(image) if draws.flip[number] else image
        for operation in draws.order[number].tolist():
            image = APPLIED[operation](image, float(draws.amounts[number, operation]))
        image = V.rgb_to_grayscale(image, num_output_channels=3) if draws.grey[number] else image
        torch.testing.assert_close(ours[number], image, atol=FLOAT32, rtol=0)


def test_draws_follow_the_recipe() -> None:
    draws = GA._draw(stream(7, "draws"), 6000, 32)
    orders = draws.order @ torch.tensor([1000, 100, 10, 1])
    assert stats.chisquare(orders.unique(return_counts=True)[1].numpy()).pvalue > 0.01
    assert len(orders.unique()) == 24
    for operation, low in ((BRIGHTNESS, 0.6), (CONTRAST, 0.6), (SATURATION, 0.6), (HUE, -0.4)):
        assert stats.kstest(draws.amounts[:, operation].numpy(), stats.uniform(low, 0.8).cdf).pvalue > 0.01
    assert stats.binomtest(int(draws.flip.sum()), 6000, 0.5).pvalue > 0.01
    assert stats.binomtest(int(draws.grey.sum()), 6000, 0.1).pvalue > 0.01


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe is not None])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_recipe_repeats_stays_in_range_and_leaves_its_input_alone(name: Any, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, images = RECIPES[name], pictures(6, channels).float()
    assert recipe is not None
    before, view = images.clone(), recipe(images, stream(8, "recipe"))
    assert torch.equal(images, before)
    assert (view.shape, view.dtype) == (images.shape, images.dtype)
    assert view.min() >= 0
    assert view.max() <= 1 + 1e-6
    assert torch.equal(view, recipe(images, stream(8, "recipe")))
    assert not torch.equal(view, recipe(images, stream(9, "recipe")))
    torch.testing.assert_close(recipe(images.contiguous(memory_format=torch.channels_last), stream(8, "recipe")), view)
    pixels = (images * 255).to(torch.uint8)
    torch.testing.assert_close(recipe(pixels, stream(8, "recipe")), recipe(pixels / 255, stream(8, "recipe")))
    assert view.is_contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(augment, "CACHED_VALUES", 1)
    torch.testing.assert_close(recipe(images, stream(8, "recipe")), view)


# ---- in training

TASK = Task("small-cnn", 3, 3, 16, (0.5,) * 3, (0.25,) * 3)


def test_batches_are_augmented_before_they_are_normalised_and_images_are_not() -> None:
    samples = picture_samples([10, 4])
    changed = samples.augmented(lambda images: images.flip(3) / 510)
    order = torch.arange(13, -1, -1)
    for plain, batch in zip(samples.batches(5, order), changed.batches(5, order), strict=True):
        pixels = plain.images * 0.25 + 0.5
        torch.testing.assert_close(batch.images, (pixels.flip(3) / 2 - 0.5) / 0.25, atol=1e-5, rtol=0)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch.labels, plain.labels)
        assert torch.equal(batch.domains, plain.domains)
    assert torch.equal(changed.images(order), samples.images(order))


def test_without_a_recipe_training_sees_the_silo_as_it_is() -> None:
    place = silo(picture_samples([4]), {})
    assert FedAvg(FedAvgHyper(), TASK).augmented(place) is place


def test_draws_belong_to_the_silo_and_the_round() -> None:
    def first(name: str = "a", round: int = 1) -> Tensor:
        place = FedAvg(FedAvgHyper(augment="domainbed"), TASK).augmented(silo(picture_samples([6]), {}, name, round))
        return next(place.train.batches(6)).images

    assert torch.equal(first(), first())
    assert not torch.equal(first(), first("b"))
    assert not torch.equal(first(), first(round=2))


@pytest.mark.parametrize(
    ("algorithm", "hyper", "passes"),
    [
        ("fedavg", {"epochs": 2}, 4),
        ("csac", {"acquisition_epochs": 3, "epochs": 1}, 4),
        ("fedadg", {"classification_epochs": 1, "epochs": 2}, 6),
        ("ccst", {"styles": 3}, 6),
    ],
)
def test_all_training_and_nothing_else_is_augmented(
    algorithm: str, hyper: dict[str, Any], passes: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in algorithms with training loops of their own. Two rounds."""
    seen = 0

    def count(_: Recipe, images: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal seen
        seen += len(images)
        return images / 255

    monkeypatch.setattr(Recipe, "__call__", count)
    run: Run = start(algorithm, hyper={"augment": "ga", **hyper})
    trained = sum(len(run.role(name).samples("train")) for name in run.silos)
    run.result()
    assert seen == passes * trained


def test_a_run_with_augmentation_repeats_and_differs_from_one_without(start: Start) -> None:
    plain, first, second = (start("fedavg", hyper={"augment": name}).digest for name in ("none", "ga", "ga"))
    assert first == second
    assert first != plain
