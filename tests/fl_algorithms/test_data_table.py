"""A company's own pictures, by a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fl_algorithms.data import DataSet, open_dataset
from fl_algorithms.errors import Unusable

ROWS = [
    ("scans/1.png", "healthy", "Basel"),
    ("scans/2.png", "ill", "Basel"),
    ('more scans/3, "old".png', "healthy", "Genève"),
    ("scans/4.png", "borderline", "Genève"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number, (path, _, _) in enumerate(ROWS):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / path)
    return write(tmp_path / "table.csv", ROWS)


def write(file: Path, rows: list[tuple[str, ...]], header: str = "") -> Path:
    cells = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    file.write_text("\n".join([header, *cells] if header else cells), encoding="utf-8")
    return file


def opened(table: Path, **options: object) -> DataSet:
    return open_dataset("csv", path=str(table), image_size=8, **options)  # type: ignore[arg-type]


def refusal(table: Path) -> str:
    with pytest.raises(Unusable) as caught:
        opened(table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_become_domains_in_the_order_of_the_table(table: Path) -> None:
    dataset = opened(table)
    assert dataset.domains == ("Basel", "Genève")
    assert dataset.classes == ("borderline", "healthy", "ill")
    assert dataset.domain("Basel").labels.tolist() == [1, 2]
    geneva = dataset.domain("Genève")
    assert (geneva.labels.tolist(), geneva.pixels[:, 0, 0, 0].tolist()) == ([1, 0], [2, 3])


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_header_says_where_the_columns_are(table: Path, mark: str) -> None:
    before = opened(table).domain("Basel").digest
    rows = [(domain, "x", label, path) for path, label, domain in ROWS]
    write(table, rows, header=mark + "Domain, note, LABEL ,path")
    assert opened(table).domain("Basel").digest == before


def test_labels_that_are_numbers_are_in_their_order(table: Path) -> None:
    write(table, [(path, label, domain) for (path, _, domain), label in zip(ROWS, ("10", "9", "2", "10"), strict=True)])
    assert opened(table).classes == ("2", "9", "10")


def test_a_silo_needs_its_own_rows_and_pictures_only(table: Path, tmp_path: Path) -> None:
    whole = opened(table).domain("Basel")
    for path, _, domain in ROWS:
        if domain != "Basel":
            (tmp_path / path).unlink()
    write(table, [row for row in ROWS if row[2] == "Basel"])
    (tmp_path / "classes.txt").write_text("ill\nhealthy\nborderline\n")
    alone = opened(table)
    assert (alone.domains, alone.classes) == (("Basel",), ("borderline", "healthy", "ill"))
    assert alone.domain("Basel").digest == whole.digest


def test_wrong_tables_are_named_with_the_line(table: Path, tmp_path: Path) -> None:
    write(table, [*ROWS, ("scans/5.png", "ill")])
    assert "table.csv line 5: expected path,label,domain, found 'scans/5.png,ill'" in refusal(table)
    write(table, [*ROWS, ("scans/5.png", "", "Basel")])
    assert "line 5: expected path,label,domain" in refusal(table)
    write(table, ROWS[:1])
    assert "expected at least two labels, found only 'healthy'" in refusal(table)
    write(table, [], header="path,label,domain")
    assert "expected rows of path,label,domain, found none" in refusal(table)
    table.write_bytes(b"\xff\xfe\x00")
    assert "expected a CSV of path,label,domain in UTF-8" in refusal(table)
    assert "No such file" in refusal(tmp_path / "none.csv")
    assert "Is a directory" in refusal(tmp_path)


def test_a_label_that_classes_txt_lacks_is_named(table: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("healthy\nill\n")
    assert "line 4: expected a label of classes.txt, found 'borderline'" in refusal(table)


def test_an_absent_picture_is_named(table: Path, tmp_path: Path) -> None:
    (tmp_path / "scans" / "2.png").unlink()
    with pytest.raises(Unusable, match=r"scans/2.png': expected a picture, found no such file; .*dataset.on_broken=skip"):
        opened(table).domain("Basel")
    assert opened(table, on_broken="skip").domain("Basel").skipped == ("scans/2.png",)
