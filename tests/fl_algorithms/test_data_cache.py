from __future__ import annotations

import json
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from fl_algorithms.data.cache import Source, cache_root, cached
from fl_algorithms.data.images import Images
from fl_algorithms.data.partial import Block
from fl_algorithms.errors import Unusable

CLASSES = ("cat", "dog")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Pictures:
    """A source that remembers for which blocks it was asked."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.asked: list[int] = []

    def block(self, number: int) -> Block:
        self.asked.append(number)
        part = slice(0, 6) if number == 0 else slice(6, 10)
        pixels = (np.arange(10 * 4 * 4 * 3) + self.version).astype(np.uint8).reshape(10, 4, 4, 3)
        labels, groups, held_out = np.arange(10) % 2, np.arange(10) // 2, np.arange(10) > 7
        return Block(pixels[part], labels[part], groups[part], held_out[part], skipped=("bad.jpg",) if number == 0 else ())

    def open(self) -> Images:
        return cached("made-up", "photo", CLASSES, Source({"version": self.version}, self.block, 2, total=11), None)


def test_the_second_opening_decodes_nothing_and_sees_the_same() -> None:
    pictures = Pictures()
    first, second = pictures.open(), pictures.open()
    assert pictures.asked == [0, 1]
    assert first.digest == second.digest
    assert second.skipped == ("bad.jpg",)
    assert second.classes == CLASSES
    assert isinstance(second.pixels, np.memmap)
    assert not second.pixels.flags.writeable
    np.testing.assert_array_equal(second.pixels.ravel(), np.arange(480).astype(np.uint8))
    np.testing.assert_array_equal(second.labels, np.arange(10) % 2)
    np.testing.assert_array_equal(second.groups, np.arange(10) // 2)
    np.testing.assert_array_equal(second.held_out, np.arange(10) > 7)


def test_other_contents_have_another_key_and_digest(root: Path) -> None:
    assert Pictures(0).open().digest != Pictures(1).open().digest
    assert len(list(root.iterdir())) == 2


@pytest.mark.parametrize(
    "damage", ["flipped bit", "cut short", "no json", "garbage json", "wrong labels", "list json", "older version", "other list"]
)
def test_a_damaged_entry_is_named_and_built_again(root: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    pictures = Pictures()
    digest = pictures.open().digest
    assert not caplog.messages
    (pixels,), (entry,) = root.glob("*/photo.u8"), root.glob("*/photo.json")
    if damage == "flipped bit":
        content = bytearray(pixels.read_bytes())
        content[100] ^= 1
        pixels.write_bytes(content)
    elif damage == "cut short":
        pixels.write_bytes(pixels.read_bytes()[:-1])
    elif damage == "no json":
        entry.unlink()
    elif damage in ("wrong labels", "older version", "other list"):
        content_json = json.loads(entry.read_text())
        if damage == "wrong labels":
            content_json["labels"][0] = 1
        elif damage == "other list":
            content_json["held_out"][0] = True
        else:
            content_json["format"] -= 1
            del content_json["held_out"]
        entry.write_text(json.dumps(content_json))
    else:
        entry.write_text("{" if damage == "garbage json" else "[]")
    assert pictures.open().digest == digest
    assert pictures.asked == [0, 1, 0, 1]
    (said,) = caplog.messages
    assert str(pixels) in said and said.endswith("it is decoded again")
    assert pictures.open().digest == digest
    assert pictures.asked == [0, 1, 0, 1] and len(caplog.messages) == 1


def test_a_failed_build_leaves_no_entry(root: Path) -> None:
    def block(number: int) -> Block:
        if number == 1:
            raise Unusable("photo/cat/1.jpg: broken")
        return Pictures().block(number)

    with pytest.raises(Unusable, match="broken"):
        cached("made-up", "photo", CLASSES, Source({}, block, 2), None)
    assert [file.name for file in root.glob("*/*")] == ["photo.lock"]


def test_a_domain_without_pictures_is_no_entry(root: Path) -> None:
    def block(number: int) -> Block:
        return Block(np.empty((0, 4, 4, 3), np.uint8), np.empty(0, np.int64), skipped=("a.jpg", "b.jpg"))

    with pytest.raises(Unusable, match="found 2 files of which none can be decoded"):
        cached("made-up", "photo", CLASSES, Source({}, block), None)
    assert [file.name for file in root.glob("*/*")] == ["photo.lock"]


class Killed(BaseException):
    pass


def interrupted(root: Path) -> Path:
    """Build one block of two; returns the folder with what a killed process leaves."""
    pictures = Pictures()

    def block(number: int) -> Block:
        if number == 1:
            raise Killed
        return pictures.block(number)

    with pytest.raises(Killed):
        cached("made-up", "photo", CLASSES, Source({"version": 0}, block, 2, total=11), None)
    (folder,) = root.iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["photo.journal", "photo.lock", "photo.part"]
    return folder


def test_an_interrupted_build_goes_on_after_its_last_block(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = interrupted(root)
    pictures = Pictures()
    continued = pictures.open()
    assert pictures.asked == [1]
    assert sorted(file.name for file in folder.iterdir()) == ["photo.json", "photo.lock", "photo.u8"]
    assert continued.skipped == ("bad.jpg",)
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "another"))
    assert continued.digest == Pictures().open().digest


@pytest.mark.parametrize("damage", ["pixels cut", "pixel changed", "label changed", "line cut", "not JSON", "no journal", "pixels beyond"])
def test_what_an_interrupted_build_left_is_used_only_if_its_digest_holds(root: Path, damage: str) -> None:
    folder = interrupted(root)
    part, journal = folder / "photo.part", folder / "photo.journal"
    pixels, line = part.read_bytes(), journal.read_bytes()
    if damage == "pixels cut":
        part.write_bytes(pixels[:-1])
    elif damage == "pixel changed":
        part.write_bytes(bytes([pixels[0] ^ 1]) + pixels[1:])
    elif damage == "label changed":
        journal.write_bytes(line.replace(b'"labels": [0,', b'"labels": [1,'))
        assert journal.read_bytes() != line
    elif damage == "line cut":
        journal.write_bytes(line[:-20])
    elif damage == "not JSON":
        journal.write_bytes(line.replace(b"{", b"["))
    elif damage == "no journal":
        journal.unlink()
    else:
        part.write_bytes(pixels + b"half of a block")
    pictures = Pictures()
    np.testing.assert_array_equal(pictures.open().pixels.ravel(), np.arange(480).astype(np.uint8))
    assert pictures.asked == ([1] if damage == "pixels beyond" else [0, 1])


@pytest.mark.parametrize("domain", ["../outside", "Größe 5/7", "a" * 60])
def test_a_domain_of_any_name_stays_in_its_folder(root: Path, tmp_path: Path, domain: str) -> None:
    before = sorted(tmp_path.iterdir())
    cached("made-up", domain, CLASSES, Source({}, Pictures().block, 2), None)
    assert len(list(root.glob("*/*.u8"))) == 1
    assert sorted(tmp_path.iterdir()) == sorted([*before, root])


def test_progress_counts_pictures_that_were_left_out_too() -> None:
    seen: list[tuple[int, int]] = []
    source = Source({}, Pictures().block, 2, total=11)
    cached("made-up", "photo", CLASSES, source, lambda done, total: seen.append((done, total)))
    assert seen == [(7, 11), (11, 11)]


def _open_in_process(folder: str, built: Path, start: Barrier, results: multiprocessing.Queue[str]) -> None:
    def block(number: int) -> Block:
        with built.open("a") as log:
            log.write(f"{number} ")
        time.sleep(0.005)  # long enough for the others to come upon an unfinished entry
        return Block(np.full((1, 64, 64, 3), number, np.uint8), np.array([number % 2]))

    os.environ["SILOFLOW_CACHE"] = folder
    start.wait()
    results.put(cached("made-up", "photo", CLASSES, Source({}, block, 40), None).digest)


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
    assert built.read_text() == "".join(f"{number} " for number in range(40))


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
