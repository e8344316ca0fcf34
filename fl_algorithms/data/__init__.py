"""Data sets by name. Importing this is cheap: what a data set needs is loaded when it is opened."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass, field
from typing import Literal

from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.images import Images
from fl_algorithms.errors import Unusable

__all__ = ["DATASETS", "DataSet", "DataSetInfo", "Images", "open_dataset"]


@dataclass(frozen=True)
class DataSetInfo:
    """A line of the registry. `options` says which arguments of `open_dataset` it takes, and their meaning."""

    name: str
    summary: str
    loader: str  # "module:function", called with the options that were given
    needs_path: bool
    options: dict[str, str]
    fixed: dict[str, str] = field(default_factory=dict)  # further arguments of the loader
    own: bool = False  # a company's own: its domains are what the files say, so who sees only some of them does not know the others


IMAGE_SIZE = {"image_size": "side in pixels that pictures are resized to (default 224)"}
ON_BROKEN = {"on_broken": "fail (default) or skip: what to do with a picture that cannot be decoded"}
TREE = {"path": "folder that holds the domain folders (a silo needs only its own)", **IMAGE_SIZE, **ON_BROKEN}
LISTS = {
    "path": "folder that the paths in the lists are relative to",
    "lists": "folder of the list files (default: splits in path, or path itself)",
    **IMAGE_SIZE,
    **ON_BROKEN,
}


def _tree(name: str, summary: str) -> DataSetInfo:
    return DataSetInfo(name, summary, "fl_algorithms.data.published:open_published", True, TREE, {"name": name})


def _lists(name: str, summary: str, **options: str) -> DataSetInfo:
    return DataSetInfo(name, summary, "fl_algorithms.data.lists:open_lists", True, {**LISTS, **options}, {"name": name})


DATASETS: dict[str, DataSetInfo] = {
    info.name: info
    for info in (
        DataSetInfo(
            "styled-digits",
            "handwritten digits as paper, chalk, neon and pencil; 32 px RGB; embedded",
            "fl_algorithms.data.styled_digits:open_styled_digits",
            needs_path=False,
            options={},
        ),
        DataSetInfo(
            "rotated-digits",
            "1,000 handwritten digits at six angles from 0 to 75 degrees; 28 px grey; embedded",
            "fl_algorithms.data.rotated:open_rotated_digits",
            needs_path=False,
            options={},
        ),
        DataSetInfo(
            "rotated-mnist",
            "MNIST at six angles from 0 to 75 degrees; 28 px grey; from idx files",
            "fl_algorithms.data.rotated:open_rotated_mnist",
            needs_path=True,
            options={
                "path": "folder with the idx files of MNIST, plain or .gz",
                "protocol": "csac (default): the same 1,000 pictures at every angle; domainbed: all 70,000, each at one angle",
            },
        ),
        DataSetInfo(
            "digits",
            "MNIST, MNIST-M and USPS; 32 px RGB; from idx files, sprites and HDF5",
            "fl_algorithms.data.digit_sets:open_digits",
            needs_path=True,
            options={"path": "folder with the files, or with the folders mnist and digits that hold them"},
        ),
        _tree("pacs", "PACS: photos, paintings, cartoons and sketches of 7 classes; domain/class/file folders"),
        _lists("pacs-lists", "PACS by its official lists, which are also its split: <domain>_{train,crossval}_kfold.txt"),
        _tree("vlcs", "VLCS: Caltech, LabelMe, Pascal and Sun, 5 classes; domain/class/file or domain/{train,test}/class/file"),
        _lists("vlcs-lists", "VLCS by its 70/30 lists, which are also its split: <domain>_{train,test}.txt"),
        _tree("officehome", "OfficeHome: art, clip art, product and real-world pictures of 65 classes; domain/class/file folders"),
        _tree("office-caltech-home", "the 8 classes that Office-Caltech (without DSLR) and OfficeHome share; 7 domain/class/file folders"),
        _lists(
            "minidomainnet",
            "126 classes of DomainNet in 4 domains; by lists splits_mini/<domain>_{train,test}.txt",
            lists="folder of the list files (default: splits_mini in path)",
            image_size="side in pixels that pictures are resized to (default 128)",
        ),
        DataSetInfo(
            "femnist",
            "LEAF's handwritten characters by some 3,500 writers, 62 classes; 28 px grey; from JSON",
            "fl_algorithms.data.femnist:open_femnist",
            needs_path=True,
            options={
                "path": "folder that holds LEAF's folders train and test",
                "protocol": "plain (default): domains train and test; rotated-1000, rotated-all: six angles; "
                "dg-1000, dg-all: six transforms; of the first 1,002 writers or of all",
            },
        ),
        DataSetInfo(
            "folder",
            "your own pictures in domain/class/file folders; RGB",
            "fl_algorithms.data.folder:open_folder",
            needs_path=True,
            own=True,
            options={
                "path": "folder that holds the domain folders and, where a silo sees only its own domain, classes.txt",
                **IMAGE_SIZE,
                **ON_BROKEN,
            },
        ),
        DataSetInfo(
            "csv",
            "your own pictures in a table of path,label,domain; RGB",
            "fl_algorithms.data.table:open_csv",
            needs_path=True,
            own=True,
            options={
                "path": "CSV file, with or without a header; next to it, where a silo sees only its own rows, classes.txt",
                **IMAGE_SIZE,
                **ON_BROKEN,
            },
        ),
    )
}


def open_dataset(
    name: str,
    path: str | None = None,
    image_size: int | None = None,
    on_broken: Literal["fail", "skip"] = "fail",
    protocol: str | None = None,
    lists: str | None = None,
) -> DataSet:
    """Open a data set of the registry; `DATASETS[name].options` says which arguments it takes. Reads no pixels."""
    info = DATASETS.get(name)
    if info is None:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(DATASETS)}"
        raise Unusable(f"dataset {name!r}: no such data set; {hint}")
    given = {"path": path, "image_size": image_size, "protocol": protocol, "lists": lists}
    options: dict[str, object] = {option: value for option, value in given.items() if value is not None}
    if on_broken != "fail":
        options["on_broken"] = on_broken
    for option in options:
        if option not in info.options:
            allowed = ", ".join(info.options) or "no options"
            raise Unusable(f"dataset.{option}: {name} does not take it (it takes {allowed}); leave it out")
    if info.needs_path and path is None:
        raise Unusable(f"dataset.path: {name} needs a {info.options['path']}, found nothing; set dataset.path")
    module, function = info.loader.split(":")
    opened: DataSet = getattr(importlib.import_module(module), function)(**info.fixed, **options)
    return opened
