from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from fl_algorithms.data.cache import Block, Source, cache_root, cached
from fl_algorithms.data.images import Images
from fl_algorithms.errors import Unusable

CLASSES = ("cat", "dog")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Pictures:
    """A source that counts how often it is asked."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.asked = 0

    def blocks(self) -> Iterator[Block]:
        self.asked += 1
        pixels = (np.arange(10 * 4 * 4 * 3) + self.version).astype(np.uint8).reshape(10, 4, 4, 3)
        labels, groups = np.arange(10) % 2, np.arange(10) // 2
        yield Block(pixels[:6], labels[:6], groups[:6], skipped=("bad.jpg",))
        yield Block(pixels[6:], labels[6:], groups[6:])

    def open(self) -> Images:
        return cached("made-up", "photo", CLASSES, Source({"version": self.version}, self.blocks, total=11), None)


def test_the_second_opening_decodes_nothing_and_sees_the_same() -> None:
    pictures = Pictures()
    first, second = pictures.open(), pictures.open()
    assert pictures.asked == 1
    assert first.digest == second.digest
    assert second.skipped == ("bad.jpg",)
    assert second.classes == CLASSES
    assert isinstance(second.pixels, np.memmap)
    assert not second.pixels.flags.writeable
    np.testing.assert_array_equal(second.pixels.ravel(), np.arange(480).astype(np.uint8))
    np.testing.assert_array_equal(second.labels, np.arange(10) % 2)
    np.testing.assert_array_equal(second.groups, np.arange(10) // 2)


def test_other_contents_have_another_key_and_digest(root: Path) -> None:
    assert Pictures(0).open().digest != Pictures(1).open().digest
    assert len(list(root.iterdir())) == 2


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "no json", "garbage json", "wrong labels", "list json"])
def test_a_damaged_entry_is_built_again(root: Path, damage: str) -> None:
    pictures = Pictures()
    digest = pictures.open().digest
    (pixels,), (entry,) = root.glob("*/photo.u8"), root.glob("*/photo.json")
    if damage == "flipped bit":
        content = bytearray(pixels.read_bytes())
        content[100] ^= 1
        pixels.write_bytes(content)
    elif damage == "cut short":
        pixels.write_bytes(pixels.read_bytes()[:-1])
    elif damage == "no json":
        entry.unlink()
    elif damage == "wrong labels":
        content_json = json.loads(entry.read_text())
        content_json["labels"][0] = 1
        entry.write_text(json.dumps(content_json))
    else:
        entry.write_text("{" if damage == "garbage json" else "[]")
    assert pictures.open().digest == digest
    assert pictures.asked == 2
    assert pictures.open().digest == digest
    assert pictures.asked == 2


def test_a_failed_build_leaves_no_entry(root: Path) -> None:
    def blocks() -> Iterator[Block]:
        yield from Pictures().blocks()
        raise Unusable("photo/cat/1.jpg: broken")

    with pytest.raises(Unusable, match="broken"):
        cached("made-up", "photo", CLASSES, Source({}, blocks), None)
    assert [file.name for file in root.glob("*/*")] == ["photo.lock"]


def test_progress_counts_pictures_that_were_left_out_too() -> None:
    seen: list[tuple[int, int]] = []
    source = Source({}, Pictures().blocks, total=11)
    cached("made-up", "photo", CLASSES, source, lambda done, total: seen.append((done, total)))
    assert seen == [(7, 11), (11, 11)]


def _open_in_process(folder: str, built: Path, start: Barrier, results: multiprocessing.Queue[str]) -> None:
    def blocks() -> Iterator[Block]:
        with built.open("a") as log:
            log.write("built\n")
        for number in range(40):
            time.sleep(0.005)  # long enough for the others to come upon an unfinished entry
            yield Block(np.full((1, 64, 64, 3), number, np.uint8), np.array([number % 2]))

    os.environ["SILOFLOW_CACHE"] = folder
    start.wait()
    results.put(cached("made-up", "photo", CLASSES, Source({}, blocks), None).digest)


def test_processes_that_start_at_once_build_once(root: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    built = tmp_path / "built"
    arguments = (str(root), built, context.Barrier(6), results)
    workers = [context.Process(target=_open_in_process, args=arguments) for _ in range(6)]
    for worker in workers:
        worker.start()
    digests = {results.get(timeout=30) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(digests) == 1
    assert built.read_text() == "built\n"


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(Unusable, match=r"file/cache.*set SILOFLOW_CACHE") as caught:
        Pictures().open()
    assert "\n" not in str(caught.value)


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("SILOFLOW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "siloflow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "siloflow"
