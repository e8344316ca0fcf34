"""The messages of docs/faq.md, from the commands that it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from components import errors
from pipelines import catalogue, gates
from tests.docs.pages import ROOT, File, read_page
from tests.docs.shell import Desk, matches
from tests.minio_server import MinioServer
from tests.pipelines.bench_rows import small
from tests.pipelines.commands import invoke, pictures

PAGE = ROOT / "docs" / "faq.md"
TEXT = PAGE.read_text(encoding="utf-8")
HEADINGS = {int(code): title for title, code in re.findall(r"^## (Exit code (\d+): .*)$", TEXT, re.MULTILINE)}
SILOS = "store: s3://127.0.0.1:9/fed\nsilos:\n  - name: hospital-a\n  - name: hospital-b\n"


def worse(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As accurate as before but for one algorithm on one target."""
    hit = ("fedavg", "yew", False)
    return [
        {**row, "accuracy": {**row["accuracy"], "last": 0.3}} if (row["algorithm"], row["target"], row["exact"]) == hit else row
        for row in rows
    ]


@pytest.fixture
def desk(tmp_path: Path, cache: Path) -> Desk:
    pictures(tmp_path / "photos")
    (tmp_path / "spec.yaml").write_text("rounds: 1\n")
    (tmp_path / "silos.yaml").write_text(SILOS)
    gates.accept(small(), tmp_path / "baseline.json")
    (tmp_path / "tonight").mkdir()
    (tmp_path / "tonight" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in worse(small())))
    return Desk(tmp_path, cache)


@pytest.mark.timeout(900)
def test_every_command_ends_and_prints_as_the_page_says(desk: Desk) -> None:
    steps = read_page(PAGE).steps
    assert not any(isinstance(step, File) or step.mark for step in steps)
    for step in steps:
        desk.follow(step)


def test_every_exit_code_has_its_section() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SiloflowError)]
    assert set(HEADINGS) == {0} | {kind.exit_code for kind in kinds}
    assert re.findall(r"^\| \[(\d+)\]", TEXT, re.MULTILINE) == [str(code) for code in sorted(HEADINGS)]


def shown_below(code: int) -> list[str]:
    """Lines of the blocks of output below a heading."""
    section = TEXT.partition(f"## {HEADINGS[code]}\n")[2].partition("\n## ")[0]
    return [line for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]


def test_a_defect_looks_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: Any) -> None:
        raise KeyError("fedavg")

    monkeypatch.setattr(catalogue, "list_names", defect)
    ended = invoke("algorithms")
    assert (ended.exit_code, [ended.stderr.strip()]) == (1, shown_below(1))


def test_a_refusal_looks_as_the_page_says(minio: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SILOFLOW_CREDENTIALS", raising=False)
    monkeypatch.setenv("SILOFLOW_ACCESS_KEY", minio.access_key)
    monkeypatch.setenv("SILOFLOW_SECRET_KEY", "not-the-secret-key")
    (tmp_path / "silos.yaml").write_text(SILOS.replace("127.0.0.1:9", minio.endpoint))
    ended = invoke("store", "provision", tmp_path / "silos.yaml", "--credentials", tmp_path / "keys")
    (line,) = shown_below(4)
    assert ended.exit_code == 4 and matches(line, ended.stderr), ended.stderr
