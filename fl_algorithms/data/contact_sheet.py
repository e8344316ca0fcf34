"""A picture of a data set: a row for each class, a column for each domain, a few pictures where they meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.pictures import decode

GAP, SPACE, MARGIN = 2, 14, 16
INK, FAINT, PAPER, EMPTY = "#1f2328", "#656d76", "#eef0f3", "#e2e5e9"

Cell = list[np.ndarray]  # thumbnails, uint8 [side, side, C]


def contact_sheet(dataset: DataSet, domains: Sequence[str], per_class: int, side: int) -> Image.Image:
    """`per_class` pictures of each class and domain, evenly spread over its files; `side` pixels each."""
    cells, sizes = {}, {}
    for domain in domains:
        cells[domain], sizes[domain] = _thumbnails(dataset, domain, per_class, side)
    font, small = ImageFont.load_default(15), ImageFont.load_default(12)
    names = [_shortened(name, small) for name in dataset.classes]
    left = MARGIN + max(int(small.getlength(name)) for name in names) + SPACE
    width = per_class * (side + GAP) - GAP
    top = MARGIN + 44
    size = (left + len(domains) * (width + SPACE) - SPACE + MARGIN, top + len(names) * (side + GAP) - GAP + MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, name in enumerate(names):
        draw.text((left - SPACE, top + row * (side + GAP) + side // 2), name, INK, small, anchor="rm")
    for column, domain in enumerate(domains):
        x = left + column * (width + SPACE)
        draw.text((x, MARGIN + 8), _shortened(domain, font, width), INK, font, anchor="lm")
        draw.text((x, MARGIN + 28), f"{sizes[domain]:,} images", FAINT, small, anchor="lm")
        for row, cell in enumerate(cells[domain]):
            _place(sheet, draw, cell, x, top + row * (side + GAP), per_class, side)
    return sheet


def _place(sheet: Image.Image, draw: ImageDraw.ImageDraw, cell: Cell, x: int, y: int, count: int, side: int) -> None:
    for number in range(count):
        corner = (x + number * (side + GAP), y)
        if number < len(cell):
            sheet.paste(Image.fromarray(cell[number]), corner)
        else:  # fewer pictures than room for them
            draw.rectangle((*corner, corner[0] + side - 1, corner[1] + side - 1), EMPTY)


def _thumbnails(dataset: DataSet, domain: str, count: int, side: int) -> tuple[list[Cell], int]:
    """For each class; and how many pictures the domain has. Files are decoded here: a look must not wait for the cache."""
    if dataset.files is not None:
        files = dataset.files(domain)
        chosen = _spread(np.array([file.label for file in files]), len(dataset.classes), count)
        decoded = [[decode(files[row].path, side) for row in rows] for rows in chosen]
        return [[picture for picture in cell if isinstance(picture, np.ndarray)] for cell in decoded], len(files)
    images = dataset.domain(domain)
    chosen = _spread(images.labels, len(dataset.classes), count)
    return [[_scaled(images.pixels[row], side) for row in rows] for rows in chosen], len(images)


def _spread(labels: np.ndarray, classes: int, count: int) -> list[np.ndarray]:
    of_class = [np.flatnonzero(labels == label) for label in range(classes)]
    return [rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)] if len(rows) else rows for rows in of_class]


def _scaled(picture: np.ndarray, side: int) -> np.ndarray:
    image = Image.fromarray(np.squeeze(picture)).convert("RGB")
    return np.asarray(image.resize((side, side), Image.Resampling.NEAREST if side % image.width == 0 else Image.Resampling.BILINEAR))


def _shortened(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int = 150) -> str:
    if font.getlength(name) <= width:
        return name
    while name and font.getlength(name + "...") > width:
        name = name[:-1]
    return name + "..."
