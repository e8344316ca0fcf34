"""The exchange store of a federation: any S3 service, through the `minio` client. Bucket `b` is `<prefix>-b` there.

A role needs `s3:ListBucket` on every bucket it reads: without it, S3 answers 403, not 404, for an absent object.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, TypeVar, cast

import urllib3
from minio import Minio
from minio.error import S3Error, ServerError
from urllib3.exceptions import ProtocolError
from urllib3.response import BaseHTTPResponse

from components.digest import Hashing
from components.errors import InputError, StoreError
from components.layout import SERVER
from components.store import SMALL_OBJECT, Fetched, ObjectTooLarge, byte_views, checked_key
from components.store.access import RoleKeys, parse_address, trusted_certificates
from components.store.faults import FAULTS, diagnosis

log = logging.getLogger(__name__)
T = TypeVar("T")

_SINGLE_REQUEST = 16 * 2**20
_PART = 8 * 2**20
_PARALLEL_PARTS = 3
_BLOCK = 2**20
_LONGEST_PAUSE = 16.0


class S3Store:
    """One connection pool, one role. What fails for a passing reason is tried SILOFLOW_STORE_ATTEMPTS times in all."""

    def __init__(self, url: str, role: str | None) -> None:
        self._address = address = parse_address(url)
        self.url = address.url
        self.retries = 0
        self._attempts = _attempts()
        # The server maps every silo's update at once: on disk they are not its memory.
        self._spool_in_memory = role != SERVER
        self._keys = RoleKeys(address.url, role)
        # urllib3's own retries are off: they would not be counted, and do not cover the body of an answer.
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=5, read=60),
            maxsize=10,
            retries=False,
            ssl_context=trusted_certificates() if address.tls else None,
        )
        try:
            self._client = Minio(
                endpoint=address.host,
                secure=address.tls,
                region=address.region,
                credentials=self._keys,
                http_client=self._pool,
            )
        except ValueError as error:
            raise InputError(f"store {self.url}: {error}; correct its host or region") from None

    def put(self, bucket: str, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        name = self._name(bucket, key)
        views = byte_views(chunks)
        total = sum(map(len, views))

        def send() -> None:
            written = self._client.put_object(
                bucket_name=name,
                object_name=key,
                data=cast(BinaryIO, _ChunkReader(views)),
                length=total,
                part_size=_SINGLE_REQUEST if total <= _SINGLE_REQUEST else _PART,
                num_parallel_uploads=_PARALLEL_PARTS,
            )
            # S3 may report under status 200 that a multipart upload could not be completed; the client does not look.
            if not written.etag:
                raise ServerError("upload not completed", 500)

        self._attempt(f"put {bucket}/{key}", send)

    def get(self, bucket: str, key: str, limit: int = SMALL_OBJECT) -> bytes | None:
        return self._download("get", bucket, key, limit, lambda response, size: b"".join(_body(response, size)))

    def fetch(self, bucket: str, key: str, limit: int) -> Fetched | None:
        try:
            return self._download("fetch", bucket, key, limit, self._spool)
        except OSError as error:
            raise StoreError(
                f"{self.url}: fetch {bucket}/{key} failed on this machine: {error.strerror or error}; "
                "check its free memory and the free space of its temporary folder"
            ) from None

    def _spool(self, response: BaseHTTPResponse, size: int) -> Fetched:
        file, path = _spool_file(self._spool_in_memory)
        try:
            with Hashing() as hashing:
                for block in _body(response, size):
                    hashing.add(block)
                    file.write(block)
            file.flush()
        except BaseException:
            file.close()
            raise
        return Fetched(path, size, file, hashing.digest)

    def size(self, bucket: str, key: str) -> int | None:
        name = self._name(bucket, key)

        def ask() -> int | None:
            try:
                found = self._client.stat_object(bucket_name=name, object_name=key)
            except S3Error as error:
                # The answer to a HEAD request has no body that would tell a missing bucket from a missing object.
                if error.code != "NoSuchKey":
                    raise
                if not self._client.bucket_exists(bucket_name=name):
                    raise error.copy("NoSuchBucket", "no such bucket") from None
                return None
            # A connection that ends inside the headers passes for a shorter answer.
            if not found.etag:
                raise ProtocolError("answer without an ETag")
            return found.size

        return self._attempt(f"size {bucket}/{key}", ask)

    def delete(self, bucket: str, key: str) -> None:
        name = self._name(bucket, key)
        self._attempt(f"delete {bucket}/{key}", partial(self._client.remove_object, bucket_name=name, object_name=key))

    def prepare(self, buckets: Iterable[str]) -> None:
        for bucket in buckets:
            self._attempt(f"prepare {bucket}", partial(self._create, self._name(bucket)))

    def _create(self, name: str) -> bool:
        """Whether it was this call that made the bucket."""
        if self._client.bucket_exists(bucket_name=name):
            return False
        try:
            self._client.make_bucket(bucket_name=name)
        except S3Error as error:
            # Another process was quicker.
            if error.code != "BucketAlreadyOwnedByYou":
                raise
            return False
        return True

    def _name(self, bucket: str, key: str | None = None) -> str:
        """The bucket's name on the server, once it and the key are known to be well formed."""
        if key is not None:
            checked_key(key)
        return self._address.bucket_name(bucket)

    def _download(self, operation: str, bucket: str, key: str, limit: int, consume: Callable[[BaseHTTPResponse, int], T]) -> T | None:
        name = self._name(bucket, key)

        def receive() -> T | None:
            try:
                response = self._client.get_object(bucket_name=name, object_name=key)
            except S3Error as error:
                if error.code == "NoSuchKey":
                    return None
                raise
            try:
                length = response.headers.get("Content-Length")
                if not length or not length.isdecimal():
                    raise ProtocolError("answer without a length")
                if int(length) > limit:
                    raise ObjectTooLarge(f"{self.url}: {bucket}/{key}", int(length), limit)
                return consume(response, int(length))
            finally:
                response.close()
                response.release_conn()

        return self._attempt(f"{operation} {bucket}/{key}", receive)

    def _attempt(self, what: str, call: Callable[[], T]) -> T:
        attempt = 0
        while True:
            attempt += 1
            used = self._keys.retrieve()
            try:
                return call()
            except FAULTS as error:
                fault = diagnosis(error)
            renewed = fault.denied and self._keys.renew() != used
            if not renewed and (not fault.passing or attempt >= self._attempts):
                tries = f"{attempt} attempt{'s' if attempt > 1 else ''}"
                raise StoreError(f"{self.url}: {what} failed after {tries}: {fault.cause}; {fault.advice}")
            # Full jitter: silos that lost the same server must not come back in step.
            pause = 0.0 if renewed else random.uniform(0, min(_LONGEST_PAUSE, 2.0 ** (attempt - 1)))
            log.warning("%s: %s: %s at attempt %d, next in %.1f s", self.url, what, fault.cause, attempt, pause)
            self.retries += 1
            time.sleep(pause)


