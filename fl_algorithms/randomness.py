"""Random streams. Every stream is named by (seed, purpose, silo, round, ...); nothing else in the project seeds anything.

A stream depends on its name only, never on how many numbers were drawn elsewhere, so a step that is repeated after a
crash, on another machine or in another order draws the same numbers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(seed: int, *purpose: str | int) -> int:
    """63-bit seed of the stream with this name. The parts are length-prefixed, so ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in (seed, *purpose):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "big") + text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for this stream. Draw on the CPU and move: the numbers are then the same on every device."""
    import torch  # here: data sets are listed and opened by processes that have no other use for it

    return torch.Generator().manual_seed(stream_seed(seed, *purpose))


def numpy_stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """The same idea for numpy, for splits and partitions."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, *purpose)))


def permutation(count: int, seed: int, *purpose: str | int) -> np.ndarray:
    """A permutation of range(count) by sorting SplitMix64 keys: the same on every platform and in every numpy version."""
    with np.errstate(over="ignore"):
        state = np.uint64(stream_seed(seed, *purpose)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable")
