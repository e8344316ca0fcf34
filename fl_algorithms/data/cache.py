"""Decode once: each domain becomes one memory-mapped uint8 file that all processes share.

`<root>/<data set>-<key>/<domain>.u8` holds the pixels and `<domain>.json` everything else. The key is the digest of all
that determines the pixels, so a stale entry is never found. The JSON is put in place last and holds the digest of the
content, which is verified at every opening: an entry that is half-written or damaged is built again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fl_algorithms.data.images import Images
from fl_algorithms.errors import Unusable

FORMAT = 1
CHUNK = 1 << 22

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Block:
    """Some consecutive pictures of a domain. `skipped` names files that should have been among them."""

    pixels: np.ndarray  # uint8 [n, H, W, C]
    labels: np.ndarray  # int64 [n]
    groups: np.ndarray | None = None  # int64 [n]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where the pictures of a domain come from when they are not in the cache."""

    key: Mapping[str, Any]  # JSON-able; all that determines the pixels
    blocks: Callable[[], Iterator[Block]]  # in a fixed order
    total: int | None = None  # pictures to come, where that takes long enough to show progress


def cache_root() -> Path:
    chosen = os.environ.get("SILOFLOW_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    parent = os.environ.get("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache") / "siloflow"


def cached(dataset: str, domain: str, classes: tuple[str, ...], source: Source, progress: Progress | None) -> Images:
    """The pictures of a domain, decoded only if no intact copy is in the cache. Safe with many processes at once."""
    key = {"format": FORMAT, "classes": classes, **source.key}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_root() / f"{dataset}-{name}"
    images = _open(folder, domain)
    if images is None:
        try:
            with _locked(folder, domain):
                images = _open(folder, domain)  # another process may have built it while this one waited
                if images is None:
                    _build(folder, domain, classes, source, progress)
                    images = _open(folder, domain)
        except OSError as error:
            raise Unusable(
                f"cache {folder}: expected a folder with room to write in, found {error.strerror or error}; "
                "set SILOFLOW_CACHE to another folder"
            ) from error
    if images is None:
        raise Unusable(f"cache {folder}: {domain} reads back differently from what was written; check this disk")
    return images


@contextmanager
def _locked(folder: Path, domain: str) -> Iterator[None]:
    """Exclusive between processes and given up by the kernel when the holder dies, so a crash leaves nothing stuck."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{domain}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, domain: str, classes: tuple[str, ...], source: Source, progress: Progress | None) -> None:
    # A fixed temporary name: the lock makes it ours, and what a killed builder left is overwritten.
    temporary = folder / f"{domain}.tmp"
    try:
        with temporary.open("wb") as file:
            entry = _write_pixels(file, source, progress)
            _sync(file)
        entry |= {"format": FORMAT, "classes": classes}
        entry["digest"] = _digest(entry, temporary)
        temporary.replace(folder / f"{domain}.u8")
        with temporary.open("wb") as file:
            file.write(json.dumps(entry).encode())
            _sync(file)
        temporary.replace(folder / f"{domain}.json")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_pixels(file: BinaryIO, source: Source, progress: Progress | None) -> dict[str, Any]:
    """Write one block after the other, so that memory holds one block, and return what goes into the JSON."""
    labels: list[int] = []
    groups: list[int] = []
    skipped: list[str] = []
    shape: tuple[int, ...] = ()
    for block in source.blocks():
        file.write(np.ascontiguousarray(block.pixels).data)
        labels += block.labels.tolist()
        groups += [] if block.groups is None else block.groups.tolist()
        skipped += block.skipped
        shape = block.pixels.shape[1:]
        if progress and source.total:
            progress(len(labels) + len(skipped), source.total)
    return {"shape": [len(labels), *shape], "labels": labels, "groups": groups or None, "skipped": skipped}


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _open(folder: Path, domain: str) -> Images | None:
    """None if there is no entry or it is not intact."""
    try:
        entry = json.loads((folder / f"{domain}.json").read_text(encoding="utf-8"))
        pixels_path = folder / f"{domain}.u8"
        if entry["digest"] != _digest(entry, pixels_path):
            return None
        return Images(
            pixels=np.memmap(pixels_path, np.uint8, "r", shape=tuple(entry["shape"])),
            labels=np.array(entry["labels"], np.int64),
            classes=tuple(entry["classes"]),
            digest=entry["digest"],
            groups=None if entry["groups"] is None else np.array(entry["groups"], np.int64),
            skipped=tuple(entry["skipped"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(entry: Mapping[str, Any], pixels: Path) -> str:
    header = {name: entry[name] for name in ("format", "shape", "classes", "labels", "groups")}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    with pixels.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
