"""Names that become keys, buckets and folders: a trick in one is refused in one line, before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from components import layout
from components.errors import InputError
from components.federation import checked_run
from tests.federations import Run, values

TRICKS = {
    "empty": "", "dot": ".", "dots": "..", "hidden": ".run", "up": "../run", "absolute": "/etc/run", "inside": "a/b",
    "backslash": "a\\..\\b",
    "dash-first": "-rf", "space": "my run", "newline": "run\n", "null": "run\0", "escape": "run\x1b[31m", "delete": "run\x7f",
    "cyrillic-a": "r\u0430n", "full-width": "\uff52un", "right-to-left": "run\u202e", "zero-width": "ru\u200bn", "combining": "ru\u0301n",
    "surrogate": "run\udc80", "percent": "%2e%2e", "colon": "c:run", "star": "*", "quote": "run'", "long": "r" * 300,
}  # fmt: skip


@pytest.mark.parametrize("name", TRICKS.values(), ids=TRICKS)
def test_a_run_that_is_called_like_a_path_trick(name: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_run(name)
    message = str(caught.value)
    assert message.isascii() and message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize("name", ["run", "20260101-fedavg-art_painting", "a", "0", "v1.2", "r" * 100, "global"])
def test_a_plain_run_name(name: str) -> None:
    assert checked_run(name) == name


@pytest.mark.parametrize("name", ["my run", "r\u0430n", "-rf"])
def test_nothing_is_written_for_it(pictures: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="choose another --out"):
        Run(values(pictures), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def renamed(pictures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pictures, tmp_path / "pictures"))


@pytest.mark.parametrize("name", [*layout.RESERVED, "Server", "_global_"])
def test_a_silo_may_not_be_called_like_a_role(renamed: Path, tmp_path: Path, name: str) -> None:
    (renamed / "ash").rename(renamed / name)
    with pytest.raises(InputError, match=r"expected another name than .*; rename its domain"):
        Run(values(renamed), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folder_names_of_real_data_sets_become_silo_names(renamed: Path, tmp_path: Path) -> None:
    """Spaces, capitals and underscores are common there, and buckets know none of them."""
    for old, new in (("ash", "Real World"), ("birch", "art_painting"), ("cedar", "Müller & Söhne")):
        (renamed / old).rename(renamed / new)
    run = Run(values(renamed, rounds=1), tmp_path / "run")
    assert run.silos == ["art-painting", "m-ller-s-hne", "real-world"]
    assert len(run.digest) == 64


@pytest.mark.parametrize(
    ("names", "said"), [(("日本", "birch"), "rename the domain"), (("Art_1", "art 1"), "rename one"), (("x" * 99, "b"), "rename")]
)
def test_names_that_give_no_silo_or_the_same_silo(renamed: Path, tmp_path: Path, names: tuple[str, str], said: str) -> None:
    for old, new in zip(("ash", "birch"), names, strict=True):
        (renamed / old).rename(renamed / new)
    with pytest.raises(InputError, match=said):
        Run(values(renamed), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_name_that_another_run_of_the_store_has(pictures: Path, tmp_path: Path) -> None:
    shared = (tmp_path / "store").as_uri()
    mine = Run(values(pictures, store=shared, seed=1, rounds=1), tmp_path / "mine" / "run")
    digest = mine.digest
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"run 'run': file://.* holds another run of this name; choose another --out"):
        Run(values(pictures, store=shared, seed=2, rounds=1), tmp_path / "theirs" / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before
    assert Run(values(pictures, store=shared, seed=1, rounds=1), tmp_path / "mine" / "run").digest == digest
