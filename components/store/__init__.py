"""The exchange store: objects in buckets, the only place where silos, server and evaluator meet.

`file://` and `s3://` give the same guarantees: an object is complete and durable when `put` returns, and a reader sees
a whole object or none. A bucket that `prepare` has not made is an error; an object that is not there yet is `None`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote

from components.digest import file_digest
from components.errors import InputError

SMALL_OBJECT = 16 * 2**20

# No segment may start with a dot: that rules out "." and ".." and keeps the names of unfinished files out of reach.
_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_BUCKET = re.compile(_SEGMENT)
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_KEY_LENGTH = 1024


class ObjectTooLarge(Exception):
    """The object is larger than its reader accepts; nothing of it was read."""

    def __init__(self, where: str, size: int, limit: int) -> None:
        super().__init__(f"{where}: expected at most {limit} bytes, found {size}")
        self.size = size
        self.limit = limit


@dataclass(frozen=True)
class Fetched:
    """An object as a local file, to be opened or memory-mapped until `release` (or the end of the `with` block)."""

    path: Path
    size: int
    spool: IO[bytes] | None = None  # a private copy, gone when closed
    known_digest: str = ""  # computed while it was received

    def digest(self) -> str:
        return self.known_digest or file_digest(self.path)

    def release(self) -> None:
        if self.spool:
            self.spool.close()

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Store(Protocol):
    """Every method raises StoreError when the store cannot be reached or refuses, InputError for an impossible name."""

    url: str  # for messages; never holds credentials
    retries: int  # requests repeated so far

    def put(self, bucket: str, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """Store the concatenated chunks, replacing what was there; complete and durable on return."""

    def get(self, bucket: str, key: str, limit: int = SMALL_OBJECT) -> bytes | None:
        """The object's bytes, or None when absent. Raises ObjectTooLarge before reading more than `limit`."""

    def fetch(self, bucket: str, key: str, limit: int) -> Fetched | None:
        """The object as a local file, or None when absent. Raises ObjectTooLarge before moving more than `limit`."""

    def size(self, bucket: str, key: str) -> int | None:
        """Bytes in the object, or None when absent."""

    def delete(self, bucket: str, key: str) -> None:
        """Remove the object; an absent one is fine."""

    def prepare(self, buckets: Iterable[str]) -> None:
        """Create the buckets that do not exist yet."""


def open_store(url: str, role: str | None = None) -> Store:
    """The store at `file:///folder`, at a plain path, or at `s3://host[:port]/prefix[?tls=true|false&region=...]`.

    `role` names whose credentials an s3 store uses. Nothing is contacted or created yet.
    """
    # Imported on demand: a run on one machine must not pay for the S3 client.
    if url.startswith("s3://"):
        from components.store.s3 import S3Store

        return S3Store(url, role)
    from components.store.file import FileStore

    return FileStore(_folder(url))


def check_address(url: str) -> None:
    """Refuse what `open_store` could never open. Needs no keys."""
    if url.startswith("s3://"):
        from components.store.access import parse_address

        parse_address(url)
    else:
        _folder(url)


def checked_bucket(bucket: str) -> str:
    if not _BUCKET.fullmatch(bucket):
        raise InputError(f"bucket {bucket[:80]!r}: expected 1 to 200 of A-Z a-z 0-9 . _ -, no leading dot; rename the silo or role")
    return bucket


def checked_key(key: str) -> str:
    if len(key) > _KEY_LENGTH or not _KEY.fullmatch(key):
        raise InputError(
            f"key {key[:80]!r}: expected at most {_KEY_LENGTH} characters of A-Z a-z 0-9 . _ -, in parts between '/' "
            "that are neither empty nor start with a dot; rename the run, silo or exchange"
        )
    return key


def byte_views(chunks: Sequence[bytes | memoryview]) -> list[memoryview]:
    """The non-empty chunks as flat byte views, without copying them."""
    views = [memoryview(chunk) for chunk in chunks]
    return [view.cast("B") for view in views if view.nbytes]


def _folder(url: str) -> Path:
    scheme, separator, rest = url.partition("://")
    if url and not separator:
        return Path(url).absolute()
    if scheme != "file" or not rest.startswith("/"):
        # The address may hold a password: only its scheme is repeated.
        raise InputError(f"store: expected a folder, file:///folder or s3://host/prefix, found {scheme + separator!r}")
    return Path(unquote(rest))
