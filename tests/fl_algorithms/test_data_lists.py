"""PACS, VLCS and miniDomainNet by their list files."""

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
PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS_DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
VLCS = ("bird", "car", "chair", "dog", "person")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


def draw(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade, 0, 0)).save(path)


def pacs(root: Path, domains: tuple[str, ...] = PACS_DOMAINS, first_label: int = 1) -> Path:
    """Three pictures a class, of which the first is in the crossval list."""
    (root / "splits").mkdir(parents=True)
    for domain in domains:
        train, crossval = [], []
        for label, name in enumerate(PACS):
            for number in range(3):
                path = f"{domain}/{name}/pic {number}.png"
                draw(root / path, 30 * label + number)
                (train if number else crossval).append(f"{path} {label + first_label}\n")
        (root / "splits" / f"{domain}_train_kfold.txt").write_text("".join(train))
        (root / "splits" / f"{domain}_crossval_kfold.txt").write_text("".join(crossval))
        (root / "splits" / f"{domain}_test_kfold.txt").write_text("".join(train + crossval))
    return root


def opened(name: str, root: Path, **options: object) -> DataSet:
    return open_dataset(name, path=str(root), image_size=8, **options)  # type: ignore[arg-type]


def refusal(name: str, root: Path, domain: str | None = None, **options: object) -> str:
    def attempt() -> None:
        dataset = opened(name, root, **options)
        if domain is not None:
            dataset.domain(domain)

    with pytest.raises(Unusable) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("first_label", [0, 1])
def test_pacs_in_the_order_of_its_lists(tmp_path: Path, first_label: int) -> None:
    dataset = opened("pacs-lists", pacs(tmp_path / "pacs", first_label=first_label))
    assert dataset.domains == PACS_DOMAINS
    assert dataset.classes == PACS
    images = dataset.domain("cartoon")
    assert images.labels.tolist() == [label for label in range(7) for _ in range(2)] + list(range(7))
    assert images.pixels[:, 0, 0, 0].tolist() == [30 * label + n for label in range(7) for n in (1, 2)] + [30 * label for label in range(7)]
    assert images.held_out is not None
    assert images.held_out.tolist() == [False] * 14 + [True] * 7


def test_a_domain_without_first_and_last_class_counts_as_published(tmp_path: Path) -> None:
    root = pacs(tmp_path / "pacs")
    for file in (root / "splits").glob("photo*"):
        lines = [line for line in file.read_text().splitlines(keepends=True) if "/dog/" not in line and "/person/" not in line]
        file.write_text("".join(lines))
    assert set(opened("pacs-lists", root).domain("photo").labels.tolist()) == {1, 2, 3, 4, 5}


def test_the_lists_may_be_elsewhere(tmp_path: Path) -> None:
    root = pacs(tmp_path / "pacs")
    whole = opened("pacs-lists", root).domain("photo").digest
    (root / "splits").rename(tmp_path / "elsewhere")
    assert "expected files <domain>_train_kfold.txt in" in refusal("pacs-lists", root)
    assert opened("pacs-lists", root, lists=str(tmp_path / "elsewhere")).domain("photo").digest == whole


