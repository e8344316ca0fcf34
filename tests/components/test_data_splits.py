"""Which images count where: the options of a spec that choose a split, and silos that see one volume only."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from components.errors import InputError
from components.federation import Federation, resolve
from components.plan import plan
from components.spec import FederationSpec, parse_spec

DOMAINS = ("Caltech", "LabelMe", "Pascal", "Sun")
CLASSES = ("bird", "car", "chair", "dog", "person")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


def draw(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), (shade, 10, 20)).save(path)


def vlcs(root: Path) -> dict[str, Any]:
    """Lists of 7 training and 3 test pictures a class, next to `domain/class/file`."""
    for domain in DOMAINS:
        for part, numbers in (("train", range(7)), ("test", range(7, 10))):
            lines = []
            for label, name in enumerate(CLASSES):
                for number in numbers:
                    draw(root / domain / name / f"{number}.png", 20 * label + number)
                    lines.append(f"{domain}/{name}/{number}.png {label}")
            (root / f"{domain}_{part}.txt").write_text("\n".join(lines))
    return {"name": "vlcs-lists", "path": str(root), "image_size": 16}


def spec_of(dataset: dict[str, Any], **fields: Any) -> FederationSpec:
    return resolve(parse_spec({"dataset": dataset, "target": "Sun", "algorithm": "fedavg", "rounds": 1, **fields}))


def planned(spec: FederationSpec, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return plan(spec.model_dump(mode="json"), folder, lambda *_: None), json.loads((folder / "plan.json").read_text())


def test_the_lists_are_the_split_and_the_targets_test_list_counts(tmp_path: Path) -> None:
    data = vlcs(tmp_path / "vlcs")
    outcome, stored = planned(spec_of({**data, "split": "listed", "target_subset": "test"}), tmp_path / "run")
    assert outcome["samples"] == {"caltech": 35, "labelme": 35, "pascal": 35}
    assert outcome["target_images"] == 15
    assert sorted(stored["splits"]["pascal"]["train"]["Pascal"]) == list(range(35))
    assert sorted(stored["splits"]["pascal"]["validation"]["Pascal"]) == list(range(35, 50))
    assert stored["target_rows"] == list(range(35, 50))


def test_the_default_is_drawn_and_the_whole_target(tmp_path: Path) -> None:
    outcome, stored = planned(spec_of(vlcs(tmp_path / "vlcs")), tmp_path / "run")
    assert outcome["samples"] == {"caltech": 45, "labelme": 45, "pascal": 45}
    assert (outcome["target_images"], stored["target_rows"]) == (50, "all")


def test_a_drawn_split_of_30_percent_and_the_targets_share_of_it(tmp_path: Path) -> None:
    spec = spec_of({**vlcs(tmp_path / "vlcs"), "target_subset": "test"}, validation=0.3)
    outcome, stored = planned(spec, tmp_path / "run")
    assert outcome["samples"] == {"caltech": 35, "labelme": 35, "pascal": 35}
    labels = Federation(spec, "check", tmp_path).data.domain("Sun").labels
    assert np.bincount(labels[stored["target_rows"]]).tolist() == [3] * 5
    assert len(Federation(spec, "check", tmp_path).target_samples) == 15


def test_a_listed_split_of_a_set_without_lists_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    spec = spec_of({**vlcs(tmp_path / "vlcs"), "name": "vlcs", "split": "listed"})
    with pytest.raises(InputError, match=r"dataset.split: expected lists of vlcs, found it has none here; set dataset.split=drawn"):
        planned(spec, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- one volume


def lists(root: Path) -> dict[str, Any]:
    return vlcs(root)


def tree(root: Path) -> dict[str, Any]:
    return {**vlcs(root), "name": "vlcs"}


def own_folder(root: Path) -> dict[str, Any]:
    vlcs(root)
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return {"name": "folder", "path": str(root), "image_size": 16}


def table(root: Path) -> dict[str, Any]:
    vlcs(root)
    (root / "classes.txt").write_text("\n".join(CLASSES))
    rows = [f"{path.relative_to(root)},{path.parent.name},{path.parent.parent.name}" for path in sorted(root.rglob("*.png"))]
    (root / "all.csv").write_text("\n".join(rows))
    return {"name": "csv", "path": str(root / "all.csv"), "image_size": 16}


def leave_only(root: Path, domain: str) -> None:
    """What is on the volume of one silo."""
    for other in set(DOMAINS) - {domain}:
        shutil.rmtree(root / other)
        for file in root.glob(f"{other}_*.txt"):
            file.unlink()
    if (root / "all.csv").exists():
        rows = (root / "all.csv").read_text().splitlines()
        (root / "all.csv").write_text("\n".join(row for row in rows if row.endswith(f",{domain}")))


def seen(spec: FederationSpec, role: str, folder: Path) -> str:
    """Digest of the images of this role."""
    federation = Federation(spec, "run", folder)
    samples = federation.target_samples if role == "evaluator" else federation.samples(federation.share(role).train)
    (batch,) = samples.batches(len(samples))
    return hashlib.sha256(batch.images.numpy().tobytes() + batch.labels.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("layout", [lists, tree, own_folder, table])
def test_silo_and_evaluator_see_the_same_with_their_own_volume_only(
    layout: Callable[[Path], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    spec = spec_of(layout(root))
    root.rename(tmp_path / "all")
    for role, domain in (("pascal", "Pascal"), ("evaluator", "Sun")):
        digests = []
        for only in (None, domain):
            shutil.copytree(tmp_path / "all", root)
            if only is not None:
                leave_only(root, only)
            monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / f"cache of {role} {only}"))
            digests.append(seen(spec, role, tmp_path))
            shutil.rmtree(root)
        assert digests[0] == digests[1]
