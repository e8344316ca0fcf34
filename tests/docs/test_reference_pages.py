"""The pages that are made from the code are as the code would make them now, and leave nothing out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fl_algorithms.registry import ALGORITHMS
from pipelines.cli import app
from pipelines.reference_pages import DOCS, pages
from tests.pipelines.commands import invoke


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return pages()


@pytest.mark.parametrize("name", ["algorithms.md", "cli.md"])
def test_the_page_is_not_out_of_date(name: str, made: dict[Path, str]) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == made[DOCS / name], "run `make docs`"


def test_every_algorithm_and_preset_is_there_once(made: dict[Path, str]) -> None:
    lines = made[DOCS / "algorithms.md"].splitlines()
    for name, entry in ALGORITHMS.items():
        assert sum(line == f"## {name}" or line.startswith(f"| `{name}` | {entry.summary}") for line in lines) == 1, name


def test_what_an_algorithm_adds_and_changes_is_there(made: dict[Path, str]) -> None:
    page = made[DOCS / "algorithms.md"]
    fedprox = page.partition("\n## fedprox\n")[2].partition("\n## ")[0]
    assert "| `mu` | `0.01` | float >= 0 | strength of the proximal term; 0 is FedAvg |" in fedprox
    assert "arXiv:1812.06127" in fedprox and "the trained model" in fedprox and "train 397,832 B" in fedprox
    assert "batch_size" not in fedprox, "as in fedavg"
    assert "| `csac-l1` | CSAC, Table IV: L1 distance | `metric=l1` |" in page


def test_every_option_that_a_command_explains_is_there(made: dict[Path, str]) -> None:
    sections = made[DOCS / "cli.md"].split("\n## siloflow ")[1:]
    assert {section.split("\n")[0] for section in sections} == set(callable_names(typer.main.get_command(app)))
    for section in sections:
        words = invoke(*section.split("\n")[0].split(), "--help").stdout.replace(",", " ").split()
        assert "--help" in words
        assert all(option in section for option in words if option.startswith("--") and option != "--help"), section


def callable_names(command: Any, name: str = "") -> Iterator[str]:
    for word, inner in command.commands.items():
        yield from callable_names(inner, f"{name}{word} ") if hasattr(inner, "commands") else [name + word]
