"""`folder`: pictures in `path/domain/class/file` (PACS, VLCS, OfficeHome, or a company's own)."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fl_algorithms.data.cache import Block, Source
from fl_algorithms.data.dataset import IMAGENET_MEAN, IMAGENET_STD, DataSet
from fl_algorithms.errors import Unusable

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
BATCH = 64  # pictures decoded at once: bounds the memory

# What Pillow's decoders raise on damaged files; the last is its limit against decompression bombs.
DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip


class _File(NamedTuple):
    name: str  # class/file
    label: int


def open_folder(path: str, image_size: int = 224, on_broken: Literal["fail", "skip"] = "fail") -> DataSet:
    """Domains and classes are the folders that hold pictures, in alphabetical order.

    A silo that has only its own domain cannot know the classes of the others: `classes.txt` in `path`, one class per
    line, then says what they are.
    """
    if image_size < 1:
        raise Unusable(f"dataset.image_size: expected a number of pixels above 0, found {image_size}")
    if on_broken not in ("fail", "skip"):
        raise Unusable(f"dataset.on_broken: expected fail or skip, found {on_broken!r}")
    root = Path(path)
    if not root.is_dir():
        raise Unusable(f"dataset.path: expected a folder of domain folders, found no folder {path!r}")
    tree = _tree(root)
    classes = _classes(root, tree)
    source = partial(_source, root, tree, classes, image_size, on_broken)
    return DataSet("folder", tuple(tree), classes, image_size, 3, IMAGENET_MEAN, IMAGENET_STD, source)


def _tree(root: Path) -> dict[str, dict[str, list[str]]]:
    """domain -> class -> files. Looks exactly two levels deep, so links that form a loop do no harm."""
    tree: dict[str, dict[str, list[str]]] = {}
    for domain in _folders(root):
        classes = {name: _pictures(root / domain / name) for name in _folders(root / domain)}
        filled = {name: files for name, files in classes.items() if files}
        if filled:
            tree[domain] = filled
    if not tree:
        raise Unusable(f"dataset.path: expected pictures in domain/class/file, found none under {str(root)!r}")
    return tree


def _folders(folder: Path) -> list[str]:
    return _names(folder, Path.is_dir)


def _pictures(folder: Path) -> list[str]:
    # By suffix: notes, lists and databases of thumbnails often lie between the pictures.
    return _names(folder, lambda path: path.suffix.lower() in SUFFIXES)


def _names(folder: Path, wanted: Callable[[Path], bool]) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and wanted(path))
    except OSError as error:
        raise Unusable(f"{folder}: expected a folder that can be listed, found {error.strerror}; check its rights") from error


def _classes(root: Path, tree: dict[str, dict[str, list[str]]]) -> tuple[str, ...]:
    listed = root / "classes.txt"
    if listed.is_file():
        try:
            names = [line.strip() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise Unusable(f"{listed}: expected one class per line in UTF-8, found {error}") from error
    else:
        names = [name for folders in tree.values() for name in folders]
    classes = tuple(sorted(set(names)))
    if len(classes) < 2:
        raise Unusable(f"{root}: expected at least two classes, found only {', '.join(classes)!r}; a class is a folder in a domain")
    unknown = sorted(f"{domain}/{name}" for domain, folders in tree.items() for name in folders if name not in classes)
    if unknown:
        raise Unusable(f"{listed}: expected every class folder to be listed, found {unknown[0]!r}; add it or move it away")
    return classes


def _source(root: Path, tree: dict[str, dict[str, list[str]]], classes: tuple[str, ...], size: int, on_broken: str, domain: str) -> Source:
    folder = root / domain
    files = [_File(f"{name}/{file}", classes.index(name)) for name, names in sorted(tree[domain].items()) for file in names]

    def blocks() -> Iterator[Block]:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            kept = 0
            for start in range(0, len(files), BATCH):
                block = _block(pool, folder, files[start : start + BATCH], size, on_broken)
                kept += len(block.labels)
                yield block
        if kept == 0:
            raise Unusable(f"{folder}: expected pictures, found {len(files)} files of which none can be decoded")

    stamps = [(file.name, *_stamp(folder / file.name)) for file in files]
    return Source({"domain": domain, "size": size, "on_broken": on_broken, "files": stamps}, blocks, len(files))


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of the last change; none for a dangling link, which decoding will report."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def _block(pool: ThreadPoolExecutor, folder: Path, files: list[_File], size: int, on_broken: str) -> Block:
    pixels, labels, skipped = [], [], []
    decoded = pool.map(lambda file: _decode(folder / file.name, size), files)
    for file, picture in zip(files, decoded, strict=True):
        if isinstance(picture, np.ndarray):
            pixels.append(picture)
            labels.append(file.label)
        elif on_broken == "skip":
            skipped.append(f"{folder.name}/{file.name}")
        else:
            raise Unusable(
                f"{str(folder / file.name)!r}: expected a picture, found it cannot be decoded ({_brief(picture)}); "
                "repair or remove it, or set dataset.on_broken=skip to leave such files out"
            )
    stack = np.stack(pixels) if pixels else np.empty((0, size, size, 3), np.uint8)
    return Block(stack, np.array(labels, np.int64), skipped=tuple(skipped))


def _brief(error: Exception) -> str:
    """Some decoders explain themselves over several lines or with the whole path again; one line is the rule here."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture"
    return " ".join(str(error).split()) or type(error).__name__


def _decode(path: Path, size: int) -> np.ndarray | Exception:
    """RGB [size, size, 3], or what is wrong with the file. Pillow lets other threads run while it decodes."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            # On down-scaling Pillow's bilinear filter covers the whole source area: it is antialiased.
            return np.asarray(_rgb(upright).resize((size, size), Image.Resampling.BILINEAR))
    except DECODE_ERRORS as error:
        return error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey: Pillow's own conversion clips at 255 instead of scaling
        return Image.fromarray((np.clip(np.asarray(image), 0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
