"""The picture sets of the papers as folder trees: PACS, VLCS, OfficeHome, Office-Caltech-Home.

Domains and classes are known beforehand, so a silo needs nothing but the folder of its own domain. Folders are matched
whatever their case and punctuation: mirrors of a set agree on little else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.folder import named, pictures_in
from fl_algorithms.data.images import Picture
from fl_algorithms.data.pictures import OnBroken, existing_folder, picture_set
from fl_algorithms.errors import Unusable


@dataclass(frozen=True)
class Published:
    """Names in the papers' order, and what their folders may be called besides the name itself."""

    domains: Mapping[str, tuple[str, ...]]
    classes: tuple[str, ...]
    class_folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: bool = False  # the folders hold more classes than these; leave them aside


OFFICE_HOME = (
    "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar", "Candles", "Chair",
    "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser", "Exit_Sign", "Fan", "File_Cabinet",
    "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer", "Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade",
    "Laptop", "Marker", "Monitor", "Mop", "Mouse", "Mug", "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil",
    "Postit_Notes", "Printer", "Push_Pin", "Radio", "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink",
    "Sneakers", "Soda", "Speaker", "Spoon", "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
)  # fmt: skip
VLCS = ("bird", "car", "chair", "dog", "person")

SETS = {
    "pacs": Published(
        {"photo": (), "art_painting": (), "cartoon": (), "sketch": ()},
        ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    ),
    "vlcs": Published(
        {"Caltech": ("Caltech101",), "LabelMe": (), "Pascal": ("VOC2007",), "Sun": ("SUN09",)},
        VLCS,
        {name: (str(number),) for number, name in enumerate(VLCS)},
    ),
    "officehome": Published({"Art": (), "Clipart": (), "Product": (), "RealWorld": ("Real",)}, OFFICE_HOME),
    "office-caltech-home": Published(
        {
            "Am": ("amazon",),
            "We": ("webcam",),
            "Ca": ("caltech", "caltech10"),
            "Ar": ("Art",),
            "Cl": ("Clipart",),
            "Pr": ("Product",),
            "Rw": ("RealWorld", "Real"),
        },
        ("backpack", "bike", "calculator", "keyboard", "laptop", "monitor", "mouse", "mug"),
        {
            "laptop": ("laptop_computer",),
            "monitor": ("computer_monitor",),
            "mouse": ("computer_mouse",),
            "keyboard": ("computer_keyboard",),
        },
        others=True,
    ),
}


def open_published(name: str, path: str, image_size: int = 224, on_broken: OnBroken = "fail") -> DataSet:
    """`path/domain/class/file`, or `path/domain/{train,test}/class/file`, which then is the split of the data set's own."""
    known, root = SETS[name], existing_folder(path, "domain folders")

    def find(domain: str) -> list[Picture]:
        folder = _folder(root, domain, known.domains[domain])
        parts = named(folder)
        if {"train", "test"} <= set(parts):
            return _sorted(_labelled(known, parts["train"], False) + _labelled(known, parts["test"], True))
        return _sorted(_labelled(known, folder, None))

    return picture_set(name, tuple(known.domains), known.classes, find, root, image_size, on_broken)


def _folder(root: Path, domain: str, others: tuple[str, ...]) -> Path:
    spellings = {_plain(name) for name in (domain, *others)}
    found = [folder for name, folder in named(root).items() if _plain(name) in spellings]
    if len(found) != 1:
        names = " or ".join((domain, *others))
        what = f"both {found[0].name} and {found[1].name}; keep one" if found else "none; put it there, or set dataset.path to its parent"
        raise Unusable(f"{root}: expected the folder of domain {domain} ({names}), found {what}")
    return found[0]


def _labelled(known: Published, folder: Path, held_out: bool | None) -> list[Picture]:
    labels = {
        _plain(spelling): label for label, name in enumerate(known.classes) for spelling in (name, *known.class_folders.get(name, ()))
    }
    pictures: list[Picture] = []
    for name, inner in named(folder).items():
        files, label = pictures_in(inner), labels.get(_plain(name))
        if label is not None:
            pictures += [Picture(file, label, held_out) for file in files]
        elif files and not known.others:
            expected = ", ".join(known.classes[:8]) + (", ..." if len(known.classes) > 8 else "")
            raise Unusable(f"{inner}: expected a class out of {expected}, found {name!r}; rename it or move it away")
    return pictures


def _sorted(pictures: list[Picture]) -> list[Picture]:
    """By class, whatever the spelling of its folder, then by file."""
    return sorted(pictures, key=lambda picture: (picture.label, picture.path))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
