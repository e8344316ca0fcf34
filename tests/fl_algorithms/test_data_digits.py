"""MNIST, MNIST-M and USPS as one data set."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fl_algorithms.data import open_dataset
from fl_algorithms.data.idx import read_idx
from fl_algorithms.errors import Unusable

SHARED = Path(os.environ.get("SILOFLOW_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (SHARED / "digits").is_dir(), reason="the digits are not here: set SILOFLOW_TEST_DATA")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_counts_and_labels() -> None:
    dataset = open_dataset("digits", path=str(SHARED))
    assert (dataset.domains, dataset.classes) == (("mnist", "mnist-m", "usps"), tuple("0123456789"))
    expected = {
        "mnist": ([6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958], 10000),
        "mnist-m": ([750] * 10, 1500),
        "usps": ([1553, 1269, 929, 824, 852, 716, 834, 792, 708, 821], 2007),
    }
    for domain, (counts, held_out) in expected.items():
        images = dataset.domain(domain)
        assert images.pixels.shape == (sum(counts), 32, 32, 3)
        assert images.held_out is not None
        assert (np.bincount(images.labels).tolist(), int(images.held_out.sum())) == (counts, held_out)
        assert images.held_out[-held_out:].all()


def test_the_pictures_are_the_digits_that_their_labels_say() -> None:
    """MNIST-M was made from MNIST: tile and picture of one number are the same digit at the same place."""
    dataset = open_dataset("digits", path=str(SHARED))
    mnist, tiles = dataset.domain("mnist"), dataset.domain("mnist-m")
    np.testing.assert_array_equal(mnist.pixels[0, 2:-2, 2:-2, 1], read_idx(SHARED / "mnist" / "train-images-idx3-ubyte.gz", 3)[0])
    with np.load(SHARED / "digits" / "mnistm_test1500_labels.npz") as arrays:
        numbers = 60000 + arrays["idx"]
    np.testing.assert_array_equal(mnist.labels[numbers], tiles.labels[6000:])
    edges = [np.abs(np.diff(images.astype(int), axis=2)).sum(axis=3) for images in (mnist.pixels[numbers], tiles.pixels[6000:])]
    same, other = (_correlation(edges[0], chosen) for chosen in (edges[1], np.roll(edges[1], 1, axis=0)))
    assert same > 2 * other


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    flat = [(stack - stack.mean(axis=(1, 2), keepdims=True)).reshape(len(stack), -1) for stack in (first, second)]
    return float(((flat[0] * flat[1]).sum(1) / np.sqrt((flat[0] ** 2).sum(1) * (flat[1] ** 2).sum(1))).mean())


def test_a_silo_needs_its_own_files_only(tmp_path: Path) -> None:
    shutil.copy(SHARED / "digits" / "usps.h5", tmp_path)
    assert len(open_dataset("digits", path=str(tmp_path)).domain("usps")) == 9298
    with pytest.raises(Unusable, match=r"expected mnistm_train6000.webp in it or in its folders mnist and digits, found none"):
        open_dataset("digits", path=str(tmp_path)).domain("mnist-m")


def test_without_h5py_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    shutil.copyfile(SHARED / "digits" / "usps.h5", tmp_path / "usps.h5")  # another time of change: not in the cache
    with pytest.raises(Unusable, match=r"usps.h5: needs the package h5py.*pip install 'siloflow\[data\]'"):
        open_dataset("digits", path=str(tmp_path)).domain("usps")


@pytest.mark.parametrize(
    ("name", "domain"), [("usps.h5", "usps"), ("mnistm_test1500.webp", "mnist-m"), ("mnistm_test1500_labels.npz", "mnist-m")]
)
@pytest.mark.parametrize("damage", ["cut", "text"])
def test_damaged_files_are_named(tmp_path: Path, name: str, domain: str, damage: str) -> None:
    shutil.copytree(SHARED / "digits", tmp_path / "digits")
    file = tmp_path / "digits" / name
    file.write_bytes(file.read_bytes()[:1000] if damage == "cut" else b"no such thing")
    with pytest.raises(Unusable, match=r"fetch (it|both) again") as caught:
        open_dataset("digits", path=str(tmp_path)).domain(domain)
    assert "\n" not in str(caught.value)
    assert "mnistm_test1500" in str(caught.value) if domain == "mnist-m" else "usps.h5" in str(caught.value)
