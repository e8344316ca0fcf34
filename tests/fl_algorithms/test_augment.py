"""CCDT and AugMix against the oracles of the specification, operations against torchvision, draws against their law."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as V

from fl_algorithms import augment, augmix
from fl_algorithms.augment import channel_statistics, sample_beta, transfer_style
from fl_algorithms.augmix import AugMix, affine_matrix, mix, warp
from fl_algorithms.randomness import stream

ONE_LEVEL = 1 / 255


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_transfer_style_oracle() -> None:
    image = double([[[[1, 2], [3, 4]], [[0, 0], [1, 3]]]])
    mean, std = channel_statistics(image, eps=0)
    torch.testing.assert_close(mean, double([2.5, 1.0]).view(1, 2, 1, 1), atol=1e-8, rtol=0)
    torch.testing.assert_close(std, double([1.118033988749895, 1.224744871391589]).view(1, 2, 1, 1), atol=1e-8, rtol=0)
    foreign = double([10.0, -1.0]).view(1, 2, 1, 1), double([2.0, 0.5]).view(1, 2, 1, 1)
    expected = [
        [[2.579179606750063, 3.776393202250021], [4.973606797749979, 6.170820393249937]],
        [[-0.35206207261596567, -0.35206207261596567], [0.5, 2.2041241452319316]],
    ]
    moved = transfer_style(image, *foreign, double([0.25]), eps=0)
    torch.testing.assert_close(moved, double([expected]), atol=1e-8, rtol=0)


def test_transfer_style_keeps_or_replaces_each_image_by_its_own_share() -> None:
    images = torch.rand(2, 3, 8, 8, generator=stream(1, "images"))
    mean, std = torch.full((2, 3, 1, 1), 0.4), torch.full((2, 3, 1, 1), 0.1)
    moved = transfer_style(images, mean, std, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(moved[0], images[0])
    new_mean, new_std = channel_statistics(moved[1:], eps=0)
    torch.testing.assert_close(new_mean, mean[1:])
    torch.testing.assert_close(new_std, std[1:], rtol=1e-4, atol=0)


def test_statistics_of_a_flat_channel_stay_usable() -> None:
    mean, std = channel_statistics(torch.full((1, 1, 4, 4), 0.5))
    assert mean.item() == 0.5
    assert std.item() == pytest.approx(1e-3)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_sample_beta_has_the_distribution_and_repeats(alpha: float) -> None:
    draws = sample_beta(alpha, (4000,), stream(5, "beta"))
    # For small alpha many draws are nearer to 1 than float32 resolves; below 1/2 the law can be tested exactly.
    low = draws[draws < 0.5].double().numpy()
    assert stats.kstest(low, lambda x: 2 * stats.beta(alpha, alpha).cdf(x)).pvalue > 0.01
    assert stats.binomtest(len(low), len(draws)).pvalue > 0.01
    assert torch.equal(draws, sample_beta(alpha, (4000,), stream(5, "beta")))
    assert not torch.equal(draws, sample_beta(alpha, (4000,), stream(6, "beta")))


def photographs(channels: int) -> Tensor:
    """uint8 images with gradients, flat regions, noise, and one channel of a single value."""
    ramp = torch.linspace(0, 1, 32)
    smooth = 0.2 + 0.6 * (ramp[:, None] * ramp[None, :]).expand(4, channels, 32, 32)
    noise = torch.rand(4, channels, 32, 32, generator=stream(2, "noise"))
    images = (smooth + 0.2 * noise * torch.tensor([0.0, 0.3, 1.0, 1.0]).view(4, 1, 1, 1)).clamp(0, 1)
    images[1, :, 8:20, 8:20] = 0.9
    images[2, 0] = 0.5
    return (images * 255).round().to(torch.uint8)


PIXELWISE: list[tuple[Callable[[Tensor, Tensor], Tensor], float, Callable[[Tensor], Tensor]]] = [
    (augmix.autocontrast, 0.0, V.autocontrast),
    (augmix.equalize, 0.0, V.equalize),
    (augmix.posterize, 0.24, lambda image: V.posterize(image, 4)),
    (augmix.posterize, -0.26, lambda image: V.posterize(image, 3)),
    (augmix.posterize_rounded, 2 / 9, lambda image: V.posterize(image, 3)),
    (augmix.solarize, 0.2, lambda image: V.solarize(image, 255 * 0.8)),
    (augmix.solarize, -0.3, lambda image: V.solarize(image, 255 * 0.7)),
    (augmix.brightness, 2 / 9, lambda image: V.adjust_brightness(image, 1.2)),
    (augmix.color, -2 / 9, lambda image: V.adjust_saturation(image, 0.8)),
    (augmix.contrast, 2 / 9, lambda image: V.adjust_contrast(image, 1.2)),
    (augmix.sharpness, -2 / 9, lambda image: V.adjust_sharpness(image, 0.8)),
    (augmix.sharpness, 2 / 9, lambda image: V.adjust_sharpness(image, 1.2)),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("operation", "level", "reference"), PIXELWISE)
def test_pixelwise_operations_equal_torchvision(
    operation: Callable[[Tensor, Tensor], Tensor], level: float, reference: Callable[[Tensor], Tensor], channels: int
) -> None:
    images = photographs(channels)
    ours = operation(images / 255, torch.full((len(images),), level))
    theirs = torch.stack([reference(image) for image in images]) / 255
    # torchvision truncates to whole levels (and contrast's mean too), hence up to 1.2 of them.
    torch.testing.assert_close(ours, theirs, atol=1.2 * ONE_LEVEL, rtol=0)
    if operation in (augmix.equalize, augmix.posterize, augmix.posterize_rounded, augmix.solarize):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def sheared(x: float, y: float) -> Callable[[Tensor], Tensor]:
    angles = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return lambda image: V.affine(image, 0, [0, 0], 1, angles, InterpolationMode.BILINEAR, center=[0, 0])


def moved(x: int, y: int) -> Callable[[Tensor], Tensor]:
    return lambda image: V.affine(image, 0, [x, y], 1, [0, 0], InterpolationMode.BILINEAR)


@pytest.mark.parametrize(
    ("name", "level", "reference"),
    [
        ("rotate", 0.3, lambda image: V.rotate(image, 9.0, InterpolationMode.BILINEAR)),
        ("rotate", -0.2, lambda image: V.rotate(image, -6.0, InterpolationMode.BILINEAR)),
        ("shear_x", 0.3, sheared(0.09, 0)),
        ("shear_y", -0.3, sheared(0, -0.09)),
        ("translate_x", 0.3, moved(2, 0)),
        ("translate_y", -0.3, moved(0, -3)),
    ],
)
def test_geometric_operations_equal_torchvision_also_on_oblong_images(
    name: str, level: float, reference: Callable[[Tensor], Tensor]
) -> None:
    images = photographs(3)[..., :24]
    ours = warp(images / 255, [affine_matrix(name, level, 32, 24)] * len(images))
    theirs = torch.stack([reference(image) for image in images]) / 255
    torch.testing.assert_close(ours, theirs, atol=0.51 * ONE_LEVEL, rtol=0)


def test_mix_oracle() -> None:
    chains = double([2.0, 4.0, 10.0]).view(3, 1, 1, 1, 1)
    value = mix(double([[[[1.0]]]]), chains, double([[0.2], [0.5], [0.3]]), double([0.3]))
    assert value.item() == pytest.approx(2.32, abs=1e-8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("op_set", ["paper9", "torchvision13"])
def test_augmix_stays_in_range_and_repeats(op_set: Literal["paper9", "torchvision13"], channels: int) -> None:
    images = photographs(channels).float() / 255
    before = images.clone()
    view = AugMix(op_set=op_set)(images, stream(3, "augmix"))
    assert view.shape == images.shape
    assert view.dtype == images.dtype
    assert view.min() >= 0
    assert view.max() <= 1 + 1e-6
    assert torch.equal(images, before)
    assert torch.equal(view, AugMix(op_set=op_set)(images, stream(3, "augmix")))
    generator = stream(3, "augmix")
    AugMix(op_set=op_set)(images, generator)
    assert not torch.equal(view, AugMix(op_set=op_set)(images, generator))


def test_augmix_does_not_depend_on_how_the_batch_is_cut_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    images = photographs(3).float() / 255
    whole = AugMix()(images, stream(4, "augmix"))
    monkeypatch.setattr(augment, "CACHED_VALUES", images[0].numel())
    torch.testing.assert_close(AugMix()(images, stream(4, "augmix")), whole)


def test_augmix_does_not_depend_on_the_memory_format() -> None:
    images = photographs(3).float() / 255
    view = AugMix()(images.contiguous(memory_format=torch.channels_last), stream(4, "augmix"))
    torch.testing.assert_close(view, AugMix()(images, stream(4, "augmix")))


def test_operations_are_drawn_per_image_unless_shared() -> None:
    image = photographs(3)[3:].float() / 255
    images = image.expand(16, -1, -1, -1)

    def directions(shared: bool) -> Tensor:
        """With one chain, view - image is m (chain - image): its direction tells the chain, whatever the weight."""
        change = (AugMix(width=1, shared_ops=shared)(images, stream(9, "shared")) - image).flatten(1)
        return torch.nn.functional.normalize(change, dim=1)

    assert (directions(shared=True) @ directions(shared=True).T).min() > 0.99
    assert (directions(shared=False) @ directions(shared=False).T).min() < 0.9


def test_draws_follow_the_specification() -> None:
    rng = augmix.numpy_generator(stream(8, "draw"))
    ops, levels = AugMix()._draw(rng, 4000)
    depths = (ops >= 0).sum(0).ravel()
    assert set(depths) == {1, 2, 3}
    assert stats.chisquare([(depths == d).sum() for d in (1, 2, 3)]).pvalue > 0.01
    assert stats.chisquare([(ops == number).sum() for number in range(9)]).pvalue > 0.01
    assert ops.max() == 8
    assert stats.kstest(levels.abs().flatten().numpy(), stats.uniform(0.01, 0.29).cdf).pvalue > 0.01
    bins = AugMix(op_set="torchvision13")._draw(rng, 4000)[1].abs().unique()
    torch.testing.assert_close(bins, double([0, 1 / 9, 2 / 9]))


def test_chain_ends_are_the_image_under_the_drawn_operations() -> None:
    images = photographs(3)[2:].float() / 255
    augmentation = AugMix(width=1)
    rotate = len(augmix.PIXELWISE["paper9"]) + augmix.GEOMETRIC.index("rotate")
    ops = torch.tensor([[[3, rotate]], [[rotate, -1]], [[-1, -1]]]).numpy()
    levels = double([[[0.2, 0.3]], [[-0.1, 0.0]], [[0.0, 0.0]]])
    first, second = augmentation._chains(images, ops, levels)[0]
    solarized = augmix.solarize(images[:1], torch.tensor([0.2]))
    torch.testing.assert_close(first, warp(solarized, [affine_matrix("rotate", -0.1, 32, 32)])[0])
    torch.testing.assert_close(second, warp(images[1:], [affine_matrix("rotate", 0.3, 32, 32)])[0])
