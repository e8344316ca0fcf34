"""A silo that publishes poison: every kind of update that must never be averaged, and the reason it is rejected for."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components import layout
from components.digest import digest_of
from components.wire import CODES, Payload, encode
from tests.federations import Run

BAD = "birch"
STEP, JOIN = (1, "train"), (0, "join")
COUNTER, VARIANCE = "body.0.1.num_batches_tracked", "body.0.1.running_var"
Tensors = dict[str, torch.Tensor]


class Forger:
    """Rewrites what the bad silo has published, as someone with the silo's credentials can."""

    def __init__(self, run: Run, step: tuple[int, str] = STEP, silo: str = BAD) -> None:
        self.run, self.silo = run, silo
        self.payload, self.manifest = self.published(silo, step)
        self.fields: dict[str, Any] = json.loads(self.manifest.read_bytes())

    def published(self, silo: str, step: tuple[int, str]) -> tuple[Path, Path]:
        """Payload and manifest of a silo in a step."""
        payload, manifest = (self.run.folder / "store" / layout.silo_bucket(silo) / key for key in layout.update_keys(self.run.name, *step))
        return payload, manifest

    def copy(self, silo: str, step: tuple[int, str]) -> None:
        """What was published there, byte for byte, in place of the own update."""
        for source, place in zip(self.published(silo, step), (self.payload, self.manifest), strict=True):
            if source.exists():
                place.write_bytes(source.read_bytes())

    def declare(self, **fields: Any) -> None:
        self.fields.update(fields)
        self.manifest.write_text(json.dumps(self.fields))

    def raw(self, content: bytes) -> None:
        """These bytes as payload, with a manifest that vouches for them."""
        self.payload.write_bytes(content)
        self.declare(payload={"bytes": len(content), "digest": digest_of([content])})

    def tensors(self, change: Callable[[Tensors], object]) -> None:
        """A well-formed payload with a well-formed manifest and changed tensors."""
        tensors = {name: tensor.clone() for name, tensor in Payload(self.payload).items()}
        change(tensors)
        self.raw(b"".join(encode(tensors).chunks))
        self.declare(tensors={name: [CODES[tensor.dtype], list(tensor.shape)] for name, tensor in sorted(tensors.items())})

    def header(self, change: Callable[[bytes], bytes]) -> None:
        content = self.payload.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header = change(content[8 : 8 + length])
        self.raw(struct.pack("<Q", len(header)) + header + content[8 + length :])