class _ChunkReader:
    """What the client reads an upload from: joins one part at a time, never the whole object."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = iter(views)
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        pieces = []
        while size and (self._rest or self._next()):
            pieces.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _next(self) -> bool:
        self._rest = next(self._views, memoryview(b""))
        return bool(self._rest)


def _attempts() -> int:
    value = os.environ.get("SILOFLOW_STORE_ATTEMPTS", "6")
    if not value.isdecimal() or int(value) < 1:
        raise InputError(f"SILOFLOW_STORE_ATTEMPTS: expected a whole number from 1, found {value!r}")
    return int(value)


def _body(response: BaseHTTPResponse, size: int) -> Iterator[bytes]:
    """The object as stored, not decoded: a silo may label it as compressed, and what that unpacks to has no limit."""
    received = 0
    for block in response.stream(_BLOCK, decode_content=False):
        received += len(block)
        yield block
    if received != size:
        raise ProtocolError(f"answer of {received} instead of {size} bytes")


def _spool_file(in_memory: bool) -> tuple[IO[bytes], Path]:
    """Nameless on Linux, so that a killed process leaves nothing behind; in memory, where a busy disk cannot slow it down."""
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("siloflow-spool"), "wb") if in_memory else tempfile.TemporaryFile()  # noqa: SIM115
        return file, Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
    named = tempfile.NamedTemporaryFile(prefix="siloflow-spool-")  # noqa: SIM115
    return named, Path(named.name)
