"""The picture sets of the papers as folder trees."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl_algorithms.data import DataSet, open_dataset
from fl_algorithms.data.published import OFFICE_HOME, SETS
from fl_algorithms.errors import Unusable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


def fill(folder: Path, classes: tuple[str, ...], count: int = 2) -> None:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for place in range(count):
            Image.new("RGB", (9, 9), (number, place, 0)).save(folder / name / f"{place}.png")


def opened(name: str, root: Path) -> DataSet:
    return open_dataset(name, path=str(root), image_size=8)


def refusal(name: str, root: Path, domain: str) -> str:
    dataset = opened(name, root)
    with pytest.raises(Unusable) as caught:
        dataset.domain(domain)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_classes_and_domains_are_those_of_the_papers() -> None:
    shape = {name: (len(known.domains), len(known.classes)) for name, known in SETS.items()}
    assert shape == {"pacs": (4, 7), "vlcs": (4, 5), "officehome": (4, 65), "office-caltech-home": (7, 8)}
    for known in SETS.values():
        assert list(known.classes) == sorted(known.classes)  # label order: alphabetical, as ImageFolder has it
    assert tuple(SETS["office-caltech-home"].domains) == ("Am", "We", "Ca", "Ar", "Cl", "Pr", "Rw")


@pytest.mark.parametrize("name", SETS)
def test_a_silo_needs_its_own_domain_only(name: str, tmp_path: Path) -> None:
    known = SETS[name]
    for domain in known.domains:
        fill(tmp_path / "all" / domain, known.classes)
    whole = opened(name, tmp_path / "all")
    assert (whole.domains, whole.classes) == (tuple(known.domains), known.classes)
    for domain in known.domains:
        (tmp_path / domain).mkdir()
        (tmp_path / "all" / domain).rename(tmp_path / domain / domain)
        alone = opened(name, tmp_path / domain)
        assert np.bincount(alone.domain(domain).labels).tolist() == [2] * len(known.classes)
        assert (alone.domains, alone.classes) == (whole.domains, whole.classes)
        (tmp_path / domain / domain).rename(tmp_path / "all" / domain)
        assert whole.domain(domain).digest == alone.domain(domain).digest


def test_folders_are_known_in_the_spellings_of_mirrors(tmp_path: Path) -> None:
    fill(tmp_path / "home" / "Real World", OFFICE_HOME, count=1)
    assert opened("officehome", tmp_path / "home").domain("RealWorld").labels.tolist() == list(range(65))
    for folder in ("Caltech101", "LabelMe", "SUN09", "VOC2007"):
        fill(tmp_path / "vlcs" / folder, SETS["vlcs"].classes, count=1)
    dataset = opened("vlcs", tmp_path / "vlcs")
    assert [len(dataset.domain(domain)) for domain in dataset.domains] == [5, 5, 5, 5]


def test_office_caltech_home_takes_the_eight_shared_classes_only(tmp_path: Path) -> None:
    office = ("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug", "projector")
    for folder in ("amazon", "webcam", "dslr", "caltech10"):
        fill(tmp_path / folder, office, count=1)
    for folder in ("Art", "Clipart", "Product", "Real World"):
        fill(tmp_path / folder, OFFICE_HOME, count=1)
    dataset = opened("office-caltech-home", tmp_path)
    assert dataset.domains == ("Am", "We", "Ca", "Ar", "Cl", "Pr", "Rw")  # no DSLR
    expected = {"Am": [office.index(name) for name in office if name not in ("headphones", "projector")]}
    expected["Rw"] = [OFFICE_HOME.index(name.capitalize()) for name in dataset.classes]
    for domain, shades in expected.items():
        images = dataset.domain(domain)
        assert images.labels.tolist() == list(range(8))
        assert images.pixels[:, 0, 0, 0].tolist() == shades


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    fill(tmp_path / "photo", SETS["pacs"].classes)
    assert "expected the folder of domain sketch (sketch), found none" in refusal("pacs", tmp_path, "sketch")
    (tmp_path / "sketch").symlink_to(tmp_path / "sketch")  # a loop
    assert "expected the folder of domain sketch (sketch), found none" in refusal("pacs", tmp_path, "sketch")
    fill(tmp_path / "photo", ("zebra",))
    assert "photo/zebra: expected a class out of dog, elephant" in refusal("pacs", tmp_path, "photo")
    fill(tmp_path / "Cartoon", SETS["pacs"].classes)
    fill(tmp_path / "cartoon", SETS["pacs"].classes)
    assert "found both Cartoon and cartoon; keep one" in refusal("pacs", tmp_path, "cartoon")


def test_an_empty_domain_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo" / "dog").mkdir(parents=True)
    assert "domain photo: expected pictures, found none" in refusal("pacs", tmp_path, "photo")


def test_names_beyond_ascii(tmp_path: Path) -> None:
    """`folder`: macOS writes é in two code points, others in one; both are the same class, and its order is everywhere the same."""
    for domain, form in (("Zürich", "NFC"), ("写真", "NFD")):
        fill(tmp_path / "data" / domain, tuple(unicodedata.normalize(form, name) for name in ("café", "Öl", "žába")))
    dataset = opened("folder", tmp_path / "data")
    assert dataset.domains == ("Zürich", "写真")
    assert dataset.classes == ("café", "Öl", "žába")
    assert dataset.domain("Zürich").labels.tolist() == dataset.domain("写真").labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_folder_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "data" / "photo", ("cat", "dog"))
    try:
        (tmp_path / "data" / "photo" / "caf\udce9").mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(Unusable, match=r"photo/caf\\udce9': expected a folder name in UTF-8") as caught:
        opened("folder", tmp_path / "data")
    assert str(caught.value).isprintable()
