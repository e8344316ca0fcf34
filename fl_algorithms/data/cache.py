"""Decode once: each domain becomes one memory-mapped uint8 file that all processes share.

`<root>/<data set>-<key>/<domain>.u8` holds the pixels and `<domain>.json` everything else. The key is the digest of all
that determines the pixels, so a stale entry is never found. The JSON is put in place last and holds the digest of the
content, which is verified at every opening: an entry that is half-written or damaged is named and built again. A build that
was interrupted goes on after the last block whose digest is in its journal (`partial.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
from blake3 import blake3

from fl_algorithms.data.images import Images
from fl_algorithms.data.partial import Block, Journal
from fl_algorithms.errors import Unusable

FORMAT = 2
CHUNK = 1 << 22

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Source:
    """Where the pictures of a domain come from when they are not in the cache."""

    key: Mapping[str, Any]  # JSON-able; all that determines the pixels
    block: Callable[[int], Block]  # by number, so that an interrupted build need not start again
    blocks: int = 1
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
    stem = quote(domain, safe=" ")  # a domain of a table may be any text, "../x" included
    images = _open(folder, stem)
    if images is None:
        try:
            with _locked(folder, stem):
                images = _open(folder, stem)  # another process may have built it while this one waited
                if images is None:
                    _tell_of_damage(folder, stem)
                    _build(folder, stem, classes, source, progress)
                    images = _open(folder, stem)
        except OSError as error:
            raise Unusable(
                f"cache {folder}: expected a folder with room to write in, found {error.strerror or error}; "
                "set SILOFLOW_CACHE to another folder"
            ) from error
    if images is None:
        raise Unusable(f"cache {folder}: {domain} reads back differently from what was written; check this disk")
    return images


def _tell_of_damage(folder: Path, stem: str) -> None:
    """It mends itself, but a disk that alters files is somebody's to know."""
    left = next((path for path in (folder / f"{stem}.u8", folder / f"{stem}.json") if path.exists()), None)
    if left is not None:
        logging.getLogger(__name__).warning(
            "cache '%s': expected what its digest was made of, found it damaged or half written; it is decoded again", left
        )


@contextmanager
def _locked(folder: Path, stem: str) -> Iterator[None]:
    """Exclusive between processes and given up by the kernel when the holder dies, so a crash leaves nothing stuck."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, stem: str, classes: tuple[str, ...], source: Source, progress: Progress | None) -> None:
    # Fixed names: the lock makes them ours.
    pixels, journal, temporary = (folder / f"{stem}.{suffix}" for suffix in ("part", "journal", "tmp"))
    try:
        entry = _decode(pixels, journal, source, progress) | {"format": FORMAT, "classes": classes}
        if not entry["labels"]:
            raise Unusable(f"domain {stem}: expected pictures, found {len(entry['skipped'])} files of which none can be decoded")
        entry["digest"] = _digest(entry, pixels)
        pixels.replace(folder / f"{stem}.u8")
        with temporary.open("wb") as file:
            file.write(json.dumps(entry).encode())
            _sync(file)
        temporary.replace(folder / f"{stem}.json")
        journal.unlink()
    except Unusable:  # what repairs it changes the key: this part would never be found again
        for path in (pixels, journal):
            path.unlink(missing_ok=True)
        raise


def _decode(pixels: Path, journal: Path, source: Source, progress: Progress | None) -> dict[str, Any]:
    """Write one block after the other, so that memory holds one block, and return what goes into the JSON."""
    with Journal(pixels, journal) as written:
        for number in range(written.blocks, source.blocks):
            written.append(source.block(number))
            if progress and source.total:
                progress(written.pictures + len(written.skipped), source.total)
        _sync(written.file)
        return {
            "shape": [written.pictures, *written.shape],
            "labels": written.labels,
            "groups": written.groups or None,
            "held_out": written.held_out or None,
            "skipped": written.skipped,
        }


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _open(folder: Path, stem: str) -> Images | None:
    """None if there is no entry or it is not intact."""
    try:
        entry = json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
        pixels_path = folder / f"{stem}.u8"
        if entry["digest"] != _digest(entry, pixels_path):
            return None
        return Images(
            pixels=np.memmap(pixels_path, np.uint8, "r", shape=tuple(entry["shape"])),
            labels=np.array(entry["labels"], np.int64),
            classes=tuple(entry["classes"]),
            digest=entry["digest"],
            groups=None if entry["groups"] is None else np.array(entry["groups"], np.int64),
            held_out=None if entry["held_out"] is None else np.array(entry["held_out"], bool),
            skipped=tuple(entry["skipped"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(entry: Mapping[str, Any], pixels: Path) -> str:
    """BLAKE3: a silo waits for it before its first batch, and SHA-256 takes four times as long."""
    names = ("format", "shape", "classes", "labels", "groups", *(["held_out"] if entry["held_out"] is not None else []))
    digest = blake3(json.dumps({name: entry[name] for name in names}, sort_keys=True).encode())
    with pixels.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
