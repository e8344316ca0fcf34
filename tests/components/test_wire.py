"""Tensors as bytes: what goes in comes out, the same tensors give the same bytes, and foreign bytes are refused in one line."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from components.digest import digest_of
from components.wire import CODES, Malformed, Payload, encode, model_digest

PLENTY = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda name: name != "__metadata__")


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """Any type and shape, empty and 0-dimensional ones included, and bits that are NaN for the floating types."""
    dtype = draw(st.sampled_from(sorted(CODES, key=str)))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    count = torch.Size(shape).numel()
    raw = torch.tensor(draw(st.lists(st.integers(0, 255), min_size=count * 8, max_size=count * 8)), dtype=torch.uint8)
    if dtype == torch.bool:
        return (raw[:count] % 2).bool().view(shape)
    return raw[: count * dtype.itemsize].view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@PLENTY
@given(st.dictionaries(NAMES, tensors(), max_size=5))
def test_round_trip(tmp_path: Path, model: dict[str, torch.Tensor]) -> None:
    encoded = encode(model)
    content = b"".join(encoded.chunks)
    assert (encoded.size, encoded.digest) == (len(content), digest_of([content]))
    payload = Payload(written(tmp_path / "payload", content))
    assert payload.keys() == model.keys()
    assert len(payload) == len(model)
    for name, tensor in model.items():
        assert (payload[name].dtype, payload[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(payload[name]) == bits(tensor)
        payload.forget()
        assert bits(payload[name]) == bits(tensor)
    theirs = load_file(tmp_path / "payload")
    assert {name: bits(tensor) for name, tensor in theirs.items()} == {name: bits(tensor) for name, tensor in model.items()}


@PLENTY
@given(st.dictionaries(NAMES, tensors(), max_size=5), st.randoms(use_true_random=False))
def test_insertion_order_changes_neither_bytes_nor_digest(model: dict[str, torch.Tensor], random: Any) -> None:
    names = list(model)
    random.shuffle(names)
    shuffled = {name: model[name] for name in names}
    assert model_digest(shuffled) == model_digest(model)
    assert encode(shuffled).digest == encode(model).digest


@PLENTY
@given(NAMES, tensors(), NAMES, tensors())
def test_different_models_have_different_digests(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    same = (name, tensor.dtype, tensor.shape, bits(tensor)) == (other_name, other.dtype, other.shape, bits(other))
    assert (model_digest({name: tensor}) == model_digest({other_name: other})) == same


def test_memory_order_is_not_content(tmp_path: Path) -> None:
    plain = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5)
    strided = {
        "channels_last": plain.to(memory_format=torch.channels_last),
        "transposed": plain.mT.contiguous().mT,
        "sliced": torch.cat([plain, plain])[::2][:1],
    }
    for tensor in (strided["channels_last"], strided["transposed"]):
        assert not tensor.is_contiguous()
        assert encode({"a": tensor}).digest == encode({"a": plain}).digest
        assert model_digest({"a": tensor}) == model_digest({"a": plain})
    content = b"".join(encode(strided).chunks)
    assert torch.equal(Payload(written(tmp_path / "payload", content))["sliced"], strided["sliced"])


def test_every_tensor_is_aligned_and_the_file_may_be_unlinked(tmp_path: Path) -> None:
    model = {
        "a": torch.tensor([True]),
        "b": torch.arange(3, dtype=torch.float64),
        "c": torch.arange(5, dtype=torch.int16),
        "d": torch.ones(3),
    }
    payload = Payload(written(tmp_path / "payload", b"".join(encode(model).chunks)))
    (tmp_path / "payload").unlink()
    for name, tensor in model.items():
        assert torch.equal(payload[name], tensor)
        assert payload[name].data_ptr() % tensor.element_size() == 0


def test_writing_to_a_mapped_tensor_does_not_reach_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "payload", b"".join(encode({"a": torch.zeros(4)}).chunks))
    Payload(path)["a"].add_(1)
    assert torch.equal(Payload(path)["a"], torch.zeros(4))


def test_model_digest_is_what_the_design_says() -> None:
    """SHA-256 over the sorted tensors' names, dtypes, shapes and bytes; scripts compare it between versions."""
    model = {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor(3, dtype=torch.int64)}
    expected = b"a\0I64\0\0" + struct.pack("<q", 3) + b"b\0F32\0" + b"2\0" + struct.pack("<2f", 1, 2)
    assert model_digest(model) == hashlib.sha256(expected).hexdigest()


def test_a_payload_of_the_library_is_read(tmp_path: Path) -> None:
    model = {"weight": torch.randn(3, 4), "count": torch.tensor(7)}
    payload = Payload(written(tmp_path / "payload", save(model, metadata={"made": "elsewhere"})))
    assert payload.keys() == model.keys()
    assert torch.equal(payload["weight"], model["weight"])


def framed(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
FOREIGN = {
    "empty": b"",
    "shorter-than-a-length": b"\1\2\3",
    "header-longer-than-the-file": struct.pack("<Q", 100) + b"{}",
    "header-of-2-GB": struct.pack("<Q", 2 << 30) + b"{}",
    "header-of-2-to-the-64": b"\xff" * 8 + b"{}",
    "header-not-json": framed(b"{nonsense"),
    "header-not-utf8": framed(b'{"\xff": 1}'),
    "header-a-list": framed([]),
    "header-nested": framed(b'{"a":' * 100_000),
    "name-twice": framed(b'{"a":%b,"a":%b}' % ((json.dumps(ENTRY).encode(),) * 2), b"\0" * 8),
    "entry-not-a-mapping": framed({"a": 3}),
    "no-offsets": framed({"a": {"dtype": "F32", "shape": [2]}}, b"\0" * 8),
    "unknown-type": framed({"a": {**ENTRY, "dtype": "F99"}}, b"\0" * 8),
    "type-we-do-not-exchange": framed({"a": {**ENTRY, "dtype": "F8_E4M3", "shape": [8]}}, b"\0" * 8),
    "too-little-data": framed({"a": ENTRY}, b"\0" * 4),
    "too-much-data": framed({"a": ENTRY}, b"\0" * 12),
    "offsets-do-not-fit-the-shape": framed({"a": {**ENTRY, "shape": [3]}}, b"\0" * 8),
    "negative-shape": framed({"a": {**ENTRY, "shape": [-2]}}, b"\0" * 8),
    "shape-overflows": framed({"a": {**ENTRY, "shape": [2**63, 2**63]}}, b"\0" * 8),
    "offsets-backwards": framed({"a": {**ENTRY, "data_offsets": [8, 0]}}, b"\0" * 8),
    "overlap": framed({"a": ENTRY, "b": ENTRY}, b"\0" * 8),
    "hole": framed({"a": ENTRY, "b": {**ENTRY, "data_offsets": [12, 20]}}, b"\0" * 20),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_bytes_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        Payload(written(tmp_path / "payload", content))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@PLENTY
@given(st.binary(max_size=60), st.integers(0, 60))
def test_a_damaged_payload_is_refused_or_read_never_worse(tmp_path: Path, noise: bytes, at: int) -> None:
    content = bytearray(b"".join(encode({"a": torch.arange(4.0), "b": torch.tensor(1)}).chunks))
    content[at : at + len(noise)] = noise
    try:
        payload = Payload(written(tmp_path / "payload", bytes(content)))
    except Malformed:
        return
    for name in payload:
        assert payload[name].shape == payload.shapes[name].shape
