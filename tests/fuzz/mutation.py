"""Damage done to well-formed input: to its bytes, to its structure, to the length in front of it. The same seed does the same damage."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

MOST = 1 << 16  # bytes a mutation may blow an input up to; larger ones are what the limits are tested with
TOKENS = [
    b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u0000", b"\\ud800", b"\xed\xa0\x80", b"\xff", b"\0", b"\n", b"\t", b"&a",
    b"*a", b"!!python/object:os.system", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"-1", b"9" * 400, b"../", b"%00",
    b"<<: ", b"- ", b"? ", b"|", b">", b"#", b"---\n", b"...", b"\xe2\x80\xae", b"\xef\xbb\xbf",
]  # fmt: skip
LENGTHS = [0, 1, 7, 8, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 0.5, -0.0, 1e308, "", "0", "1", "null", "..",
    "../../etc/passwd", "/", "\0", "\n", "\u202e", "\ud800", "x" * 201, "x" * 5000, [], {}, [[]], [0], [-1], [None], {"a": {}},
    ["F32", [1]], ["F32", [2**62, 4]],
]  # fmt: skip
LITERALS = [
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "9" * 5000, "1.0", "1e0", "0x10", "01", "-", "'a'", "{", "[", '"',
    "/*", "[" * 3000, '{"a":' * 3000, "[" * 500 + "]" * 500, '{"a":1,"a":2}', '"\\ud800"', '"\\x"', "undefined",
]  # fmt: skip


class Literal:
    """Text that stands in a JSON document as it is, valid or not."""

    def __init__(self, text: str) -> None:
        self.text = text


def odd(draw: random.Random) -> Any:
    """A value that does not belong there."""
    kind = draw.randrange(10)
    if kind < 4:
        return deepcopy(draw.choice(VALUES))
    if kind < 7:
        return Literal(draw.choice(LITERALS))
    if kind == 7:
        return draw.choice((draw.randrange(-(2**70), 2**70), draw.random() * 10.0 ** draw.randrange(-300, 300)))
    if kind == 8:
        return "".join(chr(draw.randrange(0x20, 0x250)) for _ in range(draw.randrange(20)))
    count = draw.randrange(2000)
    return draw.choice(([draw.randrange(5)] * count, {f"k{number}": number for number in range(count)}))


def written(value: Any) -> str:
    """JSON, as far as the value allows: a mapping may be a list of pairs, so that a name can occur twice."""
    if isinstance(value, Literal):
        return value.text
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{written(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


class Pairs(list[Any]):
    """A mapping in the order and with the repetitions in which it is written."""


class Mutator:
    """`corpus` holds well-formed inputs and earlier finds. Every call returns a new, damaged input."""

    def __init__(self, corpus: Sequence[bytes], seed: str) -> None:
        self._corpus, self._draw = list(corpus), random.Random(seed)
        self._bytes: list[Callable[[bytearray], None]] = [
            self._flip, self._overwrite, self._truncate, self._cut, self._repeat, self._insert, self._splice, self._length
        ]  # fmt: skip

    def next(self) -> bytes:
        draw = self._draw
        content, where = draw.choice(self._corpus), draw.random()
        if where < 0.6:
            content = self._restructured(content)
        if where > 0.4:
            damaged = bytearray(content)
            for _ in range(draw.choice((1, 1, 1, 2, 4))):
                draw.choice(self._bytes)(damaged)
            content = bytes(damaged)
        return content[:MOST]

    # ---- bytes

    def _span(self, data: bytearray) -> tuple[int, int]:
        at = self._draw.randrange(len(data) + 1)
        return at, min(len(data), at + self._draw.choice((1, 2, 4, 8, 50)))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._draw.randrange(len(data))] ^= 1 << self._draw.randrange(8)

    def _overwrite(self, data: bytearray) -> None:
        begin, end = self._span(data)
        data[begin:end] = self._draw.randbytes(end - begin)

    def _truncate(self, data: bytearray) -> None:
        del data[self._draw.randrange(len(data) + 1) :]

    def _cut(self, data: bytearray) -> None:
        begin, end = self._span(data)
        del data[begin:end]

    def _repeat(self, data: bytearray) -> None:
        begin, end = self._span(data)
        data[begin:begin] = data[begin:end] * self._draw.choice((1, 2, 100, 1000))

    def _insert(self, data: bytearray) -> None:
        begin, _ = self._span(data)
        data[begin:begin] = self._draw.choice(TOKENS)

    def _splice(self, data: bytearray) -> None:
        other = self._draw.choice(self._corpus)
        begin, _ = self._span(data)
        data[begin:] = other[self._draw.randrange(len(other) + 1) :]

    def _length(self, data: bytearray) -> None:
        """The eight bytes in front of a payload, and eight anywhere else."""
        at = 0 if self._draw.random() < 0.7 else self._draw.randrange(len(data) + 1)
        value = self._draw.choice([*LENGTHS, len(data), max(0, len(data) - 8), self._draw.randrange(2**64)])
        data[at : at + 8] = struct.pack("<Q", value)

    # ---- structure

    def _restructured(self, content: bytes) -> bytes:
        """One to three values, names or pairs of the document changed; a payload's length then fits its header again."""
        prefix, document, rest = _framed(content)
        try:
            tree = json.loads(document, object_pairs_hook=Pairs)
        except (ValueError, RecursionError):
            return content
        for _ in range(self._draw.choice((1, 1, 2, 3))):
            tree = self._changed(tree)
        text = written(tree).encode("utf-8", "surrogatepass")
        return (struct.pack("<Q", len(text)) if prefix else b"") + text + rest

    def _changed(self, tree: Any) -> Any:
        draw = self._draw
        if not isinstance(tree, list) or not tree or draw.random() < 0.15:
            return odd(draw)
        at, choice = draw.randrange(len(tree)), draw.random()
        if choice < 0.08:
            del tree[at]
        elif choice < 0.16:
            tree.insert(draw.randrange(len(tree) + 1), deepcopy(tree[at]))
        elif isinstance(tree, Pairs):
            name, value = tree[at]
            tree[at] = (f"{name}{draw.choice(('', ' ', 'x', chr(0x430)))}", value) if choice < 0.24 else (name, self._changed(value))
        else:
            tree[at] = self._changed(tree[at])
        return tree


def _framed(content: bytes) -> tuple[bytes, bytes, bytes]:
    """Length, header and data of a payload; anything else is all header."""
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else len(content)
    if 8 + length > len(content):
        return b"", content, b""
    return content[:8], content[8 : 8 + length], content[8 + length :]
