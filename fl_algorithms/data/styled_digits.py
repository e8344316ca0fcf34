"""`styled-digits`: the embedded data set. Handwritten digits drawn in four styles that differ as PACS's domains do.

| domain | ink | ground |
|---|---|---|
| paper  | dark, bleeding, blue to brown | warm, fibrous, blotched |
| chalk  | light, grainy, broken | dark board, smeared, with the ghost of a wiped-out digit |
| neon   | glowing tube in a two-colour gradient | dark gradient; colours differ in every picture |
| pencil | contour, lightly hatched inside | white |

Every handwritten digit is in exactly one domain, as two variants (small affine changes) that are adjacent and form a
group, so that a split never has one variant in training and the other in validation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fl_algorithms.data.cache import Source
from fl_algorithms.data.dataset import IMAGENET_MEAN, IMAGENET_STD, DataSet
from fl_algorithms.data.digits import CLASSES, bundled_digits, by_class
from fl_algorithms.data.partial import Block
from fl_algorithms.data.raster import REVISION, blur, noise, ramp, to_bytes, upsample, warp
from fl_algorithms.randomness import numpy_stream

SIZE = 32
VARIANTS = 2

Style = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def open_styled_digits() -> DataSet:
    domains = tuple(reversed(STYLES))  # the last is the target where a spec names none
    return DataSet("styled-digits", domains, CLASSES, SIZE, 3, IMAGENET_MEAN, IMAGENET_STD, _source)


def _source(domain: str) -> Source:
    def block(_: int) -> Block:
        pictures, labels = bundled_digits()
        number = tuple(STYLES).index(domain)
        chosen = np.concatenate([indices[number :: len(STYLES)] for indices in by_class(labels, "styled-digits")])
        base = np.repeat(np.sort(chosen), VARIANTS)
        generator = numpy_stream(0, "styled-digits", domain)
        strokes = _jitter(upsample(pictures[base], SIZE), generator)
        return Block(to_bytes(STYLES[domain](strokes, generator)), labels[base], groups=base)

    return Source({"revision": REVISION}, block)


def _jitter(strokes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Turn by up to 14 degrees, scale, shear and shift each picture a little."""
    count = len(strokes)
    tangent = _between(generator, count, -0.12, 0.12)  # of half the angle: cosine and sine without trigonometry
    cosine, sine = (1 - tangent**2) / (1 + tangent**2), 2 * tangent / (1 + tangent**2)
    shear = _between(generator, count, -0.15, 0.15)
    height, width = _between(generator, count, 0.95, 1.2), _between(generator, count, 0.95, 1.2)
    matrix = np.stack([cosine * height, -sine * width, sine * height + shear, cosine * width], axis=1)
    return warp(strokes, matrix.reshape(count, 2, 2), _between(generator, (count, 2), -2.0, 2.0))


