"""Picture files of a domain: found by a loader, decoded here, in parallel, to RGB squares."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fl_algorithms.data.cache import Source
from fl_algorithms.data.dataset import IMAGENET_MEAN, IMAGENET_STD, DataSet
from fl_algorithms.data.images import Picture
from fl_algorithms.data.partial import Block
from fl_algorithms.errors import Unusable

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
BATCH = 64  # pictures decoded at once: bounds the memory

OnBroken = Literal["fail", "skip"]

# What Pillow's decoders raise on damaged files; the last is its limit against decompression bombs.
DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip


Finder = Callable[[str], list[Picture]]  # domain -> its pictures, in a fixed order; looks at no other domain


def picture_set(
    name: str, domains: tuple[str, ...], classes: tuple[str, ...], find: Finder, root: Path, image_size: int, on_broken: OnBroken
) -> DataSet:
    """A data set of picture files. Names in messages are relative to `root`."""
    if image_size < 1:
        raise Unusable(f"dataset.image_size: expected a number of pixels above 0, found {image_size}")
    if on_broken not in ("fail", "skip"):
        raise Unusable(f"dataset.on_broken: expected fail or skip, found {on_broken!r}")

    def source(domain: str) -> Source:
        return _source(root, domain, find(domain), image_size, on_broken)

    return DataSet(name, domains, classes, image_size, 3, IMAGENET_MEAN, IMAGENET_STD, source, find)


def existing_folder(path: str, holds: str) -> Path:
    root = Path(path)
    if not root.is_dir():
        raise Unusable(f"dataset.path: expected a folder of {holds}, found no folder {path!r}; correct the path")
    return root


def names_in(folder: Path, wanted: Callable[[Path], bool]) -> list[str]:
    """Names that are not hidden, sorted: the order of a file system must not decide who trains on what."""
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and wanted(path))
    except OSError as error:
        raise Unusable(f"{folder}: expected a folder that can be listed, found {error.strerror}; check its rights") from error


def is_picture(path: Path) -> bool:
    """By suffix: notes, lists and databases of thumbnails often lie between the pictures."""
    return path.suffix.lower() in SUFFIXES


def _source(root: Path, domain: str, files: list[Picture], size: int, on_broken: OnBroken) -> Source:
    if not files:
        raise Unusable(f"domain {domain}: expected pictures, found none under {str(root)!r}; put them there or leave the domain out")
    names = [_relative(root, file.path) for file in files]

    def block(number: int) -> Block:
        part = slice(number * BATCH, (number + 1) * BATCH)
        return _block(files[part], names[part], size, on_broken)

    stamps = [(name, file.label, file.held_out, *_stamp(file.path)) for name, file in zip(names, files, strict=True)]
    key = {"domain": domain, "size": size, "on_broken": on_broken, "files": stamps}
    return Source(key, block, -(-len(files) // BATCH), len(files))


def _relative(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of the last change; none for a file that is not there, which decoding will report."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def _block(files: Sequence[Picture], names: Sequence[str], size: int, on_broken: OnBroken) -> Block:
    pixels, kept, skipped = [], [], []
    for file, name, picture in zip(files, names, in_parallel(lambda file: decode(file.path, size), files), strict=True):
        if isinstance(picture, np.ndarray):
            pixels.append(picture)
            kept.append(file)
        elif on_broken == "skip":
            skipped.append(name)
        else:
            raise Unusable(
                f"{str(file.path)!r}: expected a picture, found {why_not(picture)}; "
                "repair or remove it, or set dataset.on_broken=skip to leave such files out"
            )
    stack = np.stack(pixels) if pixels else np.empty((0, size, size, 3), np.uint8)
    listed = [file.held_out for file in kept]
    held_out = None if None in listed or not listed else np.array(listed, bool)
    return Block(stack, np.array([file.label for file in kept], np.int64), held_out=held_out, skipped=tuple(skipped))


def in_parallel(work: Callable[[Picture], object], files: Sequence[Picture]) -> Iterator[object]:
    """In order. Threads suffice: Pillow lets others run while it decodes and resizes."""
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        yield from pool.map(work, files)


def why_not(error: object) -> str:
    """Some decoders explain themselves over several lines or with the whole path again; one line is the rule here."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, UnidentifiedImageError):
        return "it cannot be decoded (not a picture)"
    return f"it cannot be decoded ({' '.join(str(error).split()) or type(error).__name__})"


def decode(path: Path, size: int) -> np.ndarray | Exception:
    """RGB [size, size, 3], or what is wrong with the file."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            # On down-scaling Pillow's bilinear filter covers the whole source area: it is antialiased.
            return np.asarray(to_rgb(upright).resize((size, size), Image.Resampling.BILINEAR))
    except DECODE_ERRORS as error:
        return error


def to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey: Pillow's own conversion clips at 255 instead of scaling
        return Image.fromarray((np.clip(np.asarray(image), 0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
