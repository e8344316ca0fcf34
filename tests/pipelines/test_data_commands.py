"""`siloflow data`: counting, preparing and looking at pictures, good and bad."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import Result

from fl_algorithms.data import open_dataset
from tests.pipelines.commands import command, finish, invoke, pictures


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


def rows(ended: Result) -> dict[str, list[str]]:
    """Of the table: first word -> numbers."""
    found = [line.split() for line in ended.stdout.splitlines()]
    return {words[0]: words[1:] for words in found if len(words) > 1 and all(re.fullmatch(r"[\d,]+", word) for word in words[1:])}


def refused(ended: Result) -> str:
    assert ended.exit_code == 2
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr


# ---- check


def test_check_counts_domains_and_classes(tmp_path: Path) -> None:
    root = pictures(tmp_path / "data")
    (root / "photo" / "dog" / "3.jpg").unlink()
    ended = invoke("data", "check", root)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert rows(ended) == {"cat": ["4", "4", "4"], "dog": ["4", "3", "4"], "all": ["8", "7", "8"]}
    assert "23 images, 3 domains, 2 classes" in ended.stdout
    assert ended.stdout.rstrip().endswith("usable")


def test_check_of_an_embedded_set_and_of_a_spec(tmp_path: Path) -> None:
    ended = invoke("data", "check", "--set", "dataset=rotated-digits", "--domain", "r15", "--domain", "r45")
    assert ended.exit_code == 0
    assert rows(ended)["all"] == ["1,000", "1,000"]
    root = pictures(tmp_path / "data")
    (tmp_path / "spec.yaml").write_text(f"dataset: {{name: folder, path: {root}}}\nrounds: 3\n")
    assert rows(invoke("data", "check", tmp_path / "spec.yaml"))["all"] == ["8", "8", "8"]


def spoil(root: Path) -> dict[str, str]:
    """One of every kind of bad picture; the name of each and what is to be said of it."""
    photo = root / "photo"
    whole = (photo / "cat" / "0.jpg").read_bytes()
    (photo / "cat" / "truncated.jpg").write_bytes(whole[:-200])
    (photo / "cat" / "empty.png").write_bytes(b"")
    (photo / "cat" / "text.png").write_text("no picture")
    (photo / "dog" / "dangling.jpg").symlink_to(root / "nowhere.jpg")
    (photo / "dog" / "loop.jpg").symlink_to(photo / "dog" / "loop.jpg")
    (photo / "dog" / "größe.jpg").write_bytes(b"no picture either")
    return {
        "photo/cat/truncated.jpg": "truncated",
        "photo/cat/empty.png": "not a picture",
        "photo/cat/text.png": "not a picture",
        "photo/dog/dangling.jpg": "no such file",
        "photo/dog/loop.jpg": "symbolic links",
        "photo/dog/größe.jpg": "not a picture",
    }


def unusual(root: Path) -> dict[str, str]:
    sketch = root / "sketch" / "cat"
    Image.new("CMYK", (9, 9)).save(sketch / "cmyk.jpg")
    Image.fromarray(np.full((9, 9), 51400, np.uint16)).save(sketch / "deep.png")
    frames = [Image.new("RGB", (9, 9), (shade, 0, 0)) for shade in (0, 90, 200)]
    frames[0].save(sketch / "moving.gif", save_all=True, append_images=frames[1:])
    return {"sketch/cat/cmyk.jpg": "CMYK", "sketch/cat/deep.png": "16 bits", "sketch/cat/moving.gif": "animated"}


def test_check_lists_everything_that_is_wrong(tmp_path: Path) -> None:
    root = pictures(tmp_path / "data")
    bad, odd = spoil(root), unusual(root)
    (root / "art" / "elk").mkdir()
    Image.new("RGB", (9, 9)).save(root / "art" / "elk" / "1.png")
    ended = invoke("data", "check", root)
    lines = ended.stdout.splitlines()
    for name, reason in bad.items():
        assert [line for line in lines if name in line and reason in line and line.startswith("error: ")], name
    for name, reason in odd.items():
        assert [line for line in lines if name in line and reason in line and line.startswith("warning: ")], name
    assert [line for line in lines if "class elk: expected in several domains, found only in art" in line and "art/elk" in line]
    assert sum(line.startswith("error: ") for line in lines) == len(bad)
    assert "(and 5 more, listed above)" in refused(ended)
    lenient = invoke("data", "check", root, "--set", "dataset.on_broken=skip")
    assert lenient.exit_code == 0
    assert lenient.stdout.count("warning: ") == len(bad) + len(odd) + 1


def test_check_of_published_sets(tmp_path: Path) -> None:
    root = pictures(tmp_path / "pacs", classes=("dog", "person"), domains=("photo", "cartoon", "sketch"))
    ended = invoke("data", "check", root, "--set", "dataset=pacs")
    assert "expected the folder of domain art_painting (art_painting), found none" in refused(ended)
    assert rows(ended)["dog"] == ["4", "4", "4"]
    assert "class horse: expected pictures, found none in any domain" in ended.stdout
    assert invoke("data", "check", root, "--set", "dataset=pacs", "--domain", "photo").exit_code == 0
    assert "did you mean 'photo'" in refused(invoke("data", "check", root, "--set", "dataset=pacs", "--domain", "foto"))


def test_check_names_every_absent_picture_of_a_list(tmp_path: Path) -> None:
    root = pictures(tmp_path / "pacs", classes=("dog", "person"), domains=("photo",))
    lines = [f"photo/dog/{number}.jpg 1" for number in range(6)] + [f"photo/person/{number}.jpg 7" for number in range(4)]
    (root / "photo_train_kfold.txt").write_text("\n".join(lines))
    (root / "photo_crossval_kfold.txt").write_text("photo/dog/9.jpg 1")
    ended = invoke("data", "check", root, "--set", "dataset=pacs-lists", "--domain", "photo")
    assert "(and 2 more, listed above)" in refused(ended)
    for number in (4, 5, 9):
        assert f"photo/dog/{number}.jpg': expected a picture, found no such file" in ended.stdout
    assert re.search(r"held out by its lists +1\b", ended.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a folder, a CSV, a spec or --set dataset=NAME"),
        (["--set", "dataset=pacs"], "dataset.path: pacs needs a folder"),
        (["--set", "dataset=pakcs"], "did you mean 'pacs'"),
        (["nowhere"], "found no folder 'nowhere'"),
        (["nowhere.csv"], "nowhere.csv: expected a CSV of path,label,domain"),
        (["nowhere.yaml"], "spec nowhere.yaml: cannot be read"),
    ],
)
@pytest.mark.parametrize("action", ["check", "prepare", "preview"])
def test_wrong_words_are_one_line(action: str, words: list[str], message: str) -> None:
    assert message in refused(invoke("data", action, *words))


# ---- prepare


def test_prepare_decodes_once(tmp_path: Path, own_cache: Path) -> None:
    root = pictures(tmp_path / "data")
    ended = invoke("data", "prepare", root, "--set", "dataset.image_size=16")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert re.search(r"photo +8 images +0 MB", ended.stdout)
    assert str(own_cache) in ended.stdout
    files = {file: file.stat().st_mtime_ns for file in own_cache.glob("*/*.u8")}
    assert len(files) == 3
    assert invoke("data", "prepare", root, "--set", "dataset.image_size=16").exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in own_cache.glob("*/*.u8")} == files


def test_prepare_names_broken_pictures(tmp_path: Path, own_cache: Path) -> None:
    root = pictures(tmp_path / "data")
    bad = spoil(root)
    message = refused(invoke("data", "prepare", root))
    assert "photo/cat/empty.png" in message
    assert "`siloflow data check` lists all" in message
    assert sorted(file.name for file in own_cache.glob("*/*.u8")) == ["art.u8", "sketch.u8"]  # the others are ready
    ended = invoke("data", "prepare", root, "--set", "dataset.on_broken=skip")
    assert ended.exit_code == 0
    assert "6 left out" in ended.stdout
    assert all(name in ended.stdout for name in bad)


def test_prepare_goes_on_after_a_kill(tmp_path: Path, own_cache: Path) -> None:
    root = tmp_path / "data"
    random = np.random.default_rng(0)
    for number in range(400):
        folder = root / "photo" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (120, 120, 3), np.uint8)).save(folder / f"{number}.png", compress_level=1)
    words = ("data", "prepare", root, "--set", "dataset.image_size=96")
    process = command(*words)
    for _ in range(3000):
        journals = list(own_cache.glob("*/photo.journal"))
        if journals and journals[0].read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    assert not list(own_cache.glob("*/photo.json"))
    code, out, err = finish(command(*words))
    assert (code, err) == (0, "")
    assert "400 images" in out
    assert sorted(file.name for file in own_cache.glob("*/*")) == ["photo.json", "photo.lock", "photo.u8"]
    images = open_dataset("folder", str(root), 96).domain("photo")
    with Image.open(root / "photo" / "class 0" / "0.png") as first:
        np.testing.assert_array_equal(images.pixels[0], np.asarray(first.resize((96, 96), Image.Resampling.BILINEAR)))


# ---- preview


def test_preview_puts_every_picture_in_its_place(tmp_path: Path) -> None:
    root = pictures(tmp_path / "data")  # the green of a picture tells its class, the red which of the four it is
    out = tmp_path / "sheet.png"
    ended = invoke("data", "preview", root, "--out", out, "--side", "32", "--per-class", "4")
    assert ended.exit_code == 0
    assert str(out) in ended.stderr
    with Image.open(out) as image:
        sheet = np.asarray(image.convert("RGB")).astype(int)
    blue = (np.abs(sheet[..., 2] - 90) < 6) & (np.abs(sheet[..., 1] % 100) < 6)
    assert blue.sum() == pytest.approx(3 * 2 * 4 * 32 * 32, rel=0.02)
    right, bottom = sheet.shape[1] - 16 - 16, sheet.shape[0] - 16 - 16  # middle of the last thumbnail
    assert np.abs(sheet[bottom, right] - (120, 100, 90)).max() < 6
    assert np.abs(sheet[bottom - 34, right - 34] - (80, 0, 90)).max() < 6


def test_preview_leaves_room_for_missing_pictures_and_names_a_bad_place(tmp_path: Path) -> None:
    root = pictures(tmp_path / "data")
    for file in (root / "photo" / "cat").glob("[123].jpg"):
        file.write_bytes(b"")
    assert invoke("data", "preview", root, "--out", tmp_path / "sheet.png").exit_code == 0
    assert "choose another --out" in refused(invoke("data", "preview", root, "--out", tmp_path / "none" / "sheet.png"))
    assert invoke("data", "preview", "--set", "dataset=rotated-digits", "--out", tmp_path / "digits.png").exit_code == 0
