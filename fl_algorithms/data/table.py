"""`csv`: a company's own pictures, named by a table with the columns path, label and domain.

The first row may be a header, which then says where the three columns are; other columns are left aside. Without a
header the columns are path, label, domain. Paths are relative to the folder of the table.
"""

from __future__ import annotations

import csv
import unicodedata
from pathlib import Path
from typing import NamedTuple

from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.folder import listed_classes
from fl_algorithms.data.images import Picture
from fl_algorithms.data.pictures import OnBroken, picture_set
from fl_algorithms.errors import Unusable

COLUMNS = ("path", "label", "domain")


class Row(NamedTuple):
    number: int  # line in the file, for messages
    path: str
    label: str
    domain: str


def open_csv(path: str, image_size: int = 224, on_broken: OnBroken = "fail") -> DataSet:
    """Classes are the labels, in alphabetical order, or by number if all are numbers.

    A silo whose table has only its own rows needs `classes.txt` next to it, one class per line, to know the others.
    """
    file = Path(path)
    rows = _rows(file)
    labels = {row.label for row in rows}
    classes = listed_classes(file.parent) or tuple(sorted(labels))
    if all(name.isdecimal() for name in classes):
        classes = tuple(sorted(classes, key=int))
    if len(classes) < 2:
        raise Unusable(f"{file}: expected at least two labels, found only {', '.join(classes)!r}; is the label in the second column?")
    number = {name: place for place, name in enumerate(classes)}
    for row in rows:
        if row.label not in number:
            raise Unusable(f"{file} line {row.number}: expected a label of classes.txt, found {row.label!r}; correct one of the two")

    def find(domain: str) -> list[Picture]:
        return [Picture(file.parent / row.path, number[row.label]) for row in rows if row.domain == domain]

    return picture_set("csv", tuple(sorted({row.domain for row in rows})), classes, find, file.parent, image_size, on_broken)


def _rows(file: Path) -> list[Row]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.reader(opened, strict=True)
            found = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(map(str.strip, cells))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise Unusable(f"{file}: expected a CSV of path,label,domain in UTF-8, found {reason}; set dataset.path to the file") from error
    header = [cell.lower() for cell in found[0][1]] if found else []
    places = tuple(header.index(column) for column in COLUMNS) if set(COLUMNS) <= set(header) else None
    if places:
        found = found[1:]
    if not found:
        raise Unusable(f"{file}: expected rows of path,label,domain, found none; write one row per picture")
    return [_row(file, number, cells, places) for number, cells in found]


def _row(file: Path, number: int, cells: list[str], places: tuple[int, ...] | None) -> Row:
    values = [cells[place] if place < len(cells) else "" for place in places] if places else cells
    if len(values) != 3 or not all(values):
        raise Unusable(f"{file} line {number}: expected path,label,domain, found {','.join(cells)[:80]!r}; correct the row")
    path, label, domain = values
    return Row(number, path, unicodedata.normalize("NFC", label), unicodedata.normalize("NFC", domain))
