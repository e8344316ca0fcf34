"""Digits turned by 0, 15, ..., 75 degrees (counter-clockwise, bilinear, black outside), 28 px grey.

`rotated-digits` and protocol `csac` show the *same* 1,000 pictures (100 per class) in every domain, as CSAC does: the
domains differ by nothing but the angle. Protocol `domainbed` gives every picture to one domain only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fl_algorithms.data.cache import Source
from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.digits import CLASSES, bundled_digits, by_class
from fl_algorithms.data.idx import find_idx, read_idx
from fl_algorithms.data.partial import Block
from fl_algorithms.data.raster import REVISION, to_bytes, turn, upsample
from fl_algorithms.errors import Unusable
from fl_algorithms.randomness import permutation

SIZE = 28
ANGLES = (0, 15, 30, 45, 60, 75)
PROTOCOLS = ("csac", "domainbed")
BATCH = 1024  # pictures turned at once: bounds the memory


def open_rotated_digits() -> DataSet:
    domains = {f"r{angle}": angle for angle in ANGLES}

    def source(domain: str) -> Source:
        def block(_: int) -> Block:
            pictures, labels = bundled_digits()
            chosen = _hundred_per_class(labels, "rotated-digits")
            return _turned(np.clip(upsample(pictures[chosen], SIZE), 0, 1), labels[chosen], domains[domain])

        return Source({"revision": REVISION}, block)

    return DataSet("rotated-digits", tuple(domains), CLASSES, SIZE, 1, (0.1997,), (0.3064,), source)


def open_rotated_mnist(path: str, protocol: str = "csac") -> DataSet:
    if protocol not in PROTOCOLS:
        raise Unusable(f"dataset.protocol: expected one of {', '.join(PROTOCOLS)}, found {protocol!r}")
    parts = ("train",) if protocol == "csac" else ("train", "t10k")
    images = [find_idx(Path(path), f"{part}-images-idx3-ubyte") for part in parts]
    labels = [find_idx(Path(path), f"{part}-labels-idx1-ubyte") for part in parts]
    domains = {f"m{angle}": angle for angle in ANGLES}

    def source(domain: str) -> Source:
        def block(_: int) -> Block:
            pictures = np.concatenate([_read_pictures(file) for file in images])
            targets = np.concatenate([read_idx(file, axes=1) for file in labels]).astype(np.int64)
            _check_labels(path, pictures, targets)
            if protocol == "csac":
                chosen = _hundred_per_class(targets, "rotated-mnist")
            else:
                number = tuple(domains).index(domain)
                chosen = np.sort(permutation(len(targets), 0, "rotated-mnist")[number :: len(domains)])
            return _turned(pictures[chosen] / np.float32(255), targets[chosen], domains[domain])

        files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in images + labels]
        return Source({"revision": REVISION, "protocol": protocol, "files": files}, block)

    # The usual mean and deviation of MNIST's training pictures.
    return DataSet("rotated-mnist", tuple(domains), CLASSES, SIZE, 1, (0.1307,), (0.3081,), source)


def _hundred_per_class(labels: np.ndarray, purpose: str) -> np.ndarray:
    return np.sort(np.concatenate([indices[:100] for indices in by_class(labels, purpose)]))


def _turned(pictures: np.ndarray, labels: np.ndarray, degrees: int) -> Block:
    parts = [to_bytes(turn(pictures[start : start + BATCH], degrees)) for start in range(0, len(labels), BATCH)]
    return Block(np.concatenate(parts)[..., None], labels)


def _read_pictures(file: Path) -> np.ndarray:
    pictures = read_idx(file, axes=3)
    if pictures.shape[1:] != (SIZE, SIZE):
        found = "x".join(map(str, pictures.shape[1:]))
        raise Unusable(f"{file}: expected pictures of {SIZE}x{SIZE}, found {found}; set dataset.path to the folder of MNIST")
    return pictures


def _check_labels(path: str, pictures: np.ndarray, labels: np.ndarray) -> None:
    if len(pictures) != len(labels):
        raise Unusable(f"{path}: expected as many labels as pictures, found {len(labels)} and {len(pictures)}; fetch them again")
    scarce = np.bincount(labels, minlength=len(CLASSES)).min() < 100
    if scarce or labels.max() >= len(CLASSES):
        raise Unusable(f"{path}: expected labels 0 to 9, each 100 times or more, found others; fetch the idx files again")
