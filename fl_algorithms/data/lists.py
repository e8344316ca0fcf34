"""Data sets whose pictures are named by list files, one `path label` per line: `<domain>_train...txt`, `<domain>_test...txt`.

The two lists are the split of the data set's own (`dataset.split=listed`). Labels count from 0 or from 1, as the
domain's lists show by the smallest and largest label in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.images import Picture
from fl_algorithms.data.pictures import OnBroken, existing_folder, names_in, picture_set
from fl_algorithms.data.published import SETS
from fl_algorithms.errors import Unusable


@dataclass(frozen=True)
class Listed:
    domains: tuple[str, ...]  # also how the names of their list files begin, whatever the case
    endings: tuple[str, str]  # of the training list and of the other one
    first_label: int  # where a domain lacks both the first and the last class
    classes: tuple[str, ...] = ()
    count: int = 0  # of classes, where their names are the folders that the lists name
    folder: str = "."  # of the list files, in `path`
    image_size: int = 224


SETS_OF_LISTS = {
    "pacs-lists": Listed(tuple(SETS["pacs"].domains), ("_train_kfold.txt", "_crossval_kfold.txt"), 1, SETS["pacs"].classes),
    "vlcs-lists": Listed(tuple(SETS["vlcs"].domains), ("_train.txt", "_test.txt"), 0, SETS["vlcs"].classes),
    "minidomainnet": Listed(
        ("clipart", "painting", "real", "sketch"),
        ("_train.txt", "_test.txt"),
        0,
        count=126,
        folder="splits_mini",
        image_size=128,
    ),
}


class Line(NamedTuple):
    place: str  # file and line, for messages
    path: str
    label: int
    held_out: bool


def open_lists(name: str, path: str, lists: str | None = None, image_size: int | None = None, on_broken: OnBroken = "fail") -> DataSet:
    """Paths in the lists are relative to `path`; the lists are in `lists`, or where the data set has them in `path`."""
    known, root = SETS_OF_LISTS[name], existing_folder(path, "the pictures that the lists name")
    folder = _list_folder(root, lists, known)
    classes = known.classes or _folder_names(folder, known)

    def find(domain: str) -> list[Picture]:
        lines = _lines(folder, known, domain)
        first = _first_label(lines, len(classes), known.first_label)
        for line in lines:
            _check(line, first, classes)
        return [Picture(root / line.path, line.label - first, line.held_out) for line in lines]

    return picture_set(name, known.domains, classes, find, root, image_size or known.image_size, on_broken)


def _list_folder(root: Path, lists: str | None, known: Listed) -> Path:
    candidates = [Path(lists)] if lists is not None else [root / known.folder, root / "splits", root]
    found = [folder for folder in candidates if folder.is_dir() and names_in(folder, lambda path: path.name.endswith(known.endings))]
    if not found:
        places = " or ".join(map(str, candidates))
        raise Unusable(
            f"dataset.lists: expected files <domain>{known.endings[0]} in {places}, found none; set dataset.lists to their folder"
        )
    return found[0]


def _lines(folder: Path, known: Listed, domain: str) -> list[Line]:
    """Training list first; within a list, its own order."""
    lines: list[Line] = []
    for ending, held_out in zip(known.endings, (False, True), strict=True):
        files = [name for name in names_in(folder, Path.is_file) if name.lower() == (domain + ending).lower()]
        if not files:
            raise Unusable(f"{folder}: expected {domain}{ending}, the list of domain {domain}, found none; set dataset.lists to its folder")
        lines += _read(folder / files[0], held_out)
    return lines


def _read(file: Path, held_out: bool) -> list[Line]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{file}: expected lines of `path label` in UTF-8, found {error}") from error
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.rsplit(maxsplit=1)
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal():
            raise Unusable(f"{file} line {number}: expected `path label`, found {line.strip()[:80]!r}; correct the list")
        lines.append(Line(f"{file} line {number}", words[0].strip(), int(words[1]), held_out))
    return lines


def _first_label(lines: list[Line], count: int, usual: int) -> int:
    found = {line.label for line in lines}
    return 0 if 0 in found else 1 if count in found else usual


def _check(line: Line, first: int, classes: tuple[str, ...]) -> None:
    last = first + len(classes) - 1
    if not first <= line.label <= last:
        raise Unusable(f"{line.place}: expected a label from {first} to {last}, found {line.label}; correct the list")
    folder = PurePosixPath(line.path).parent.name
    if folder in classes and folder != classes[line.label - first]:
        raise Unusable(
            f"{line.place}: expected the label of {folder}, {classes.index(folder) + first}, found {line.label} "
            f"for {line.path!r}; correct the list"
        )


def _folder_names(folder: Path, known: Listed) -> tuple[str, ...]:
    """Classes by label: the folder of the pictures in whatever lists are here, which may be one silo's only."""
    names: dict[int, str] = {}
    for domain in known.domains:
        try:
            lines = _lines(folder, known, domain)
        except Unusable:
            continue  # another silo's; if it is ours, the domain says so when it is opened
        names |= {line.label: PurePosixPath(line.path).parent.name for line in lines}
    return tuple(names.get(label, f"label {label}") for label in range(known.count))
