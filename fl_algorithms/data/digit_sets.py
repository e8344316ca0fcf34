"""`digits`: MNIST, MNIST-M and USPS as three domains of 32 px RGB.

MNIST gets a margin of two pixels, as its digits have in MNIST-M; USPS, whose digits fill the picture, is enlarged.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fl_algorithms.data.cache import Source
from fl_algorithms.data.dataset import IMAGENET_MEAN, IMAGENET_STD, DataSet
from fl_algorithms.data.digits import CLASSES
from fl_algorithms.data.idx import read_idx
from fl_algorithms.data.partial import Block
from fl_algorithms.data.raster import REVISION, to_bytes, upsample
from fl_algorithms.errors import Unusable

SIZE = 32
TILES = 100  # per row of a sprite

Part = tuple[np.ndarray, np.ndarray]  # pixels uint8 [n, 32, 32, 3] and labels


def open_digits(path: str) -> DataSet:
    """The files are in `path`, or in its folders `mnist` and `digits`. A domain needs its own files only."""
    root = Path(path)

    def source(domain: str) -> Source:
        files = [[_find(root, name) for name in names] for names, _ in DOMAINS[domain]]

        def block(number: int) -> Block:
            pixels, labels = DOMAINS[domain][number][1](*files[number])
            _check(files[number], pixels, labels)
            return Block(pixels, labels.astype(np.int64), held_out=np.full(len(labels), number == 1))

        stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for part in files for file in part]
        return Source({"revision": REVISION, "domain": domain, "files": stamps}, block, len(files))

    return DataSet("digits", tuple(DOMAINS), CLASSES, SIZE, 3, IMAGENET_MEAN, IMAGENET_STD, source)


def _find(root: Path, name: str) -> Path:
    for folder in (root, root / "mnist", root / "digits"):
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise Unusable(f"{root}: expected {name} in it or in its folders mnist and digits, found none; set dataset.path to their folder")


def _check(files: list[Path], pixels: np.ndarray, labels: np.ndarray) -> None:
    if len(pixels) != len(labels) or not len(labels) or labels.min() < 0 or labels.max() >= len(CLASSES):
        raise Unusable(
            f"{files[-1]}: expected {len(pixels)} labels from 0 to 9, found {len(labels)} "
            f"from {labels.min(initial=0)} to {labels.max(initial=0)}; fetch it again"
        )


def _mnist(images: Path, labels: Path) -> Part:
    grey = np.pad(read_idx(images, axes=3), ((0, 0), (2, 2), (2, 2)))
    if grey.shape[1:] != (SIZE, SIZE):
        raise Unusable(f"{images}: expected pictures of 28x28, found {grey.shape[1] - 4}x{grey.shape[2] - 4}; fetch it again")
    return _rgb(grey), read_idx(labels, axes=1)


def _mnist_m(sprite: Path, table: Path) -> Part:
    from PIL import Image

    try:
        with Image.open(sprite) as image:
            sheet = np.asarray(image.convert("RGB"))
        with np.load(table) as arrays:
            labels = arrays["y"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise Unusable(
            f"{sprite}: expected a sprite of digits and {table.name} with its labels, found {error}; fetch both again"
        ) from error
    rows = sheet.shape[0] // SIZE
    if sheet.shape[1] != TILES * SIZE or rows * TILES < len(labels):
        found = f"{sheet.shape[1]}x{sheet.shape[0]} pixels for {len(labels)} labels"
        raise Unusable(f"{sprite}: expected rows of {TILES} tiles of {SIZE}x{SIZE}, found {found}; fetch it again")
    tiles = sheet[: rows * SIZE].reshape(rows, SIZE, TILES, SIZE, 3).swapaxes(1, 2)
    return tiles.reshape(-1, SIZE, SIZE, 3)[: len(labels)], labels


def _usps(part: str, file: Path) -> Part:
    try:
        import h5py
    except ImportError:
        raise Unusable(f"{file}: needs the package h5py, found it is not installed; pip install 'siloflow[data]'") from None
    try:
        with h5py.File(file) as archive:
            grey, labels = archive[part]["data"][:].astype(np.float32), archive[part]["target"][:]
        return _rgb(to_bytes(upsample(grey.reshape(-1, 16, 16), SIZE))), labels
    except (OSError, KeyError, ValueError) as error:
        raise Unusable(f"{file}: expected {part}/data of 16x16 and {part}/target, found {error}; fetch it again") from error


def _rgb(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, axis=3)


def _idx(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _sprite(part: str) -> tuple[str, str]:
    return f"mnistm_{part}.webp", f"mnistm_{part}_labels.npz"


# domain -> its training part and its test part: files, and how they are read
DOMAINS: dict[str, tuple[tuple[tuple[str, ...], Callable[..., Part]], ...]] = {
    "mnist": ((_idx("train"), _mnist), (_idx("t10k"), _mnist)),
    "mnist-m": ((_sprite("train6000"), _mnist_m), (_sprite("test1500"), _mnist_m)),
    "usps": ((("usps.h5",), partial(_usps, "train")), (("usps.h5",), partial(_usps, "test"))),
}
