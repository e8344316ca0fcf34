"""Data sets by name. Importing this is cheap: what a data set needs is loaded when it is opened."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
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
            "folder",
            "pictures in domain/class/file folders, such as PACS, VLCS or OfficeHome; RGB",
            "fl_algorithms.data.folder:open_folder",
            needs_path=True,
            options={
                "path": "folder that holds the domain folders and, where a silo sees only its own domain, classes.txt",
                "image_size": "side in pixels that pictures are resized to (default 224)",
                "on_broken": "fail (default) or skip: what to do with a picture that cannot be decoded",
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
) -> DataSet:
    """Open a data set of the registry; `DATASETS[name].options` says which arguments it takes. Reads no pixels."""
    info = DATASETS.get(name)
    if info is None:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(DATASETS)}"
        raise Unusable(f"dataset {name!r}: no such data set; {hint}")
    given = {"path": path, "image_size": image_size, "protocol": protocol}
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
    opened: DataSet = getattr(importlib.import_module(module), function)(**options)
    return opened
