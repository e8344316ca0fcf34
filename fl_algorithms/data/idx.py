"""Reader of the idx files that MNIST comes in: big-endian header (magic, one size per axis), then bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from fl_algorithms.errors import Unusable


def find_idx(folder: Path, stem: str) -> Path:
    """The file of this name, plain or compressed, e.g. stem `train-images-idx3-ubyte`."""
    for candidate in (folder / stem, folder / f"{stem}.gz"):
        if candidate.is_file():
            return candidate
    raise Unusable(f"{folder}: expected {stem} or {stem}.gz, found neither; set dataset.path to the folder of the idx files")


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The array of a file of unsigned bytes with this many axes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise Unusable(f"{path}: expected an idx file, found one that cannot be read ({error}); fetch it again") from error
    header = 4 + 4 * axes
    if len(content) < header or content[:4] != bytes([0, 0, 8, axes]):
        raise Unusable(f"{path}: expected an idx file of bytes with {axes} axes, found another header; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", axes, 4))
    if len(content) - header != math.prod(shape):
        raise Unusable(f"{path}: expected {math.prod(shape)} bytes after the header, found {len(content) - header}; fetch it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