def _paper(strokes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    count = len(strokes)
    fibre = noise(generator, count, SIZE, SIZE) * 0.5 + noise(generator, count, 12, SIZE)
    blotch = noise(generator, count, 3, SIZE)
    sheet = _mix(_colour(0.86, 0.76, 0.58), _colour(0.98, 0.92, 0.80), _rgb(blotch + 0.5))
    sheet = sheet + _rgb(fibre) * _colour(0.10, 0.11, 0.13)
    ink = _mix(_colour(0.10, 0.12, 0.30), _colour(0.26, 0.13, 0.07), generator.random((count, 1, 1, 1)))
    bleed = ramp(blur(strokes, 1) + fibre * 0.22, 0.22, 0.62) * (0.88 + blotch * 0.2)
    return _mix(sheet, ink, _rgb(bleed))


def _chalk(strokes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    count = len(strokes)
    smear = noise(generator, count, 4, SIZE) + noise(generator, count, 16, SIZE) * 0.5
    board = _mix(_colour(0.07, 0.09, 0.10), _colour(0.10, 0.25, 0.19), generator.random((count, 1, 1, 1)))
    wiped = blur(np.roll(strokes, count // 3, axis=0), 2)[:, :, ::-1]
    dust = np.clip(smear * 0.16 + wiped * 0.22 + noise(generator, count, SIZE, SIZE) * 0.07, -0.06, 1)
    grain = noise(generator, count, SIZE, SIZE) * 0.9 + noise(generator, count, 20, SIZE) * 0.7
    stroke = ramp(strokes, 0.25, 0.65) * ramp(grain + strokes * 0.9, -0.10, 0.75)
    tint = _mix(_colour(1.0, 1.0, 0.96), _colour(1.0, 0.90, 0.66), generator.random((count, 1, 1, 1)))
    return _mix(board + _rgb(dust), tint, _rgb(stroke))


def _neon(strokes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    count = len(strokes)
    first, second = _bright(generator, count), _bright(generator, count)
    along = _rgb(_gradient(generator, count))
    colour = _mix(first, second, along)
    night = _mix(_bright(generator, count), _bright(generator, count), _rgb(_gradient(generator, count)))
    near, far = blur(blur(strokes, 1), 1), blur(blur(strokes, 3), 3)
    light = night * 0.22 + colour * _rgb(near * 0.75 + far * 0.65)
    tube = ramp(strokes, 0.35, 0.8)
    core = ramp(blur(strokes, 1), 0.55, 0.85)
    return _mix(_mix(light, colour, _rgb(tube)), _colour(1.0, 1.0, 1.0), _rgb(core * 0.85))


def _pencil(strokes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    count = len(strokes)
    smooth = blur(strokes, 1)
    down, across = np.gradient(smooth, axis=(1, 2))
    # Distance to the contour in pixels, to first order: that makes the line equally wide on steep and gentle edges.
    distance = np.abs(smooth - np.float32(0.40)) / np.sqrt(down * down + across * across + np.float32(1e-3))
    pressure = noise(generator, count, 8, SIZE) * 0.5 + noise(generator, count, SIZE, SIZE) * 0.5
    line = (1 - ramp(distance, 0.2, 1.1)) * (0.95 + pressure * 0.5)
    axis = np.arange(SIZE)
    phase = (axis[:, None] + axis[None, :] + generator.integers(0, 4, (count, 1, 1))) % 4
    hatch = ramp(smooth, 0.42, 0.54) * np.where(phase == 0, 0.7 + pressure * 0.4, 0.36)
    sheet = 0.97 + noise(generator, count, SIZE, SIZE) * 0.05
    graphite = _colour(0.20, 0.20, 0.23)
    return _mix(_rgb(sheet), graphite, _rgb(np.clip(np.maximum(line, hatch), 0, 1)))


def _between(generator: np.random.Generator, shape: int | tuple[int, ...], low: float, high: float) -> np.ndarray:
    return np.asarray(generator.random(shape, dtype=np.float32) * np.float32(high - low) + np.float32(low))


def _colour(red: float, green: float, blue: float) -> np.ndarray:
    return np.array([red, green, blue], np.float32)


def _rgb(pictures: np.ndarray) -> np.ndarray:
    """[N, H, W] to [N, H, W, 1], to be broadcast over the colours."""
    return pictures[..., None].astype(np.float32)


def _mix(start: np.ndarray, end: np.ndarray, amount: np.ndarray) -> np.ndarray:
    return np.asarray(start * (1 - amount) + end * amount, np.float32)


def _bright(generator: np.random.Generator, count: int) -> np.ndarray:
    """A fully saturated colour per picture, [N, 1, 1, 3]: a random hue on the hexagon of HSV."""
    hue = _between(generator, (count, 1, 1, 1), 0.0, 6.0)
    return np.asarray(np.clip(np.abs((hue + _colour(0, 4, 2)) % 6 - 3) - 1, 0, 1))


def _gradient(generator: np.random.Generator, count: int) -> np.ndarray:
    """A linear ramp from 0 to 1 in a random direction per picture, [N, H, W]."""
    axis = np.arange(SIZE, dtype=np.float32) / (SIZE - 1) - np.float32(0.5)
    down, across = _between(generator, (2, count, 1, 1), -1.0, 1.0)
    scale = np.abs(down) + np.abs(across) + np.float32(1e-3)
    return np.asarray((down * axis[:, None] + across * axis[None, :]) / scale + np.float32(0.5))


STYLES: dict[str, Style] = {"paper": _paper, "chalk": _chalk, "neon": _neon, "pencil": _pencil}