def spoil(value: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors["head.weight"].view(-1)[-1:].fill_(value)


def repeat_first(header: bytes) -> bytes:
    """The first tensor once more, letter for letter: which of the two counts would be the reader's choice."""
    name, entry = next(iter(json.loads(header).items()))
    return header.rstrip()[:-1] + f',"{name}":{json.dumps(entry)}}}'.encode()


def poison(reason: str, forge: Callable[[Forger], object], name: str) -> Any:
    return pytest.param(reason, forge, id=name)


POISON = [
    poison("nonfinite", lambda f: f.tensors(spoil(float("nan"))), "nan"),
    poison("nonfinite", lambda f: f.tensors(spoil(float("inf"))), "infinity"),
    poison("nonfinite", lambda f: f.tensors(spoil(float("-inf"))), "minus-infinity"),
    poison("magnitude", lambda f: f.tensors(spoil(1e38)), "1e38"),
    poison("magnitude", lambda f: f.tensors(spoil(-1e38)), "minus-1e38"),
    poison("magnitude", lambda f: f.tensors(lambda t: t[COUNTER].fill_(2**63 - 1)), "counter-about-to-overflow"),
    poison("variance", lambda f: f.tensors(lambda t: t[VARIANCE].neg_()), "negative-variance"),
    poison("shape", lambda f: f.tensors(lambda t: t.update({"head.bias": torch.zeros(1)})), "shape-that-would-broadcast"),
    poison("shape", lambda f: f.tensors(lambda t: t.update({"head.bias": torch.zeros(())})), "scalar-that-would-broadcast"),
    poison("shape", lambda f: f.tensors(lambda t: t.update({"head.weight": t["head.weight"][:1].clone()})), "row-that-would-broadcast"),
    poison("shape", lambda f: f.tensors(lambda t: t.update({"head.bias": torch.zeros(0)})), "zero-size"),
    poison("shape", lambda f: f.tensors(lambda t: t.update({"head.weight": torch.zeros(0, t["head.weight"].shape[1])})), "zero-rows"),
    poison("shape", lambda f: f.tensors(lambda t: t.update({"head.bias": torch.zeros(1, 3)})), "one-dimension-more"),
    poison("shape", lambda f: f.tensors(lambda t: t.update({"head.weight": t["head.weight"].T.contiguous()})), "transposed"),
    poison("dtype", lambda f: f.tensors(lambda t: t.update({"head.bias": t["head.bias"].double()})), "float64"),
    poison("dtype", lambda f: f.tensors(lambda t: t.update({"head.bias": t["head.bias"].half()})), "float16"),
    poison("keys", lambda f: f.tensors(lambda t: t.update({"extra": torch.zeros(1)})), "key-too-many"),
    poison("keys", lambda f: f.tensors(lambda t: t.update({"extra": torch.zeros(0)})), "key-too-many-of-zero-size"),
    poison("keys", lambda f: f.tensors(lambda t: t.update({"../../silo-ash/head.bias": torch.zeros(1)})), "key-that-is-a-path"),
    poison("keys", lambda f: f.tensors(lambda t: t.pop("head.bias")), "key-too-few"),
    poison("keys", lambda f: f.tensors(lambda t: t.update({"head.Bias": t.pop("head.bias")})), "key-renamed"),
    poison("keys", lambda f: f.declare(tensors={}), "manifest-lists-no-tensors"),
    poison("keys", lambda f: f.declare(payload=None), "no-payload-declared"),
    poison("digest", lambda f: f.declare(payload={**f.fields["payload"], "digest": "blake3:" + "0" * 64}), "wrong-digest"),
    poison("digest", lambda f: f.payload.write_bytes(f.payload.read_bytes()[:-4]), "truncated"),
    poison("digest", lambda f: f.payload.write_bytes(b""), "truncated-to-nothing"),
    poison("digest", lambda f: f.payload.write_bytes(f.payload.read_bytes()[:-1] + b"\0"), "one-byte-changed"),
    poison("digest", lambda f: f.payload.write_bytes(f.published("ash", STEP)[0].read_bytes()), "another-update-under-the-same-name"),
    poison("malformed", lambda f: f.payload.unlink(), "payload-absent"),
    poison("malformed", lambda f: f.raw(b""), "empty-payload"),
    poison("malformed", lambda f: f.raw(f.payload.read_bytes()[:-4]), "truncated-but-vouched-for"),
    poison("malformed", lambda f: f.raw(f.payload.read_bytes() + b"\0" * 8), "bytes-no-tensor-owns"),
    poison("malformed", lambda f: f.raw(struct.pack("<Q", 2 << 30) + f.payload.read_bytes()[8:]), "header-of-2-GB"),
    poison("malformed", lambda f: f.raw(b"\x80\x04\x95" + b"x" * 100), "not-a-payload"),
    poison("malformed", lambda f: f.header(lambda h: h.replace(b'"head.bias"', b'"head.weight"', 1)), "header-names-a-tensor-twice"),
    poison("malformed", lambda f: f.header(repeat_first), "header-repeats-a-tensor"),
    poison("malformed", lambda f: f.header(lambda h: b"[" * 200_000), "header-deeply-nested"),
    poison("malformed", lambda f: f.header(lambda h: h.replace(b'"F32"', b'"F99"', 1)), "header-with-unknown-type"),
    poison("malformed", lambda f: f.header(lambda h: h.replace(b'"F32"', b'"U32"', 1)), "header-with-a-type-that-no-model-has"),
    poison("size", lambda f: f.declare(payload={**f.fields["payload"], "bytes": 1 << 39}), "declares-too-many-bytes"),
    poison("size", lambda f: f.payload.write_bytes(f.payload.read_bytes() + b"\0" * (2 << 20)), "is-larger-than-declared"),
    poison("size", lambda f: f.raw(f.payload.read_bytes() + b"\0" * (2 << 20)), "is-too-large-and-says-so"),
    poison("size", lambda f: f.manifest.write_bytes(b" " * (5 << 20)), "manifest-of-5-MB"),
    poison("malformed", lambda f: f.manifest.write_bytes(b""), "manifest-empty"),
    poison("malformed", lambda f: f.manifest.write_bytes(b"\xff\xfe not JSON"), "manifest-not-json"),
    poison("malformed", lambda f: f.manifest.write_bytes(b"[" * 1_000_000), "manifest-deeply-nested"),
    poison("malformed", lambda f: f.manifest.write_bytes(b"[]"), "manifest-a-list"),
    poison("malformed", lambda f: f.declare(surprise=1), "manifest-with-unknown-field"),
    poison("malformed", lambda f: f.declare(digest=1), "manifest-with-a-field-called-digest"),
    poison("malformed", lambda f: f.declare(schema_version=2), "manifest-of-another-version"),
    poison("malformed", lambda f: f.declare(metrics={"loss": float("nan")}), "metric-not-a-number"),
    poison("malformed", lambda f: f.declare(metrics={str(n): 1.0 for n in range(101)}), "too-many-metrics"),
    poison("stale", lambda f: f.declare(round=0), "earlier-round"),
    poison("stale", lambda f: f.declare(round=2), "later-round"),
    poison("stale", lambda f: f.declare(exchange="join"), "other-exchange"),
    poison("stale", lambda f: f.copy(BAD, (0, "join")), "replay-of-an-earlier-step"),
    poison("stale", lambda f: f.declare(exchange="../../../silo-ash/rounds/1/train"), "exchange-that-is-a-path"),
    poison("run", lambda f: f.declare(run="another"), "other-run"),
    poison("run", lambda f: f.declare(run="../another"), "run-that-is-a-path"),
    poison("spec", lambda f: f.declare(spec="0" * 64), "other-spec"),
    poison("author", lambda f: f.declare(author="ash"), "in-the-name-of-another"),
    poison("author", lambda f: f.declare(author="mallory"), "unknown-silo"),
    poison("author", lambda f: f.declare(author="../silo-ash"), "author-that-is-a-path"),
    poison("author", lambda f: f.copy("ash", STEP), "copy-of-another-silo"),
    poison("malformed", lambda f: f.declare(payload={**f.fields["payload"], "key": "../silo-ash/update"}), "names-another-silos-object"),
    poison("samples", lambda f: f.declare(samples=0), "no-samples"),
    poison("samples", lambda f: f.declare(samples=f.fields["samples"] + 1), "more-samples-than-joined-with"),
    poison("malformed", lambda f: f.declare(samples=-1), "negative-samples"),
    poison("malformed", lambda f: f.declare(samples=10**18), "absurdly-many-samples"),
    poison("malformed", lambda f: f.declare(samples=float("nan")), "samples-not-a-number"),
    poison("malformed", lambda f: f.declare(samples="27"), "samples-a-string"),
    poison("malformed", lambda f: f.declare(samples=27.0), "samples-a-float"),
    poison("malformed", lambda f: f.declare(samples=True), "samples-a-bool"),
]

JOIN_POISON = [  # weights follow from what is said here
    poison("samples", lambda f: f.declare(samples=0), "join-with-nothing"),
    poison("samples", lambda f: f.declare(samples=10**9 + 1), "join-with-more-than-anybody-has"),
    poison("samples", lambda f: f.declare(samples=10**12), "join-with-1e12"),
    poison("malformed", lambda f: f.declare(samples=10**18), "join-with-1e18"),
    poison("malformed", lambda f: f.declare(samples=-5), "join-with-less-than-nothing"),
    poison("malformed", lambda f: f.declare(samples=float("nan")), "join-with-nan"),
    poison("malformed", lambda f: f.declare(samples=float("inf")), "join-with-infinity"),
    poison("malformed", lambda f: f.declare(samples="27"), "join-with-a-string"),
    poison("malformed", lambda f: f.declare(samples=27.5), "join-with-a-fraction"),
    poison("malformed", lambda f: f.declare(samples=[27]), "join-with-a-list"),
    poison("malformed", lambda f: f.declare(samples=None), "join-with-null"),
    poison("keys", lambda f: f.raw(b"x"), "join-with-a-payload"),
    poison("author", lambda f: f.copy("ash", JOIN), "join-in-the-name-of-another"),
]
