"""Reader of LEAF's JSON: `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [[...], ...], "y": [...]}}}`.

A file of FEMNIST is hundreds of megabytes of digits. It is read in pieces, and a picture becomes bytes as soon as it has
been read, so that memory holds one writer; as Python lists of floats it would take tens of times the file.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from fl_algorithms.errors import Unusable

CHUNK = 1 << 20
SOMETHING = re.compile(rb"\S")
MARK = re.compile(rb'["\[\]{}]')
END_OF_STRING = re.compile(rb'(?<!\\)(?:\\\\)*"')
END_OF_ROW = re.compile(rb"\]")
END_OF_SCALAR = re.compile(rb"[\s,\]}]")


def read_users(path: Path) -> dict[str, int]:
    """Writers and how many pictures each has. LEAF puts both first, so this reads little."""
    found: dict[str, Any] = {}
    with path.open("rb") as file:
        text = _Text(path, file)
        for key in text.keys():
            if key in ("users", "num_samples"):
                found[key] = text.value()
            else:
                text.skip()
            if len(found) == 2:
                break
    if len(found) != 2 or len(found["users"]) != len(found["num_samples"]):
        raise Unusable(f"{path}: expected LEAF's users and as many num_samples, found {sorted(found) or 'neither'}; make the file again")
    return dict(zip(map(str, found["users"]), map(int, found["num_samples"]), strict=True))


def read_pictures(path: Path, wanted: set[str], size: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Writer, pictures (uint8 [n, size, size]) and labels of the writers wanted, in the order of the file."""
    with path.open("rb") as file:
        text = _Text(path, file)
        for key in text.keys():
            if key != "user_data":
                text.skip()
                continue
            for user in text.keys():
                if user not in wanted:
                    text.skip()
                    continue
                rows, labels = _one_user(text, size)
                if len(rows) != len(labels):
                    text.refuse(f"as many labels as pictures of {user}", f"{len(labels)} and {len(rows)}")
                yield user, np.array(rows, np.uint8).reshape(-1, size, size), np.array(labels, np.int64)


def _one_user(text: _Text, size: int) -> tuple[list[np.ndarray], list[int]]:
    rows: list[np.ndarray] = []
    labels: list[int] = []
    for key in text.keys():
        if key == "x":
            rows = [_bytes(text, row, size) for row in text.rows()]
        elif key == "y":
            labels = text.value()
        else:
            text.skip()
    return rows, labels


def _bytes(text: _Text, row: bytes, size: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # how numpy reports that it could not read to the end
        try:
            values = np.fromstring(row, np.float64, sep=",")
        except (ValueError, DeprecationWarning):
            values = np.empty(0)
    if len(values) != size * size or not 0 <= values.min() <= values.max() <= 1:
        text.refuse(f"pictures of {size * size} numbers from 0 to 1", f"{row[:40]!r}...")
    return np.rint(values * 255).astype(np.uint8)


class _Text:
    """A window that slides over the file. Every method leaves the window just after what it has read."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._window, self._at = b"", 0

    def refuse(self, expected: str, found: str) -> NoReturn:
        raise Unusable(f"{self._path}: expected {expected}, found {found}; make the file again with LEAF")

    def keys(self) -> Iterator[str]:
        """Keys of an object. The caller reads the value of each before it asks for the next."""
        for _ in self._items(b"{", b"}"):
            key = self.value()
            self._expect(b":")
            yield str(key)

    def rows(self) -> Iterator[bytes]:
        """The insides of the arrays in an array."""
        for _ in self._items(b"[", b"]"):
            self._expect(b"[")
            yield self._take(self._upto(END_OF_ROW))[:-1]

    def value(self) -> Any:
        """The next value, which must be small."""
        pieces = b"".join(self._pieces())
        try:
            return json.loads(pieces)
        except ValueError:
            self.refuse("JSON", repr(pieces[:40]))

    def skip(self) -> None:
        for _ in self._pieces():
            pass

    def _items(self, opening: bytes, closing: bytes) -> Iterator[None]:
        self._expect(opening)
        if self._peek() == closing:
            self._take(1)
            return
        while True:
            yield
            if self._peek() == closing:
                self._take(1)
                return
            self._expect(b",")

    def _pieces(self) -> Iterator[bytes]:
        """The next value, piece by piece."""
        first, depth = self._peek(), 0
        if first not in b'["{':
            yield self._take(self._upto(END_OF_SCALAR) - 1)
            return
        while True:
            yield (piece := self._take(self._upto(MARK)))
            if piece.endswith(b'"'):
                yield self._take(self._upto(END_OF_STRING))
            else:
                depth += 1 if piece[-1] in b"[{" else -1
            if depth == 0:
                return

    def _expect(self, byte: bytes) -> None:
        if self._peek() != byte:
            self.refuse(f"{byte.decode()} of LEAF's layout", repr(self._window[self._at : self._at + 40]))
        self._take(1)

    def _peek(self) -> bytes:
        self._at += self._upto(SOMETHING) - 1
        return self._window[self._at : self._at + 1]

    def _take(self, length: int) -> bytes:
        self._at += length
        return self._window[self._at - length : self._at]

    def _upto(self, pattern: re.Pattern[bytes]) -> int:
        """Bytes from here to the end of the next match; reads on until there is one."""
        while (match := pattern.search(self._window, self._at)) is None:
            piece = self._file.read(CHUNK)
            if not piece:
                self.refuse("more", "the end of the file")
            self._window, self._at = self._window[self._at :] + piece, 0
        return match.end() - self._at
