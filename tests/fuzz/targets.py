"""What is fuzzed: everything that parses bytes of others, through the product's own functions, with what it may answer.

A target returns how the input was taken, or raises one of its `answers`. Anything else that comes out is a crash; an input
that is taken although it is not what was published is `Accepted`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from components import layout
from components.digest import digest_of
from components.errors import ExpiredError, InputError, StoreError
from components.federation import Federation
from components.guards import Expected, Rejected
from components.manifest import BroadcastManifest, Inbox, Part, Rejection, Stored, UpdateManifest
from components.received import Received, read_broadcast
from components.server import _checked
from components.spec import FederationSpec, parse_spec, read_spec
from components.wire import CODES, Malformed, Payload, encode
from fl_algorithms.contract import TensorShape
from pipelines.silos import read_silos

SILO, ROUND, EXCHANGE, SAMPLES = "ash", 3, "train", 7
CORPUS = Path(__file__).with_name("corpus")
UPDATE = {
    "weight": torch.arange(6, dtype=torch.float32).view(2, 3) / 7,
    "rows": torch.ones(2, 4, dtype=torch.float16),
    "count": torch.tensor(5),
}
LAYOUT = {
    "weight": TensorShape(torch.float32, (2, 3)),
    "rows": TensorShape(torch.float16, (None, 4)),
    "count": TensorShape(torch.int64, ()),
}
FREE = {"seconds", "began", "metrics", "received_bytes"}  # fields of an update that a silo may fill as it likes


class Accepted(Exception):
    """The input was taken for something it is not."""


@dataclass(frozen=True)
class Target:
    """`corpus` begins with what the product itself writes, if it writes such a thing; the rest are the files in the folder of this name."""

    name: str
    feed: Callable[[bytes], str]
    answers: tuple[type[Exception], ...]
    share: float  # of a campaign's inputs
    corpus: list[bytes]


class Bench:
    """A folder with a store in which one silo has published one update, and the server one broadcast."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "input"
        self.federation = Federation(FederationSpec(), "run", folder, layout.SERVER)
        self.federation.store.prepare(layout.buckets([SILO]))
        self.expected = Expected(self.federation.run, self.federation.digest, ROUND, EXCHANGE, LAYOUT, SAMPLES, SAMPLES)
        self.common: dict[str, Any] = {"run": self.federation.run, "spec": self.federation.digest, "round": ROUND, "exchange": EXCHANGE}
        self.payload = b"".join(encode(UPDATE).chunks)
        self.manifest = self.vouching(self.payload)
        store, bucket = folder / "store", layout.silo_bucket(SILO)
        payload, manifest = layout.update_keys(self.federation.run, ROUND, EXCHANGE)
        self.payload_file, self.manifest_file = store / bucket / payload, store / bucket / manifest
        self.broadcast_file = store / layout.GLOBAL / layout.broadcast_key(self.federation.run, ROUND, EXCHANGE)
        self.inbox_file = store / bucket / layout.inbox_key(self.federation.run, ROUND, EXCHANGE)
        for path in (self.payload_file, self.broadcast_file, self.inbox_file):
            path.parent.mkdir(parents=True, exist_ok=True)
        for part, silo in (("model", None), ("pool", SILO)):
            self.federation.store.put(*layout.part_place("run", ROUND, EXCHANGE, part, silo), [self.payload])
        self.publish(self.manifest.encode(), self.payload)

    def vouching(self, payload: bytes) -> UpdateManifest:
        tensors = {name: (CODES[tensor.dtype], list(tensor.shape)) for name, tensor in sorted(UPDATE.items())}
        stored = Stored(bytes=len(payload), digest=digest_of([payload]))
        return UpdateManifest(
            **self.common, author=SILO, payload=stored, tensors=tensors, samples=SAMPLES, metrics={"loss": 0.5}, seconds={"compute": 1.5}
        )

    def publish(self, manifest: bytes, payload: bytes) -> None:
        self.payload_file.write_bytes(payload)
        self.manifest_file.write_bytes(manifest)

    def take(self) -> tuple[UpdateManifest, Payload]:
        """As the server step takes it."""
        found = _checked(self.federation, SILO, self.expected, {})
        assert found is not None and found[1] is not None
        return found[0], found[1]

    # ---- targets

    def feed_manifest(self, data: bytes) -> str:
        """Taken only if it says what the real one says."""
        self.publish(data, self.payload)
        manifest, _ = self.take()
        if manifest.model_dump(exclude=FREE) != self.manifest.model_dump(exclude=FREE):
            raise Accepted(f"{manifest.model_dump(exclude=FREE)}")
        return "taken"

    def feed_payload(self, data: bytes) -> str:
        """Under the manifest of other bytes: none is taken but those."""
        self.publish(self.manifest.encode(), data)
        self.take()
        if data != self.payload:
            raise Accepted(f"{len(data)} bytes under the digest of others")
        return "taken"

    def feed_vouched(self, data: bytes) -> str:
        """Under a manifest of their own: taken only if another reader finds finite tensors of the agreed layout, the same ones."""
        self.publish(self.vouching(data).encode(), data)
        _, payload = self.take()
        theirs = load(data)
        if theirs.keys() != LAYOUT.keys():
            raise Accepted(f"tensors {sorted(theirs)}")
        for name, tensor in theirs.items():
            wanted = [UPDATE[name].shape[at] if length is None else length for at, length in enumerate(LAYOUT[name].shape)]
            if (tensor.dtype, list(tensor.shape)) != (LAYOUT[name].dtype, wanted) or not torch.isfinite(tensor).all():
                raise Accepted(f"tensor {name}: {tensor}")
            if not torch.equal(tensor, payload[name]):
                raise Accepted(f"tensor {name}: read as {payload[name]}, holds {tensor}")
        return "taken"

    def feed_header(self, data: bytes) -> str:
        """Any safetensors file, every tensor of it read."""
        self.file.write_bytes(data)
        payload = Payload(self.file)
        for name in payload:
            if payload[name].shape != torch.Size([length or 0 for length in payload.shapes[name].shape]):
                raise Accepted(f"tensor {name}")
            payload.forget()
        return "read"

    def feed_broadcast(self, data: bytes) -> str:
        """What a silo does with it: every part is looked for where it says."""
        self.broadcast_file.write_bytes(data)
        self.inbox_file.write_bytes(self.inbox.encode())
        return self._received()

    def feed_inbox(self, data: bytes) -> str:
        self.broadcast_file.write_bytes(self.broadcast.encode())
        self.inbox_file.write_bytes(data)
        return self._received()

    def _received(self) -> str:
        manifest = read_broadcast(self.federation, ROUND, EXCHANGE)
        assert manifest is not None
        received = Received(self.federation, manifest, SILO, {})
        found = [part for part in received if part in received]
        return f"{len(found)} parts" if len(found) < 3 else "many parts"

    def feed_spec(self, data: bytes) -> str:
        self.file.write_bytes(data)
        parse_spec(read_spec(self.file)).digest()
        return "read"

    def feed_silos(self, data: bytes) -> str:
        self.file.write_bytes(data)
        names = read_silos(self.file).names
        if not all(name.isascii() and name.replace("-", "").isalnum() and name == name.lower() for name in names):
            raise Accepted(f"silo names {names}")
        return "read"

    # ---- what the targets that follow a broadcast need beside their input

    @property
    def broadcast(self) -> BroadcastManifest:
        part = Part(bytes=len(self.payload), digest=digest_of([self.payload]), round=ROUND, exchange=EXCHANGE)
        return BroadcastManifest(
            **self.common, author=layout.SERVER, parts={"model": part}, personal={"pool": (ROUND, EXCHANGE)}, roster={SILO: SAMPLES},
            participants=[SILO], accepted=[SILO], rejected=[Rejection(silo="birch", reason="nonfinite", detail="tensor a")],
            missing=["cedar"], weights={SILO: 1.0},
        )  # fmt: skip

    @property
    def inbox(self) -> Inbox:
        stored = Stored(bytes=len(self.payload), digest=digest_of([self.payload]))
        return Inbox(**self.common, author=layout.SERVER, parts={"pool": stored})

    def targets(self) -> list[Target]:
        update, server, user = (Rejected,), (StoreError, InputError, ExpiredError), (InputError,)
        return [
            Target("manifest", self.feed_manifest, update, 0.25, [self.manifest.encode(), *self.stored("manifest")]),
            Target("payload", self.feed_payload, update, 0.1, [self.payload, *self.stored("payload")]),
            Target("vouched", self.feed_vouched, update, 0.2, [self.payload, *self.stored("payload")]),
            Target("header", self.feed_header, (Malformed,), 0.2, [self.payload, *self.stored("payload")]),
            Target("broadcast", self.feed_broadcast, server, 0.1, [self.broadcast.encode(), *self.stored("broadcast")]),
            Target("inbox", self.feed_inbox, server, 0.05, [self.inbox.encode(), *self.stored("inbox")]),
            Target("spec", self.feed_spec, user, 0.05, self.stored("spec")),
            Target("silos", self.feed_silos, user, 0.05, self.stored("silos")),
        ]

    def stored(self, name: str) -> list[bytes]:
        """The digest of the spec changes with every new field of it: files of the corpus say @SPEC@ instead."""
        paths = sorted((CORPUS / name).iterdir())
        return [path.read_bytes().replace(b"@SPEC@", self.federation.digest.encode()) for path in paths]