def test_a_silo_needs_its_own_pictures_and_lists_only(tmp_path: Path) -> None:
    whole = opened("pacs-lists", pacs(tmp_path / "pacs")).domain("sketch")
    alone = opened("pacs-lists", pacs(tmp_path / "silo", domains=("sketch",)))
    assert alone.domains == PACS_DOMAINS
    assert alone.domain("sketch").digest == whole.digest
    message = refusal("pacs-lists", tmp_path / "silo", "photo")
    assert "expected photo_train_kfold.txt, the list of domain photo, found none" in message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("photo/dog/pic 1.png 8", "_train_kfold.txt line 15: expected a label from 1 to 7, found 8"),
        ("photo/dog/pic 1.png 2", "line 15: expected the label of dog, 1, found 2 for 'photo/dog/pic 1.png'"),
        ("photo/dog/pic 1.png", "line 15: expected `path label`, found 'photo/dog/pic 1.png'"),
        ("photo/dog/pic 1.png -1", "line 15: expected `path label`"),
        ("photo/dog/absent.png 1", "photo/dog/absent.png': expected a picture, found no such file"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    root = pacs(tmp_path / "pacs")
    with (root / "splits" / "photo_train_kfold.txt").open("a") as file:
        file.write(line + "\n")
    assert message in refusal("pacs-lists", root, "photo")
    opened("pacs-lists", root).domain("cartoon")  # not affected


def test_absent_pictures_are_left_out_and_counted_on_request(tmp_path: Path) -> None:
    root = pacs(tmp_path / "pacs")
    (root / "photo" / "dog" / "pic 0.png").unlink()
    images = opened("pacs-lists", root, on_broken="skip").domain("photo")
    assert images.skipped == ("photo/dog/pic 0.png",)
    assert images.held_out is not None
    assert (len(images), int(images.held_out.sum())) == (20, 6)


def test_a_list_must_be_text(tmp_path: Path) -> None:
    root = pacs(tmp_path / "pacs")
    (root / "splits" / "photo_train_kfold.txt").write_bytes(b"\xff\xfe")
    assert "expected lines of `path label` in UTF-8" in refusal("pacs-lists", root, "photo")


def test_vlcs_lists_are_found_whatever_their_case(tmp_path: Path) -> None:
    for domain in ("CALTECH", "LABELME", "PASCAL", "SUN"):
        for part, count in (("train", 7), ("test", 3)):
            lines = []
            for label in range(5):
                for number in range(count):
                    draw(tmp_path / "vlcs" / domain / part / str(label) / f"{number}.jpg", 50 * label)
                    lines.append(f"{domain}/{part}/{label}/{number}.jpg {label}")
            (tmp_path / "vlcs" / f"{domain}_{part}.txt").write_text("\n".join(lines))
    dataset = opened("vlcs-lists", tmp_path / "vlcs")
    assert (dataset.domains, dataset.classes) == (("Caltech", "LabelMe", "Pascal", "Sun"), VLCS)
    for domain in dataset.domains:
        images = dataset.domain(domain)
        assert images.held_out is not None
        assert np.bincount(images.labels).tolist() == [10] * 5
        assert np.bincount(images.labels[images.held_out]).tolist() == [3] * 5
    # The same folders are also VLCS as a tree, with the same split.
    tree = opened("vlcs", tmp_path / "vlcs").domain("Sun")
    assert tree.held_out is not None
    assert (np.bincount(tree.labels).tolist(), int(tree.held_out.sum())) == ([10] * 5, 15)


def mini_domain_net(root: Path, domains: tuple[str, ...]) -> Path:
    (root / "splits_mini").mkdir(parents=True)
    for domain in domains:
        for part in ("train", "test"):
            lines = []
            for label in range(126):
                path = f"{domain}/thing_{label:03d}/{domain}_{part}.jpg"
                draw(root / path, label)
                lines.append(f"{path} {label}")
            (root / "splits_mini" / f"{domain}_{part}.txt").write_text("\n".join(lines))
    return root


def test_mini_domain_net_names_its_classes_by_folder(tmp_path: Path) -> None:
    root = mini_domain_net(tmp_path / "all", ("clipart", "real"))
    dataset = opened("minidomainnet", root)
    assert dataset.domains == ("clipart", "painting", "real", "sketch")
    assert dataset.classes == tuple(f"thing_{label:03d}" for label in range(126))
    images = dataset.domain("real")
    assert images.held_out is not None
    assert (len(images), int(images.held_out.sum())) == (252, 126)
    assert open_dataset("minidomainnet", path=str(root)).image_size == 128
    alone = opened("minidomainnet", mini_domain_net(tmp_path / "silo", ("real",)))
    assert alone.domain("real").digest == images.digest


def test_mini_domain_net_has_126_classes_also_where_a_silo_has_fewer(tmp_path: Path) -> None:
    root = mini_domain_net(tmp_path / "silo", ("real",))
    for file in (root / "splits_mini").iterdir():
        file.write_text("\n".join(file.read_text().splitlines()[:100]))
    dataset = opened("minidomainnet", root)
    assert len(dataset.classes) == 126
    assert dataset.classes[99:101] == ("thing_099", "label 100")


@pytest.mark.skipif(not (SHARED / "pacs").is_dir(), reason="PACS is not here: set SILOFLOW_TEST_DATA")
def test_the_official_lists_of_pacs(tmp_path: Path) -> None:
    sizes = {"photo": (1670, 171), "art_painting": (2048, 208), "cartoon": (2344, 237), "sketch": (3929, 398)}
    (tmp_path / "pacs").mkdir()
    dataset = opened("pacs-lists", tmp_path / "pacs", lists=str(SHARED / "pacs" / "splits"))
    assert dataset.files is not None
    for domain, (total, held_out) in sizes.items():
        files = dataset.files(domain)
        assert (len(files), sum(file.held_out is True for file in files)) == (total, held_out)
        with tarfile.open(SHARED / "pacs" / f"{domain}.tar") as archive:
            members = {tmp_path / "pacs" / member.name for member in archive if member.isfile()}
        assert {file.path for file in files} == members
        assert all(file.path.parent.name == PACS[file.label] for file in files)
