"""Tensors as bytes and back: safetensors, written without joining or copying, read through a memory map."""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from components.digest import digest_of
from fl_algorithms.contract import TensorShape

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}
MAX_HEADER = 2 << 20  # 20,000 tensors


class Malformed(Exception):
    """Bytes that are not a payload; the message is one line."""


class Absent(Malformed):
    """A manifest vouches for it, but it is not there."""


class WrongDigest(Malformed):
    """Other bytes than the manifest vouches for."""


@dataclass(frozen=True)
class Encoded:
    """A payload ready to be written: the chunks point into the tensors, which must not change before it is."""

    chunks: list[bytes | memoryview]
    size: int
    digest: str


def encode(tensors: Mapping[str, torch.Tensor]) -> Encoded:
    """The same tensors always give the same bytes. Wide types come first, so that every tensor is aligned in the file."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    data: list[bytes | memoryview] = []
    offset = 0
    for name, tensor in ordered:
        chunk = _bytes_of(tensor)
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(chunk)]}
        offset += len(chunk)
        data.append(chunk)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    chunks: list[bytes | memoryview] = [struct.pack("<Q", len(text)) + text, *data]
    return Encoded(chunks, sum(map(len, chunks)), digest_of(chunks))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory; copied only if it is elsewhere or in another order."""
    array: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


class Payload(Mapping[str, torch.Tensor]):
    """A payload file as tensors that point into the file's pages. The file may be unlinked while this is in use."""

    def __init__(self, path: Path) -> None:
        self.shapes: dict[str, TensorShape] = {}
        self._offsets: dict[str, tuple[int, int]] = {}
        with path.open("rb") as file:
            length = file.read(8)
            self._start = 8 + (struct.unpack("<Q", length)[0] if len(length) == 8 else MAX_HEADER + 1)
            if self._start > 8 + MAX_HEADER:
                raise Malformed(f"header: expected at most {MAX_HEADER} bytes, found {length.hex() or 'an empty file'}")
            try:
                with safe_open(path, framework="pt"):  # the library's own validation: offsets, overlaps, sizes
                    pass
                header = json.loads(file.read(self._start - 8), object_pairs_hook=_unique)
            except (SafetensorError, ValueError, RecursionError) as error:
                raise Malformed(f"not a safetensors file: {str(error).splitlines()[0][:200]}") from None
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private pages: torch wants a writable buffer
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in DTYPES:
                raise Malformed(f"tensor {name[:80]!r}: type {entry['dtype']} is not one of {', '.join(DTYPES)}")
            self.shapes[name] = TensorShape(DTYPES[entry["dtype"]], tuple(entry["shape"]))
            self._offsets[name] = (entry["data_offsets"][0], entry["data_offsets"][1])

    def __getitem__(self, name: str) -> torch.Tensor:
        shape, (begin, end) = self.shapes[name], self._offsets[name]
        if begin == end:
            return torch.empty([n or 0 for n in shape.shape], dtype=shape.dtype)
        count = (end - begin) // shape.dtype.itemsize
        flat = torch.frombuffer(self._map, dtype=shape.dtype, count=count, offset=self._start + begin)
        return flat.view([n or 0 for n in shape.shape])

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def forget(self) -> None:
        """Let go of the file's pages: what was read need not stay in this process's memory. Tensors stay valid.

        All pages, not those of one tensor: with the page that was asked for the kernel maps its neighbours, up to a megabyte of them.
        """
        self._map.madvise(mmap.MADV_DONTNEED)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice in the header")
    return result


def model_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the sorted tensors' names, dtypes, shapes and bytes: what `result.json` calls `digest`."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{CODES[tensor.dtype]}\0{','.join(map(str, tensor.shape))}\0".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()
