"""Drawing with whole stacks of grey pictures (float32 [N, H, W], 0 to 1).

Only +, -, *, /, square roots and comparisons are used: IEEE 754 fixes their results, whereas those of exp, sin and
matrix products differ in the last bit from one CPU to the next. So every machine draws the same bytes.
"""

from __future__ import annotations

import math

import numpy as np

# Part of every cache key: raise it when anything that is drawn changes.
REVISION = 1


def upsample(pictures: np.ndarray, size: int) -> np.ndarray:
    """Catmull-Rom interpolation of [N, n, n] to [N, size, size], edges extended."""
    return np.asarray(_upsample_rows(_upsample_rows(pictures, size).swapaxes(1, 2), size).swapaxes(1, 2))


def _upsample_rows(pictures: np.ndarray, size: int) -> np.ndarray:
    position = (np.arange(size) + 0.5) * (pictures.shape[1] / size) - 0.5
    row = np.floor(position).astype(np.int64)
    t = (position - row).astype(np.float32)
    weights = (
        ((2 - t) * t - 1) * t / 2,
        ((3 * t - 5) * t * t + 2) / 2,
        ((4 - 3 * t) * t + 1) * t / 2,
        (t - 1) * t * t / 2,
    )
    padded = np.pad(pictures, ((0, 0), (2, 2), (0, 0)), mode="edge")
    result = np.zeros((len(pictures), size, pictures.shape[2]), np.float32)
    for tap, weight in enumerate(weights):
        result += weight[:, None] * padded[:, row + tap + 1]
    return result


def warp(pictures: np.ndarray, matrix: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Bilinear resampling about the centre: output pixel p shows input pixel matrix @ p + shift, outside is 0.

    `matrix` is [N, 2, 2] or [1, 2, 2] and `shift` [N, 2] or [1, 2], both in (row, column) order.
    """
    count, size, _ = pictures.shape
    axis = np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)
    rows, columns = axis[:, None], axis[None, :]
    low, fraction = [], []
    for i in range(2):
        position = matrix[:, i, 0, None, None] * rows + matrix[:, i, 1, None, None] * columns + shift[:, i, None, None]
        # One pixel of zeros around the picture: positions beyond it are clipped onto those zeros.
        position = np.clip(position + np.float32((size - 1) / 2 + 1), 0, size + 1)
        low.append(position.astype(np.int64))
        fraction.append((position - low[i]).astype(np.float32))
    padded = np.pad(pictures, ((0, 0), (1, 2), (1, 2)))
    picture = np.arange(count)[:, None, None]
    (y, x), (v, u) = low, fraction
    upper = padded[picture, y, x] * (1 - u) + padded[picture, y, x + 1] * u
    lower = padded[picture, y + 1, x] * (1 - u) + padded[picture, y + 1, x + 1] * u
    return np.asarray(upper * (1 - v) + lower * v, np.float32)


def blur(pictures: np.ndarray, radius: int) -> np.ndarray:
    """Box blur with edges extended; two in a row are close to a Gaussian of the same width."""
    for axis in (1, 2):
        padding = [(0, 0)] * 3
        padding[axis] = (radius, radius)
        padded = np.pad(pictures, padding, mode="edge").swapaxes(0, axis)
        length = pictures.shape[axis]
        total = padded[:length].copy()
        for offset in range(1, 2 * radius + 1):
            total += padded[offset : offset + length]
        pictures = (total / np.float32(2 * radius + 1)).swapaxes(0, axis)
    return pictures


def ramp(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 up to `low`, 1 from `high` on, a smooth cubic between."""
    t = np.clip((values - np.float32(low)) / np.float32(high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def turn(pictures: np.ndarray, degrees: float) -> np.ndarray:
    """Counter-clockwise about the centre, bilinear, 0 outside."""
    # Rounded far below a pixel but above the last bits, in which the mathematics libraries of machines differ.
    cosine, sine = round(math.cos(math.radians(degrees)), 12), round(math.sin(math.radians(degrees)), 12)
    matrix = np.array([[[cosine, sine], [-sine, cosine]]], np.float32)
    return warp(pictures, matrix, np.zeros((1, 2), np.float32))


def noise(generator: np.random.Generator, count: int, cells: int, size: int) -> np.ndarray:
    """Smooth random pictures with about `cells` blotches along each side, mean 0, from -0.5 to 0.5."""
    grid = generator.random((count, cells, cells), dtype=np.float32) - np.float32(0.5)
    return grid if cells == size else np.asarray(np.clip(upsample(grid, size), -0.5, 0.5))


def to_bytes(pictures: np.ndarray) -> np.ndarray:
    """0..1 to uint8, rounded."""
    return np.asarray(np.clip(pictures, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)
