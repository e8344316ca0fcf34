"""One batched step of AugMix, another operation and level in every row, against torchvision's own AugMix image by image."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import AugMix as TorchvisionAugMix
from torchvision.transforms.v2 import InterpolationMode

from fl_algorithms.augmix import GEOMETRIC, PIXELWISE, AugMix
from tests.fl_algorithms.test_augment import ONE_LEVEL, photographs

NAMES = ("AutoContrast", "Equalize", "Posterize", "Solarize", "Brightness", "Color", "Contrast", "Sharpness")
GEOMETRIC_NAMES = {"rotate": "Rotate", "shear_x": "ShearX", "shear_y": "ShearY", "translate_x": "TranslateX", "translate_y": "TranslateY"}


def test_the_operation_sets_are_those_of_paper_and_torchvision() -> None:
    geometric = [GEOMETRIC_NAMES[name] for name in GEOMETRIC]
    assert len(PIXELWISE["paper9"]) + len(GEOMETRIC) == 9
    assert {*NAMES[: len(PIXELWISE["paper9"])], *geometric} == set(TorchvisionAugMix._PARTIAL_AUGMENTATION_SPACE)
    assert len(PIXELWISE["torchvision13"]) + len(GEOMETRIC) == 13
    assert {*NAMES, *geometric} == set(TorchvisionAugMix._AUGMENTATION_SPACE)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_row_gets_its_own_operation_and_level_as_in_torchvision(channels: int) -> None:
    names = [*NAMES, *(GEOMETRIC_NAMES[name] for name in GEOMETRIC)]
    cases = list(itertools.product(names, range(10), (1, -1)))
    pictures = photographs(channels)
    images = torch.stack([pictures[number % len(pictures)] for number in range(len(cases))])
    rows = images / 255
    ops = np.array([names.index(name) for name, _, _ in cases])
    levels = torch.tensor([sign * step / 9 for _, step, sign in cases], dtype=torch.float64)
    AugMix(op_set="torchvision13")._step(rows, ops, levels)
    reference = TorchvisionAugMix()
    theirs = []
    for image, (name, step, sign) in zip(images, cases, strict=True):
        magnitudes, signed = reference._AUGMENTATION_SPACE[name]
        steps = magnitudes(10, *image.shape[1:])
        magnitude = 0.0 if steps is None else float(steps[step]) * (sign if signed else 1)
        theirs.append(reference._apply_image_or_video_transform(image, name, magnitude, InterpolationMode.BILINEAR, reference._fill))
    # torchvision truncates to whole levels (and contrast's mean too), hence up to 1.9 of them at its largest steps
    torch.testing.assert_close(rows, torch.stack(theirs) / 255, atol=1.9 * ONE_LEVEL, rtol=0)
