"""`folder`: pictures in `path/domain/class/file`, a company's own."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.images import Picture
from fl_algorithms.data.pictures import OnBroken, existing_folder, is_picture, names_in, picture_set
from fl_algorithms.errors import Unusable

Tree = dict[str, dict[str, list[Path]]]  # domain -> class -> files


def open_folder(path: str, image_size: int = 224, on_broken: OnBroken = "fail") -> DataSet:
    """Domains and classes are the folders that hold pictures, in alphabetical order.

    A silo that has only its own domain cannot know the classes of the others: `classes.txt` in `path`, one class per
    line, then says what they are.
    """
    root = existing_folder(path, "domain folders")
    tree = {domain: filled for domain, folder in named(root).items() if (filled := _filled(folder))}
    if not tree:
        packed = [name for name in names_in(root, Path.is_file) if name.endswith((".tar", ".tar.gz", ".tgz", ".zip"))]
        remedy = f"unpack {', '.join(packed[:4])}" if packed else "name the folder that the domains are in"
        raise Unusable(f"dataset.path: expected pictures in domain/class/file, found none under {path!r}; {remedy}")
    classes = _classes(root, tree)

    def find(domain: str) -> list[Picture]:
        return [Picture(file, classes.index(name)) for name, files in sorted(tree[domain].items()) for file in files]

    return picture_set("folder", tuple(tree), classes, find, root, image_size, on_broken)


def named(folder: Path) -> dict[str, Path]:
    """Folders by name, in one spelling: what macOS writes as `e` and an accent, others write as one letter."""
    found: dict[str, Path] = {}
    for name in names_in(folder, Path.is_dir):
        spelling = unicodedata.normalize("NFC", name)
        if not spelling.isprintable():  # also true of bytes that are not UTF-8
            raise Unusable(f"{str(folder / name)!r}: expected a folder name in UTF-8, found other bytes; rename it")
        if spelling in found:
            raise Unusable(f"{str(folder / name)!r}: expected one folder of this name, found two spellings of it; merge them")
        found[spelling] = folder / name
    return dict(sorted(found.items()))


def pictures_in(folder: Path) -> list[Path]:
    return [folder / name for name in names_in(folder, is_picture)]


def _filled(domain: Path) -> dict[str, list[Path]]:
    """class -> files. Looks exactly two levels deep, so links that form a loop do no harm."""
    return {name: files for name, folder in named(domain).items() if (files := pictures_in(folder))}


def _classes(root: Path, tree: Tree) -> tuple[str, ...]:
    listed = listed_classes(root)
    classes = listed or tuple(sorted({name for folders in tree.values() for name in folders}))
    if len(classes) < 2:
        raise Unusable(f"{root}: expected at least two classes, found only {', '.join(classes)!r}; a class is a folder in a domain")
    unknown = sorted(f"{domain}/{name}" for domain, folders in tree.items() for name in folders if name not in classes)
    if unknown:
        raise Unusable(f"{root / 'classes.txt'}: expected every class folder to be listed, found {unknown[0]!r}; add it or move it away")
    return classes


def listed_classes(folder: Path) -> tuple[str, ...] | None:
    """What `classes.txt` says, in alphabetical order."""
    listed = folder / "classes.txt"
    if not listed.is_file():
        return None
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{listed}: expected one class per line in UTF-8, found {error}") from error
    return tuple(sorted({unicodedata.normalize("NFC", line.strip()) for line in lines if line.strip()}))
