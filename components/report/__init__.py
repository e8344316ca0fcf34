"""The report: one HTML page about a run, or about several. Importing this loads nothing; writing one loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from components.federation import Federation
    from components.silo import Role

LIMIT = 3_000_000  # bytes of a page


def write_report(source: Path | Role | Federation, out: Path, evaluator: Role | Federation | None = None) -> list[str]:
    """Write the page about one run; returns what is missing on it, one line each.

    `source` is a run folder, or the server's place in a federation, whose store tells all but the images. `evaluator` is who has
    the target's images, where that is another.
    """
    from components.report.gather import gather
    from components.report.look import look
    from components.report.page import run_page

    record = gather(source if isinstance(source, Path) else _federation(source))
    insight = look(record, _federation(evaluator) if evaluator is not None else None)
    _write(out, run_page(record, insight))
    return record.notes


def write_comparison(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the page that compares runs; returns what is missing on it."""
    from components.report.compare import compare_page
    from components.report.gather import gather

    records = [gather(folder) for folder in folders]
    _write(out, compare_page(records))
    return [f"{record.name}: {note}" for record in records for note in record.notes]


def _federation(place: Role | Federation) -> Federation:
    from components.silo import Role

    return place.federation if isinstance(place, Role) else place


def _write(out: Path, page: str) -> None:
    from components.errors import InputError
    from components.store.file import write_file

    try:
        write_file(out, [page.encode()])
    except OSError as error:
        raise InputError(f"report {out}: cannot be written ({error.strerror}); choose another --out") from None
