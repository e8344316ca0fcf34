"""`femnist`: LEAF's handwritten characters by some 3,500 writers, and the variants of FedDANN in which writers form domains.

Writers are numbered in the order of their sorted names. In the variants `...-1000` writer i < 1002 has the domain
floor(i / 167) and all others have the first; in `...-all` the writers are cut into six equal consecutive parts. The
transform of the domain is applied once, when the pictures are read. Paper is white (1), and so is what a turn uncovers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fl_algorithms.data.cache import Source
from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.leaf import read_pictures, read_users
from fl_algorithms.data.partial import Block
from fl_algorithms.data.raster import blur, to_bytes
from fl_algorithms.errors import Unusable
from fl_algorithms.randomness import numpy_stream

REVISION = 1  # of the transforms: raise it when a byte of theirs changes
SIZE = 28
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
PER_DOMAIN = 167

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def open_femnist(path: str, protocol: str = "plain") -> DataSet:
    """`path` holds LEAF's folders train and test. Domains of `plain` are those two; the variants use train only."""
    if protocol not in PROTOCOLS:
        raise Unusable(f"dataset.protocol: expected one of {', '.join(PROTOCOLS)}, found {protocol!r}")
    transforms = PROTOCOLS[protocol]
    domains = tuple(transforms or ("train", "test"))

    def source(domain: str) -> Source:
        files = _files(Path(path), domain if transforms is None else "train")
        users = [read_users(file) for file in files]
        order = sorted(set().union(*users))
        number = {user: place for place, user in enumerate(order)}
        if transforms is not None:
            of_domain = domain_of(len(order), everyone=protocol.endswith("all"))
            number = {user: i for user, i in number.items() if domains[of_domain[i]] == domain}
        apply = transforms[domain] if transforms is not None else _as_it_is

        def block(file: int) -> Block:
            return _block(files[file], number, apply)

        stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        total = sum(count for found in users for user, count in found.items() if user in number)
        return Source({"revision": REVISION, "protocol": protocol, "domain": domain, "files": stamps}, block, len(files), total)

    return DataSet("femnist", domains, CLASSES, SIZE, 1, (0.1736,), (0.3248,), source)


def domain_of(writers: int, everyone: bool) -> np.ndarray:
    """The number of each writer's domain."""
    i = np.arange(writers)
    return i * 6 // max(writers, 1) if everyone else np.where(i < 6 * PER_DOMAIN, i // PER_DOMAIN, 0)


def _files(root: Path, part: str) -> list[Path]:
    for folder in (root / part, root / "data" / part):
        found = sorted(folder.glob("*.json"))
        if found:
            return found
    raise Unusable(f"{root}: expected LEAF's {part}/*.json, found none; set dataset.path to the folder that holds {part}")


def _block(file: Path, number: dict[str, int], apply: Transform) -> Block:
    """The writers of one file; group i are the pictures of writer i."""
    pixels, labels, groups = [np.empty((0, SIZE, SIZE), np.uint8)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for user, pictures, characters in read_pictures(file, set(number), SIZE):
        if len(characters) and not 0 <= characters.min() <= characters.max() < len(CLASSES):
            raise Unusable(f"{file}: expected labels from 0 to {len(CLASSES) - 1}, found others of writer {user}; make the file again")
        pixels.append(to_bytes(apply(pictures / np.float32(255), numpy_stream(0, "femnist", user))))
        labels.append(characters)
        groups.append(np.full(len(characters), number[user]))
    return Block(np.concatenate(pixels)[..., None], np.concatenate(labels), np.concatenate(groups))


# ---- transforms of whole stacks, float32 [N, 28, 28] from 0 to 1


def _as_it_is(pictures: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return pictures


def _turned(degrees: float, pictures: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    # Rounded far below a pixel but above the last bits, in which the mathematics libraries of machines differ.
    cosine, sine = round(math.cos(math.radians(degrees)), 12), round(math.sin(math.radians(degrees)), 12)
    return nearest(pictures, np.array([[[cosine, sine], [-sine, cosine]]]), np.zeros((1, 2)))


def _blurred(pictures: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A 3x3 box whose values are 1/10: it darkens as well."""
    return blur(pictures, 1) * np.float32(0.9)


def _inverted(pictures: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return 1 - pictures


def _noisy(pictures: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return pictures + generator.standard_normal(pictures.shape, np.float32) * np.float32(0.15)


def _moved(pictures: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Moved by whole pixels, up to a quarter of the side, and scaled by 0.8 to 1.2."""
    count = len(pictures)
    shift = np.rint(generator.uniform(-0.25 * SIZE, 0.25 * SIZE, (count, 2)))
    zoom = 1 / generator.uniform(0.8, 1.2, count)
    return nearest(pictures, zoom[:, None, None] * np.eye(2), -zoom[:, None] * shift)


def nearest(pictures: np.ndarray, matrix: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Output pixel p, counted from the centre as (row, column), shows input pixel matrix @ p + shift; outside is 1."""
    axis = np.arange(SIZE) - (SIZE - 1) / 2
    rows, columns = axis[:, None], axis[None, :]
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), constant_values=1)
    place = [
        np.rint(matrix[:, i, 0, None, None] * rows + matrix[:, i, 1, None, None] * columns + shift[:, i, None, None] + (SIZE - 1) / 2)
        for i in range(2)
    ]
    y, x = (np.clip(one + 1, 0, SIZE + 1).astype(np.int64) for one in place)
    return np.asarray(padded[np.arange(len(pictures))[:, None, None], y, x])


ROTATIONS: dict[str, Transform] = {f"r{degrees}": partial(_turned, degrees) for degrees in (0, 15, 30, 45, 60, 75)}
SHIFTS: dict[str, Transform] = {
    "none": _as_it_is,
    "blur": _blurred,
    "inversion": _inverted,
    "rotation": partial(_turned, 45),
    "noise": _noisy,
    "affine": _moved,
}
PROTOCOLS: dict[str, dict[str, Transform] | None] = {
    "plain": None, "rotated-1000": ROTATIONS, "rotated-all": ROTATIONS, "dg-1000": SHIFTS, "dg-all": SHIFTS,
}  # fmt: skip
