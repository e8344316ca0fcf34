"""A domain while it is decoded: pixels are appended to one file, what belongs to them to a journal, block by block."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from blake3 import blake3


@dataclass(frozen=True)
class Block:
    """Some consecutive pictures of a domain. `skipped` names files that should have been among them."""

    pixels: np.ndarray  # uint8 [n, H, W, C]
    labels: np.ndarray  # int64 [n]
    groups: np.ndarray | None = None  # int64 [n]
    held_out: np.ndarray | None = None  # bool [n]
    skipped: tuple[str, ...] = ()


class Journal:
    """What an earlier, killed build left is taken over as far as its digests hold; the rest is cut off."""

    def __init__(self, pixels: Path, journal: Path) -> None:
        self.blocks = self.pictures = 0
        self.shape: tuple[int, ...] = ()
        self.labels: list[int] = []
        self.groups: list[int] = []
        self.held_out: list[bool] = []
        self.skipped: list[str] = []
        for path in (pixels, journal):
            path.touch()
        self.file, self._journal = pixels.open("r+b"), journal.open("r+b")

    def __enter__(self) -> Journal:
        kept = 0
        for line in self._journal:
            digest, _, text = line.partition(b" ")
            try:
                entry = json.loads(text)
                intact = digest.decode() == _digest(text, self.file.read(entry["bytes"]))
            except (ValueError, KeyError, TypeError):  # killed while it wrote this line
                break
            if not intact:
                break
            self._add(entry)
            kept += len(line)
        for file, end in ((self._journal, kept), (self.file, self.pictures * math.prod(self.shape))):
            file.seek(end)
            file.truncate()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()
        self._journal.close()

    def append(self, block: Block) -> None:
        content = np.ascontiguousarray(block.pixels).data
        self.file.write(content)
        self.file.flush()  # pixels before their line: a line never promises what the file does not have
        entry = {
            "bytes": content.nbytes,
            "shape": block.pixels.shape[1:],
            "labels": block.labels.tolist(),
            "groups": [] if block.groups is None else block.groups.tolist(),
            "held_out": [] if block.held_out is None else block.held_out.tolist(),
            "skipped": block.skipped,
        }
        text = json.dumps(entry).encode() + b"\n"
        self._journal.write(_digest(text, content).encode() + b" " + text)
        self._journal.flush()
        self._add(entry)

    def _add(self, entry: dict[str, Any]) -> None:
        self.blocks += 1
        self.pictures += len(entry["labels"])
        self.shape = tuple(entry["shape"])
        self.labels += entry["labels"]
        self.groups += entry["groups"]
        self.held_out += entry["held_out"]
        self.skipped += entry["skipped"]


def _digest(text: bytes, pixels: bytes | memoryview) -> str:
    digest = blake3(text)
    digest.update(pixels)
    return digest.hexdigest()
