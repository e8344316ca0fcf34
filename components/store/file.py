"""The exchange store of one machine: `<root>/<bucket>/<key>`, each object one file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from components.errors import StoreError
from components.store import SMALL_OBJECT, Fetched, ObjectTooLarge, byte_views, checked_bucket, checked_key

_VECTORS = os.sysconf("SC_IOV_MAX")


class FileStore:
    """A writer killed half-way leaves a hidden file behind that no key can name, and the previous object untouched."""

    def __init__(self, root: Path) -> None:
        self.url = root.as_uri()
        self.retries = 0
        self._root = root

    def put(self, bucket: str, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        path = self._path(bucket, key)
        with self._explained("put", bucket, key):
            self._require(bucket)
            write_file(path, chunks)

    def get(self, bucket: str, key: str, limit: int = SMALL_OBJECT) -> bytes | None:
        path = self._path(bucket, key)
        with self._explained("get", bucket, key):
            try:
                file = path.open("rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError):
                self._require(bucket)
                return None
            with file:
                self._check_size(bucket, key, os.fstat(file.fileno()).st_size, limit)
                return file.readall()

    def fetch(self, bucket: str, key: str, limit: int) -> Fetched | None:
        size = self.size(bucket, key)
        if size is None:
            return None
        self._check_size(bucket, key, size, limit)
        return Fetched(self._path(bucket, key), size)

    def size(self, bucket: str, key: str) -> int | None:
        path = self._path(bucket, key)
        with self._explained("size", bucket, key):
            try:
                return path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                self._require(bucket)
                return None

    def delete(self, bucket: str, key: str) -> None:
        path = self._path(bucket, key)
        with self._explained("delete", bucket, key):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                self._require(bucket)

    def prepare(self, buckets: Iterable[str]) -> None:
        for bucket in buckets:
            with self._explained("prepare", bucket):
                _create_folder(self._root / checked_bucket(bucket))

    def _path(self, bucket: str, key: str) -> Path:
        return self._root / checked_bucket(bucket) / checked_key(key)

    def _require(self, bucket: str) -> None:
        if not (self._root / bucket).is_dir():
            raise StoreError(f"{self.url}: expected bucket {bucket!r}, found no such folder; prepare the store first")

    def _check_size(self, bucket: str, key: str, size: int, limit: int) -> None:
        if size > limit:
            raise ObjectTooLarge(f"{self.url}: {bucket}/{key}", size, limit)

    @contextmanager
    def _explained(self, operation: str, *names: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{self.url}: {operation} {'/'.join(names)} failed: {error.strerror or error}; "
                "check that the folder exists, is writable and has free space"
            ) from None


def write_file(path: Path, chunks: Sequence[bytes | memoryview], mode: int = 0o666) -> None:
    """Replace the file atomically and durably: afterwards it is there, whole, even if the machine loses power."""
    _create_folder(path.parent)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write(unfinished, byte_views(chunks), mode)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write(path: Path, views: list[memoryview], mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        first = 0
        while first < len(views):
            written = os.writev(descriptor, views[first : first + _VECTORS])
            while first < len(views) and written >= len(views[first]):
                written -= len(views[first])
                first += 1
            if written:
                views[first] = views[first][written:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _create_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """A name survives a power cut only when the folder that holds it was synced too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
