"""Manifests: strict both ways, so that nothing a silo writes is taken for something else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.manifest import BroadcastManifest, Inbox, Manifest, Part, Rejection, Stored, UpdateManifest
from components.wire import Malformed

COMMON: dict[str, Any] = {"run": "r", "spec": "0" * 64, "round": 1, "exchange": "train", "author": "ash"}
UPDATE = UpdateManifest(
    **COMMON, payload=Stored(bytes=8, digest="blake3:00"), tensors={"a": ("F32", [2, 3]), "b": ("I64", [])}, samples=5,
    metrics={"loss": 0.5, "odd": None}, received_bytes=7, seconds={"compute": 1.5}, began=1.75e9,
)  # fmt: skip
BROADCAST = BroadcastManifest(
    **{**COMMON, "author": "server"},
    parts={"model": Part(bytes=8, digest="blake3:00", round=1, exchange="train")},
    personal={"pool": (1, "statistics")},
    roster={"ash": 5},
    participants=["ash"],
    accepted=["ash"],
    rejected=[Rejection(silo="birch", reason="nonfinite", detail="tensor a")],
    missing=["cedar"],
    weights={"ash": 1.0},
    layer_weights={"a": [1.0]},
)
INBOX = Inbox(**COMMON, parts={"pool": Stored(bytes=8, digest="blake3:00")})


@pytest.mark.parametrize("manifest", [UPDATE, BROADCAST, INBOX], ids=lambda m: type(m).__name__)
def test_round_trip(manifest: Manifest) -> None:
    assert type(manifest).decode(manifest.encode()) == manifest
    assert manifest.encode() == type(manifest).decode(manifest.encode()).encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema_version", 2), ("schema_version", "1"), ("round", -1), ("round", 1.5), ("round", "1"), ("round", True), ("round", 10**7),
        ("run", "x" * 201), ("run", None), ("author", 3), ("samples", -1), ("samples", 10**13), ("samples", 1.0), ("samples", "5"),
        ("payload", {}), ("payload", {"bytes": -1, "digest": ""}), ("payload", {"bytes": 1 << 41, "digest": ""}),
        ("payload", {"bytes": 1, "digest": "x" * 81}), ("payload", {"bytes": 1, "digest": "", "key": "elsewhere"}),
        ("tensors", {"a": "F32"}), ("tensors", {"a": ["F32", [-1]]}), ("tensors", {"x" * 201: ["F32", []]}), ("metrics", {"loss": "0.5"}),
        ("metrics", {"loss": True}), ("seconds", {"compute": None}), ("received_bytes", -1), ("unknown", 1), ("key", "../elsewhere"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_as_agreed_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(Malformed, match=f"manifest {field}") as caught:
        UpdateManifest.decode(json.dumps({**json.loads(UPDATE.encode()), field: value}).encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    with pytest.raises(Malformed, match=r"manifest metrics\.loss"):
        UpdateManifest.decode(UPDATE.encode().replace(b'"loss":0.5', f'"loss":{number}'.encode()))


@pytest.mark.parametrize("field", sorted(COMMON))
def test_no_field_of_the_address_may_be_missing(field: str) -> None:
    with pytest.raises(Malformed, match=f"manifest {field}: Field required"):
        UpdateManifest.decode(json.dumps({name: value for name, value in json.loads(UPDATE.encode()).items() if name != field}).encode())


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b'"text"', b"{", b"\xff", b"[" * 100_000, b'{"run":' * 100_000])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        UpdateManifest.decode(data)


def test_one_kind_of_manifest_is_not_taken_for_another() -> None:
    for kind, other in ((UpdateManifest, BROADCAST), (BroadcastManifest, UPDATE), (Inbox, UPDATE), (UpdateManifest, INBOX)):
        with pytest.raises(Malformed):
            kind.decode(other.encode())
