"""Reading what the server broadcast, and what a silo kept for itself. Nothing is used before its digest was checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from components import layout
from components.digest import file_digest
from components.errors import ExpiredError, StoreError
from components.federation import Federation
from components.guards import MANIFEST_LIMIT
from components.manifest import BroadcastManifest, Inbox, M, Stored, UpdateManifest
from components.store import ObjectTooLarge
from components.store.file import FileStore
from components.wire import Absent, Malformed, Payload, WrongDigest, encode
from fl_algorithms.contract import Tensors

KEPT_PARTS = 3  # maps of recent payloads: a model is validated and trained on without being read twice


def read_broadcast(federation: Federation, round: int, exchange: str) -> BroadcastManifest | None:
    manifest = _of_server(federation, BroadcastManifest, layout.GLOBAL, layout.broadcast_key(federation.run, round, exchange))
    if manifest is None:
        return None
    if (manifest.run, manifest.spec) != (federation.run, federation.digest):
        raise StoreError(
            f"{federation.store.url}: broadcast of round {round} {exchange} belongs to another spec or run; use another run folder or store"
        )
    return manifest


def _of_server(federation: Federation, kind: type[M], bucket: str, key: str) -> M | None:
    try:
        data = federation.store.get(bucket, key)
        return kind.decode(data) if data is not None else None
    except (Malformed, ObjectTooLarge) as error:
        raise StoreError(f"{federation.store.url}: {bucket}/{key}: {error}; it is not what the server published, start a new run") from None


def read_update(federation: Federation, author: str, round: int, exchange: str) -> UpdateManifest | None:
    """An author's own earlier manifest of this step, if it is of this very run; anything else is as good as absent."""
    _, key = layout.update_keys(federation.run, round, exchange)
    try:
        data = federation.store.get(layout.author_bucket(author), key, MANIFEST_LIMIT)
        manifest = UpdateManifest.decode(data) if data is not None else None
    except (Malformed, ObjectTooLarge):
        return None
    return manifest if manifest is not None and manifest.spec == federation.digest else None


def open_payload(federation: Federation, bucket: str, key: str, stored: Stored) -> Payload:
    """The payload as mapped tensors, after size and digest were compared with its manifest."""
    absent = Absent(f"payload {bucket}/{key}: expected {stored.bytes} bytes, found nothing")
    fetched = federation.store.fetch(bucket, key, stored.bytes)
    if fetched is None:
        raise absent
    try:
        with fetched:
            if fetched.size != stored.bytes or fetched.digest() != stored.digest:
                raise WrongDigest(f"payload {bucket}/{key}: does not match the digest in its manifest")
            return Payload(fetched.path)
    except FileNotFoundError:  # deleted since: in a folder, nothing holds it until it is opened
        raise absent from None


class Received(Mapping[str, Tensors]):
    """The parts in force for one reader, each read from the store when first looked at."""

    def __init__(self, federation: Federation, manifest: BroadcastManifest, silo: str | None, kept: dict[str, Payload]) -> None:
        self._federation, self._manifest, self._silo, self._kept = federation, manifest, silo, kept
        self._inboxes: dict[tuple[int, str], Inbox | None] = {}
        self.bytes = 0

    def __getitem__(self, part: str) -> Tensors:
        federation = self._federation
        if part in self._manifest.parts:
            stored = self._manifest.parts[part]
            bucket, key = layout.part_place(federation.run, stored.round, stored.exchange, part, None)
            return self._open(bucket, key, stored)
        step = self._manifest.personal[part]
        inbox = self._inbox(step)
        if inbox is None or part not in inbox.parts:
            raise KeyError(part)
        bucket, key = layout.part_place(federation.run, *step, part, self._silo)
        return self._open(bucket, key, inbox.parts[part])

    def __iter__(self) -> Iterator[str]:
        return iter([*self._manifest.parts, *self._manifest.personal])

    def __len__(self) -> int:
        return len(self._manifest.parts) + len(self._manifest.personal)

    def _open(self, bucket: str, key: str, stored: Stored) -> Payload:
        if key not in self._kept:
            try:
                self._kept[key] = open_payload(self._federation, bucket, key, stored)
            except (Malformed, ObjectTooLarge) as error:
                if isinstance(error, Absent):
                    self._refuse_late()
                raise StoreError(f"{self._federation.store.url}: {error}; the store lost or changed what the server published") from None
            self.bytes += stored.bytes
            while len(self._kept) > KEPT_PARTS:
                del self._kept[next(iter(self._kept))]
        return self._kept[key]

    def _refuse_late(self) -> None:
        """What is absent has expired (components.retention) if the run is that far ahead of this reader."""
        federation, round, keep = self._federation, self._manifest.round, self._federation.spec.keep_rounds
        ahead = min(round + (keep or 0) - 1, federation.spec.rounds)
        if keep is not None and ahead >= 0 and read_broadcast(federation, ahead, federation.last_exchange(ahead)) is not None:
            raise ExpiredError(
                f"round {round}: what the server broadcast then has expired, the run is keep_rounds={keep} or more rounds ahead; "
                "go on with the current round"
            )

    def _inbox(self, step: tuple[int, str]) -> Inbox | None:
        if self._silo is None:
            return None
        if step not in self._inboxes:
            bucket, key = layout.silo_bucket(self._silo), layout.inbox_key(self._federation.run, *step)
            inbox = _of_server(self._federation, Inbox, bucket, key)
            if inbox is None and self._silo in self._manifest.roster:
                self._refuse_late()
                raise StoreError(f"{self._federation.store.url}: {bucket}/{key}: found nothing; the store lost what the server published")
            self._inboxes[step] = inbox
        return self._inboxes[step]


class PrivateState:
    """What a role keeps for itself between steps, on its own volume: one checksummed file per step that changed it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = FileStore(folder.parent)

    def before(self, round: int, position: int) -> dict[str, torch.Tensor]:
        """The state as the last step before this one left it: a repeated step starts from the same state."""
        earlier = [path for path in self._saved() if path.name[:9] < f"{round:06}.{position:02}"]
        if not earlier:
            return {}
        path, digest = earlier[-1], earlier[-1].name.split(".")[2]
        if not file_digest(path).startswith(f"blake3:{digest}"):
            raise StoreError(f"private state {path}: does not match its checksum; restore the volume or start a new run")
        return dict(Payload(path))

    def save(self, round: int, position: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replaces what an earlier attempt at this step saved: where sums are not repeated bit for bit, that is another file."""
        if tensors:
            encoded, step = encode(tensors), f"{round:06}.{position:02}"
            name = f"{step}.{encoded.digest[7:39]}.safetensors"
            self._files.prepare([self._folder.name])
            self._files.put(self._folder.name, name, encoded.chunks)
            for path in self._saved():
                if path.name.startswith(step) and path.name != name:
                    path.unlink(missing_ok=True)

    def prune(self) -> None:
        """The state a repeated step starts from and the one it made are needed; older ones are not."""
        for path in self._saved()[:-2]:
            path.unlink(missing_ok=True)

    def _saved(self) -> list[Path]:
        return (
            sorted(Path(entry.path) for entry in os.scandir(self._folder) if not entry.name.startswith("."))
            if self._folder.is_dir()
            else []
        )
