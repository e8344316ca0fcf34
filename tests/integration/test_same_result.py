"""The same federation ends with the same bits on a folder, on a real MinIO server, and however many silos train at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.federations import draw_pictures, values
from tests.pipelines.commands import command, finish


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


def run(spec: dict[str, Any], folder: Path, *words: str) -> dict[str, Any]:
    file = folder.with_suffix(".yaml")
    file.write_text(json.dumps(spec))
    code, printed, said = finish(command("run", file, "--json", "--out", folder, *words))
    assert code == 0, said
    result: dict[str, Any] = json.loads(printed)
    return result


@pytest.mark.parametrize("algorithm", ["fedccrl", "csac"])
def test_folder_and_s3(algorithm: str, pictures: Path, tmp_path: Path, s3_url: str) -> None:
    spec = values(pictures, algorithm)
    on_disk = run(spec, tmp_path / "disk")
    on_s3 = run({**spec, "store": s3_url}, tmp_path / "s3")
    assert on_s3["digest"] == on_disk["digest"]
    assert on_s3["bytes"]["up"] == on_disk["bytes"]["up"]
    assert not (tmp_path / "s3" / "store").exists()


@pytest.mark.parametrize("algorithm", ["csac", "fedadg", "fedavg", "fedccrl"])
def test_one_or_three_at_a_time(algorithm: str, pictures: Path, tmp_path: Path) -> None:
    """What every algorithm is tested for, cheaply, is in components/test_resume.py: the order of silos changes no bit."""
    spec = values(pictures, algorithm, evaluate_every=2)
    digests = {run(spec, tmp_path / f"run{at_once}", "--workers", at_once)["digest"] for at_once in ("1", "3")}
    assert len(digests) == 1
