"""Tables of the report. Every column can be sorted by its heading where scripts run; without, they are plain tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 24  # a longer table scrolls


@dataclass(frozen=True)
class Cell:
    """`html` is shown as it is; `key` is what sorting compares (a number sorts as one); `share` draws a bar from 0 to 1 behind it."""

    html: str
    key: float | str | None = None
    share: float | None = None
    kind: str = ""


class Beneath(list[Cell]):
    """A row that belongs to the one above it and stays there when the table is sorted."""


def words(text: object, kind: str = "") -> Cell:
    return Cell(escape(str(text)), str(text).lower(), kind=kind)


def amount(value: float | None, text: str, share: float | None = None, kind: str = "") -> Cell:
    """A number that may be missing, right-aligned."""
    if value is None:
        return Cell("–", "", kind=f"n {kind}")
    return Cell(escape(text), value, share, f"n {kind}")


def table(name: str, headings: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "", numeric: Iterable[int] = ()) -> str:
    right = set(numeric)
    head = "".join(
        f'<th scope="col"{" class=n" if place in right else ""}><span class="sort">{escape(text)}</span></th>'
        for place, text in enumerate(headings)
    )
    listed = list(rows)
    tall = " tall" if len(listed) > MOST_ROWS else ""
    body = "".join(_row(row) for row in listed)
    title = f'<p class="cap">{caption}</p>' if caption else ""
    return (
        f'<div class="sheet">{title}<div class="scroll{tall}" tabindex="0" role="region" aria-label="{escape(name)}">'
        f'<table class="sortable" id="table-{escape(name)}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>'
    )


def _row(row: Sequence[Cell]) -> str:
    kind = ' class="beneath"' if isinstance(row, Beneath) else ""
    return f"<tr{kind}>{''.join(_cell(cell, place) for place, cell in enumerate(row))}</tr>"


def _cell(cell: Cell, place: int) -> str:
    kind = f' class="{cell.kind}{" bar" if cell.share is not None else ""}"' if cell.kind or cell.share is not None else ""
    key = f' data-k="{escape(str(cell.key))}"' if cell.key is not None else ""
    style = f' style="--v:{min(1.0, max(0.0, cell.share)):.3f}"' if cell.share is not None else ""
    tag = 'th scope="row"' if place == 0 else "td"
    return f"<{tag}{kind}{key}{style}>{cell.html}</{tag.split()[0]}>"


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, for what is read and not compared. Values are HTML."""
    return '<dl class="pairs">' + "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in rows) + "</dl>"


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def byte_count(count: float) -> str:
    if count < 1e6:
        return f"{count / 1e3:,.1f} kB" if count else "0"
    if count < 1e9:
        return f"{count / 1e6:,.2f} MB" if count < 1e7 else f"{count / 1e6:,.1f} MB"
    return f"{count / 1e9:,.2f} GB"


def seconds(count: float) -> str:
    if count < 100:
        return f"{count:.1f} s"
    minutes, rest = divmod(round(count), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
