"""The registry and the data sets that need no pictures of the user."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms.functional import InterpolationMode, rotate

from fl_algorithms.data import DATASETS, open_dataset
from fl_algorithms.data.digits import bundled_digits
from fl_algorithms.data.partition import split
from fl_algorithms.data.raster import turn
from fl_algorithms.errors import Unusable

SHARED = Path(os.environ.get("SILOFLOW_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
STYLED_DIGESTS = {
    "paper": "2c45a2a17d86977e",
    "chalk": "59c6c6a4f92e2f8f",
    "neon": "1385fff0d6b869b6",
    "pencil": "b9285c6a56e52da1",
}
needs_mnist = pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="MNIST is not here: set SILOFLOW_TEST_DATA")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("SILOFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def test_listing_data_sets_loads_nothing_heavy() -> None:
    code = "import sys, fl_algorithms.data; print({'torch', 'sklearn', 'PIL', 'torchvision'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "stiled-digits"}, "did you mean 'styled-digits'"),
        ({"name": "x"}, "choose one of styled-digits, rotated-digits"),
        ({"name": "styled-digits", "path": "data"}, "dataset.path: styled-digits does not take it"),
        ({"name": "folder", "path": "data", "protocol": "csac"}, "dataset.protocol: folder does not take it"),
        ({"name": "rotated-mnist"}, "dataset.path: rotated-mnist needs a folder"),
        ({"name": "rotated-mnist", "path": "nowhere"}, "nowhere: expected train-images-idx3-ubyte"),
        ({"name": "rotated-mnist", "path": "nowhere", "protocol": "x"}, "dataset.protocol: expected one of csac"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(Unusable, match=message) as caught:
        open_dataset(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_every_option_of_the_registry_is_an_argument() -> None:
    for info in DATASETS.values():
        assert set(info.options) <= {"path", "image_size", "on_broken", "protocol", "lists"}
        assert info.needs_path == ("path" in info.options)


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(Unusable, match="expected a domain out of pencil, neon, chalk, paper, found 'crayon'"):
        open_dataset("styled-digits").domain("crayon")


def test_styled_digits_are_the_same_bytes_on_every_machine() -> None:
    dataset = open_dataset("styled-digits")
    # A change here means that published results no longer apply and that raster.REVISION must be raised.
    assert {domain: dataset.domain(domain).digest[:16] for domain in dataset.domains} == STYLED_DIGESTS


def test_styled_digits_give_every_handwritten_digit_to_one_domain() -> None:
    dataset = open_dataset("styled-digits")
    used: list[int] = []
    for domain in dataset.domains:
        images = dataset.domain(domain)
        assert images.pixels.shape == (len(images), 32, 32, 3)
        assert 850 <= len(images) <= 1000
        assert np.bincount(images.labels).min() >= 80
        assert images.groups is not None
        np.testing.assert_array_equal(images.labels, bundled_digits()[1][images.groups])
        train, validation = split(images.labels, 0.1, 0, domain, images.groups)
        assert not set(images.groups[train]) & set(images.groups[validation])
        used += np.unique(images.groups).tolist()
    assert sorted(used) == list(range(1797))


def test_styles_differ_as_domains_should() -> None:
    dataset = open_dataset("styled-digits")
    mean = {domain: dataset.domain(domain).pixels.mean(axis=(0, 1, 2)) for domain in dataset.domains}
    assert mean["paper"][0] > mean["paper"][2] + 30  # warm
    assert mean["chalk"].max() < 90  # dark
    assert np.ptp(mean["pencil"]) < 5  # grey
    per_image = dataset.domain("neon").pixels.mean(axis=(1, 2))
    assert per_image.std(axis=0).min() > 20  # colours vary from picture to picture


def test_rotated_digits_are_the_same_pictures_at_every_angle() -> None:
    dataset = open_dataset("rotated-digits")
    upright = dataset.domain("r0")
    assert dataset.domains == ("r0", "r15", "r30", "r45", "r60", "r75")
    for domain in dataset.domains:
        images = dataset.domain(domain)
        assert images.pixels.shape == (1000, 28, 28, 1)
        assert np.bincount(images.labels).tolist() == [100] * 10
        np.testing.assert_array_equal(images.labels, upright.labels)
    stack = torch.from_numpy(upright.pixels[:50, :, :, 0].astype(np.float32))
    expected = rotate(stack, 45, InterpolationMode.BILINEAR).numpy()
    np.testing.assert_allclose(dataset.domain("r45").pixels[:50, :, :, 0], expected, atol=1.5)


def test_turning_agrees_with_torchvision_and_is_black_outside() -> None:
    pictures = np.random.default_rng(0).random((4, 28, 28), dtype=np.float32)
    for degrees in (0, 15, 75, 90, 200):
        expected = rotate(torch.from_numpy(pictures), degrees, InterpolationMode.BILINEAR).numpy()
        np.testing.assert_allclose(turn(pictures, degrees), expected, atol=2e-4)
    assert turn(np.ones((1, 28, 28), np.float32), 45)[0, 0, 0] == 0


@needs_mnist
def test_rotated_mnist_as_in_csac() -> None:
    dataset = open_dataset("rotated-mnist", path=str(SHARED / "mnist"))
    assert dataset.domains == ("m0", "m15", "m30", "m45", "m60", "m75")
    upright, turned = dataset.domain("m0"), dataset.domain("m75")
    assert np.bincount(upright.labels).tolist() == [100] * 10
    np.testing.assert_array_equal(upright.labels, turned.labels)
    np.testing.assert_array_equal(
        turned.pixels[:20, :, :, 0],
        np.rint(turn(upright.pixels[:20, :, :, 0] / np.float32(255), 75) * 255),
    )


@needs_mnist
def test_rotated_mnist_as_in_domainbed() -> None:
    dataset = open_dataset("rotated-mnist", path=str(SHARED / "mnist"), protocol="domainbed")
    sizes = [len(dataset.domain(domain)) for domain in dataset.domains]
    assert sizes == [11667, 11667, 11667, 11667, 11666, 11666]


def write_idx(path: Path, array: np.ndarray) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def small_mnist(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    write_idx(tmp_path / "train-images-idx3-ubyte", random.integers(0, 256, (1100, 28, 28), np.uint8))
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", (np.arange(1100) % 10).astype(np.uint8))
    return tmp_path


def test_idx_files_may_be_plain_or_compressed(small_mnist: Path) -> None:
    images = open_dataset("rotated-mnist", path=str(small_mnist)).domain("m0")
    assert np.bincount(images.labels).tolist() == [100] * 10


def test_domainbed_needs_the_test_files_too(small_mnist: Path) -> None:
    with pytest.raises(Unusable, match="expected t10k-images-idx3-ubyte or"):
        open_dataset("rotated-mnist", path=str(small_mnist), protocol="domainbed")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("short", "expected 862400 bytes after the header, found 862390"),
        ("html", "found another header"),
        ("gzip", "cannot be read"),
        ("size", "expected pictures of 28x28, found 32x32"),
        ("count", "expected as many labels as pictures, found 1100 and 1000"),
        ("labels", "expected labels 0 to 9, each 100 times or more"),
    ],
)
def test_damaged_idx_files_are_named(small_mnist: Path, damage: str, message: str) -> None:
    images, labels = small_mnist / "train-images-idx3-ubyte", small_mnist / "train-labels-idx1-ubyte.gz"
    if damage == "short":
        images.write_bytes(images.read_bytes()[:-10])
    elif damage == "html":
        images.write_bytes(b"<html>not found</html>")
    elif damage == "gzip":
        labels.write_bytes(labels.read_bytes()[:40])
    elif damage == "size":
        write_idx(images, np.zeros((1100, 32, 32), np.uint8))
    elif damage == "count":
        write_idx(images, np.zeros((1000, 28, 28), np.uint8))
    else:
        write_idx(labels, (np.arange(1100) % 9).astype(np.uint8))
    with pytest.raises(Unusable, match=message) as caught:
        open_dataset("rotated-mnist", path=str(small_mnist)).domain("m15")
    assert "\n" not in str(caught.value)
