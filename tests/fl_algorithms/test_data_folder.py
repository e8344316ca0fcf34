from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl_algorithms.data import DataSet, open_dataset
from fl_algorithms.errors import Unusable

SHARED = Path(os.environ.get("SILOFLOW_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two domains, three classes, of which `sketch` lacks one; each picture in a grey of its own."""
    grey = 0
    for domain, classes in {"photo": ("cat", "dog", "elk"), "sketch": ("cat", "dog")}.items():
        for name in classes:
            folder = tmp_path / "data" / domain / name
            folder.mkdir(parents=True)
            for number in range(3):
                grey += 10
                Image.new("RGB", (20, 30), (grey,) * 3).save(folder / f"{number}.png")
    (tmp_path / "data" / "photo" / "cat" / "notes.txt").write_text("not a picture")
    (tmp_path / "data" / "README").write_text("not a domain")
    return tmp_path / "data"


def opened(path: Path, **options: object) -> DataSet:
    return open_dataset("folder", path=str(path), image_size=8, **options)  # type: ignore[arg-type]


def refusal(path: Path, domain: str | None = None, **options: object) -> str:
    def attempt() -> None:
        dataset = opened(path, **options)
        if domain is not None:
            dataset.domain(domain)

    with pytest.raises(Unusable) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pictures_come_in_alphabetical_order(tree: Path) -> None:
    dataset = opened(tree)
    assert dataset.domains == ("photo", "sketch")
    assert dataset.classes == ("cat", "dog", "elk")
    photo = dataset.domain("photo")
    assert photo.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert photo.pixels[:, 4, 4, 0].tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert dataset.domain("sketch").labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_silo_needs_no_other_domain_and_agrees_on_classes(tree: Path, tmp_path: Path) -> None:
    whole = opened(tree).domain("sketch")
    (tree / "photo").rename(tmp_path / "elsewhere")
    (tree / "classes.txt").write_text("elk\ndog\n\ncat\n")
    alone = opened(tree)
    assert alone.domains == ("sketch",)
    assert alone.classes == ("cat", "dog", "elk")
    assert alone.domain("sketch").digest == whole.digest


def test_a_changed_file_is_decoded_again(tree: Path) -> None:
    before = opened(tree).domain("photo").digest
    Image.new("RGB", (20, 30), (200, 0, 0)).save(tree / "photo" / "cat" / "1.png")
    after = opened(tree).domain("photo")
    assert after.digest != before
    assert after.pixels[1, 0, 0].tolist() == [200, 0, 0]


def test_pictures_are_resized_with_antialiasing_to_a_square(tmp_path: Path) -> None:
    lines = np.zeros((64, 128, 3), np.uint8)
    lines[:, ::2] = 255
    for name in ("a", "b"):
        (tmp_path / "data" / "photo" / name).mkdir(parents=True)
        Image.fromarray(lines).save(tmp_path / "data" / "photo" / name / "lines.png")
    pixels = opened(tmp_path / "data").domain("photo").pixels
    assert pixels.shape == (2, 8, 8, 3)
    assert abs(pixels.astype(int) - 128).max() < 12


def test_unusual_colour_modes_come_out_as_they_look(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "photo" / "a"
    folder.mkdir(parents=True)
    (tmp_path / "data" / "photo" / "b").mkdir()
    Image.new("L", (9, 9), 7).save(tmp_path / "data" / "photo" / "b" / "grey.png")
    Image.fromarray(np.full((9, 9), 51400, np.uint16)).save(folder / "16bit.png")
    Image.new("RGBA", (9, 9), (0, 0, 0, 0)).save(folder / "alpha.png")
    Image.new("CMYK", (9, 9), (0, 255, 255, 0)).save(folder / "cmyk.jpg", quality=100)
    palette = Image.new("P", (9, 9), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(folder / "palette.gif")
    pixels = opened(tmp_path / "data").domain("photo").pixels[:, 4, 4].astype(int)
    expected = [[200, 200, 200], [255, 255, 255], [255, 0, 0], [10, 20, 30], [7, 7, 7]]
    assert np.abs(pixels - expected).max() <= 2


def test_the_orientation_of_cameras_is_applied(tree: Path) -> None:
    half = np.zeros((32, 32, 3), np.uint8)
    half[:16] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(half).save(tree / "photo" / "cat" / "0.jpg", exif=exif)
    turned = opened(tree).domain("photo").pixels[0]
    assert turned[0].max() < 20
    assert turned[-1].min() > 235


def break_pictures(tree: Path) -> None:
    whole = tree / "photo" / "dog" / "whole.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(whole)
    (tree / "photo" / "dog" / "cut.jpg").write_bytes(whole.read_bytes()[:1500])
    (tree / "photo" / "elk" / "zero.png").write_bytes(b"")
    (tree / "photo" / "elk" / "text.png").write_text("no picture at all")
    damaged = bytearray((tree / "photo" / "elk" / "0.png").read_bytes())
    damaged[40:50] = b"##########"
    (tree / "photo" / "elk" / "damaged.png").write_bytes(damaged)


def test_a_broken_picture_is_named_with_the_choice_to_skip(tree: Path) -> None:
    break_pictures(tree)
    message = refusal(tree, "photo")
    assert "photo/dog/cut.jpg" in message
    assert "truncated" in message
    assert "dataset.on_broken=skip" in message
    opened(tree).domain("sketch")  # the other domain is not affected


@pytest.mark.parametrize("content", [b"", b"no picture"])
def test_an_empty_file_or_text_is_not_a_picture(tree: Path, content: bytes) -> None:
    (tree / "sketch" / "cat" / "1.png").write_bytes(content)
    assert "sketch/cat/1.png': expected a picture, found it cannot be decoded (not a picture)" in refusal(tree, "sketch")


def test_broken_pictures_are_left_out_and_counted_on_request(tree: Path) -> None:
    intact = opened(tree, on_broken="skip").domain("photo")
    break_pictures(tree)
    (tree / "photo" / "dog" / "whole.jpg").unlink()
    images = opened(tree, on_broken="skip").domain("photo")
    assert images.skipped == ("photo/dog/cut.jpg", "photo/elk/damaged.png", "photo/elk/text.png", "photo/elk/zero.png")
    assert images.digest == intact.digest
    refusal(tree, "photo")  # what was skipped once is not forgiven later


def test_a_domain_of_broken_pictures_only_is_refused(tree: Path) -> None:
    for file in (tree / "sketch").glob("*/*.png"):
        file.write_bytes(b"")
    assert "found 6 files of which none can be decoded" in refusal(tree, "sketch", on_broken="skip")


def test_folders_that_are_no_data_set_are_refused(tmp_path: Path) -> None:
    assert "found no folder" in refusal(tmp_path / "missing")
    (tmp_path / "empty" / "domain" / "class").mkdir(parents=True)
    assert "expected pictures in domain/class/file, found none" in refusal(tmp_path / "empty")
    Image.new("RGB", (4, 4)).save(tmp_path / "empty" / "domain" / "flat.png")
    assert "expected pictures in domain/class/file, found none" in refusal(tmp_path / "empty")
    Image.new("RGB", (4, 4)).save(tmp_path / "empty" / "domain" / "class" / "one.png")
    assert "expected at least two classes, found only 'class'" in refusal(tmp_path / "empty")


def test_wrong_options_are_refused(tree: Path) -> None:
    assert "dataset.on_broken: expected fail or skip, found 'ignore'" in refusal(tree, on_broken="ignore")
    with pytest.raises(Unusable, match=r"dataset\.image_size: expected a number of pixels above 0, found 0"):
        open_dataset("folder", path=str(tree), image_size=0)


def test_classes_txt_must_list_every_folder_and_be_text(tree: Path) -> None:
    (tree / "classes.txt").write_text("cat\ndog\n")
    assert "expected every class folder to be listed, found 'photo/elk'" in refusal(tree)
    (tree / "classes.txt").write_bytes(b"\xff\xfe\x00")
    assert "expected one class per line in UTF-8" in refusal(tree)


def test_links_in_a_circle_and_dangling_links_do_no_harm(tree: Path) -> None:
    (tree / "loop").symlink_to(tree)
    (tree / "photo" / "up").symlink_to(tree / "photo")
    (tree / "self").symlink_to(tree / "self")
    dataset = opened(tree)
    assert dataset.domains == ("photo", "sketch")
    assert dataset.classes == ("cat", "dog", "elk")
    (tree / "photo" / "cat" / "gone.png").symlink_to(tree / "nowhere.png")
    assert "photo/cat/gone.png" in refusal(tree, "photo")
    assert opened(tree, on_broken="skip").domain("photo").skipped == ("photo/cat/gone.png",)


@pytest.mark.skipif(not (SHARED / "pacs").is_dir(), reason="PACS is not here: set SILOFLOW_TEST_DATA")
def test_the_photos_of_pacs(tmp_path: Path) -> None:
    with tarfile.open(SHARED / "pacs" / "photo.tar") as archive:
        archive.extractall(tmp_path / "pacs", filter="data")
    dataset = opened(tmp_path / "pacs")
    assert dataset.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert np.bincount(dataset.domain("photo").labels).tolist() == [189, 202, 182, 186, 199, 280, 432]
