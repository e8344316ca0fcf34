"""FEMNIST in LEAF's JSON, made up in its layout: the real files are gigabytes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.functional import InterpolationMode, affine, rotate

from fl_algorithms.data import open_dataset
from fl_algorithms.data.femnist import CLASSES, SHIFTS, domain_of, nearest
from fl_algorithms.data.leaf import read_pictures, read_users
from fl_algorithms.errors import Unusable
from fl_algorithms.randomness import numpy_stream


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


def drawn(number: int, count: int = 2) -> np.ndarray:
    """Pictures of a writer, uint8 [count, 28, 28]: white paper and dark strokes."""
    grey = np.random.default_rng(number).integers(0, 256, (count, 28, 28))
    grey[:, :6], grey[:, -6:], grey[:, :, :6], grey[:, :, -6:] = 255, 255, 255, 255
    return grey.astype(np.uint8)


def leaf(writers: dict[str, tuple[np.ndarray, list[int]]]) -> dict[str, Any]:
    return {
        "users": list(writers),
        "num_samples": [len(labels) for _, labels in writers.values()],
        "user_data": {
            name: {"x": (pictures / 255).reshape(len(pictures), -1).tolist(), "y": labels} for name, (pictures, labels) in writers.items()
        },
    }


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    """Twelve writers in two files, not in the order of their names."""
    names = [f"f{number:04d}_{number % 7:02d}" for number in range(12)]
    for part, count in (("train", 2), ("test", 1)):
        (tmp_path / "data" / part).mkdir(parents=True)
        for place, chosen in enumerate((names[7:], names[:7])):
            writers = {name: (drawn(int(name[1:5]), count), [int(name[1:5])] * count) for name in reversed(chosen)}
            (tmp_path / "data" / part / f"all_data_{place}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(leaf(writers)))
    return tmp_path


def test_plain_has_the_files_as_domains_and_writers_as_groups(femnist: Path) -> None:
    dataset = open_dataset("femnist", path=str(femnist))
    assert (dataset.domains, len(dataset.classes)) == (("train", "test"), 62)
    assert dataset.classes[:1] + dataset.classes[10:11] + dataset.classes[-1:] == ("0", "A", "z")
    train, test = dataset.domain("train"), dataset.domain("test")
    order = [number for part in (range(11, 6, -1), range(6, -1, -1)) for number in part]
    assert train.groups is not None
    assert train.groups.tolist() == train.labels.tolist() == [number for number in order for _ in range(2)]
    np.testing.assert_array_equal(train.pixels[:2, :, :, 0], drawn(11))
    assert test.labels.tolist() == order


def test_the_same_files_in_another_layout_of_json(femnist: Path) -> None:
    before = open_dataset("femnist", path=str(femnist)).domain("train").digest
    for file in (femnist / "data" / "train").iterdir():
        content = json.loads(file.read_text())
        data = {user: {"note": 'a "quoted\\" ]}', "y": one["y"], "x": one["x"]} for user, one in content["user_data"].items()}
        other = {"hierarchies": [[], {"a": [1, "]"]}], "user_data": data, "num_samples": content["num_samples"], "users": content["users"]}
        file.write_text(json.dumps(other, indent=1))
    assert open_dataset("femnist", path=str(femnist)).domain("train").digest == before


def test_writer_i_has_the_domain_of_the_paper() -> None:
    thousand = domain_of(3550, everyone=False)
    assert np.bincount(thousand[:1002]).tolist() == [167] * 6
    assert (thousand[[0, 166, 167, 1001]].tolist(), set(thousand[1002:].tolist())) == ([0, 0, 1, 5], {0})
    everyone = domain_of(3550, everyone=True)
    assert sorted(np.bincount(everyone).tolist()) == [591, 591, 592, 592, 592, 592]
    assert np.all(np.diff(everyone) >= 0)
    np.testing.assert_array_equal(domain_of(1002, everyone=True), domain_of(1002, everyone=False))


@pytest.mark.parametrize(
    ("protocol", "domains"),
    [
        ("rotated-all", ("r0", "r15", "r30", "r45", "r60", "r75")),
        ("dg-all", ("none", "blur", "inversion", "rotation", "noise", "affine")),
    ],
)
def test_variants_deal_the_writers_of_the_training_files(femnist: Path, protocol: str, domains: tuple[str, ...]) -> None:
    dataset = open_dataset("femnist", path=str(femnist), protocol=protocol)
    assert dataset.domains == domains
    for number, domain in enumerate(domains):
        images = dataset.domain(domain)
        assert sorted(set(images.labels.tolist())) == [2 * number, 2 * number + 1]
    thousand = open_dataset("femnist", path=str(femnist), protocol=protocol.replace("all", "1000"))
    assert len(thousand.domain(domains[0])) == 24  # all twelve are below 167
    with pytest.raises(Unusable, match="expected pictures, found 0 files"):
        thousand.domain(domains[1])


def test_a_transform_is_drawn_once_for_each_writer(femnist: Path) -> None:
    noise = open_dataset("femnist", path=str(femnist), protocol="dg-all").domain("noise")
    expected = np.clip(SHIFTS["noise"](drawn(9) / np.float32(255), numpy_stream(0, "femnist", "f0009_02")), 0, 1)
    np.testing.assert_allclose(noise.pixels[noise.labels == 9][..., 0], expected * 255, atol=0.51)


def test_transforms_are_those_of_the_paper() -> None:
    grey = drawn(3, 60) / np.float32(255)
    stack = torch.from_numpy(grey)[:, None]
    generator = numpy_stream(0, "test")
    np.testing.assert_array_equal(SHIFTS["none"](grey, generator), grey)
    np.testing.assert_array_equal(SHIFTS["inversion"](grey, generator), 1 - grey)
    box = torch.nn.functional.conv2d(torch.nn.functional.pad(stack, (1, 1, 1, 1), "replicate"), torch.full((1, 1, 3, 3), 0.1))
    np.testing.assert_allclose(SHIFTS["blur"](grey, generator), box[:, 0], atol=1e-6)
    turned = rotate(stack, 45, InterpolationMode.NEAREST, fill=1.0)[:, 0].numpy()
    assert (SHIFTS["rotation"](grey, generator) == turned).mean() > 0.995  # ties may fall to either neighbour
    noise = SHIFTS["noise"](np.full((60, 28, 28), 0.5, np.float32), generator) - 0.5
    assert abs(noise.std() - 0.15) < 0.003
    assert abs(noise.mean()) < 0.003


def test_moving_agrees_with_torchvision() -> None:
    grey = drawn(4, 3) / np.float32(255)
    for scale, down, across in ((1.2, 3, -5), (0.8, -7, 0), (1.0, 2, 2)):
        expected = affine(torch.from_numpy(grey)[:, None], 0, [across, down], scale, [0.0], InterpolationMode.NEAREST, fill=1.0)[:, 0]
        zoom = np.full((1, 1, 1), 1 / scale)
        found = nearest(grey, zoom * np.eye(2), -zoom[:, 0] * np.array([[down, across]]))
        assert (found == expected.numpy()).mean() > 0.98  # ties may fall to either neighbour
    moved = SHIFTS["affine"](np.zeros((500, 28, 28), np.float32), numpy_stream(0, "test"))
    uncovered = moved.mean(axis=(1, 2))
    assert uncovered.min() == 0
    assert 0.1 < uncovered.mean() < 0.4


def test_reading_keeps_one_writer_in_memory(tmp_path: Path) -> None:
    """13 MB of JSON, of which a writer is 23 kB: neither the text nor lists of its floats are ever held."""
    writers = {f"w{number:03d}": (drawn(number, 3), [number % 62] * 3) for number in range(600)}
    file = tmp_path / "big.json"
    file.write_text(json.dumps(leaf(writers)))
    assert file.stat().st_size > 12_000_000
    tracemalloc.start()
    assert read_users(file) == dict.fromkeys(writers, 3)
    assert sum(len(labels) for _, _, labels in read_pictures(file, set(writers), 28)) == 1800
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_500_000


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "expected more, found the end of the file"),
        (lambda text: text.replace('"y": [7, 7]', '"y": [7]'), "expected as many labels as pictures of f0007_00, found 1 and 2"),
        (lambda text: text.replace('"y": [7, 7]', '"y": [62, 7]'), "expected labels from 0 to 61, found others of writer f0007_00"),
        (lambda text: text.replace("1.0, 1.0,", "1.0,", 1), "expected pictures of 784 numbers from 0 to 1"),
        (lambda text: text.replace("1.0", "2.0", 1), "expected pictures of 784 numbers from 0 to 1"),
        (lambda text: text.replace("1.0", "x", 1), "expected pictures of 784 numbers from 0 to 1"),
        (lambda text: text.replace('"num_samples"', '"samples"'), "expected LEAF's users and as many num_samples"),
        (lambda text: "<html>", "expected { of LEAF's layout, found b'<html>'"),
        (lambda text: "", "found the end of the file"),
    ],
)
def test_damaged_files_are_named(femnist: Path, damage: Any, message: str) -> None:
    file = femnist / "data" / "train" / "all_data_0_niid_0_keep_0_train_9.json"
    file.write_text(damage(file.read_text()))
    with pytest.raises(Unusable) as caught:
        open_dataset("femnist", path=str(femnist)).domain("train")
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"dataset.protocol: expected one of plain, rotated-1000"):
        open_dataset("femnist", path=str(tmp_path), protocol="rotated")
    with pytest.raises(Unusable, match=r"expected LEAF's train/\*.json, found none"):
        open_dataset("femnist", path=str(tmp_path)).domain("train")
    assert len(CLASSES) == 62
