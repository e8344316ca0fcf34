"""Planning a run without the silos' images, and joining it with nothing but its address."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from components import layout
from components.errors import InputError, StoreError
from components.membership import NotInvolved, announce, join, parse_step, planned, split_address, steps
from components.store import open_store
from tests.federations import DOMAINS, TARGET, draw_pictures, values


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")


@pytest.fixture
def separate(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder per role, each with one domain and the list of classes; this process is the evaluator until told otherwise."""
    for domain in (*DOMAINS, TARGET):
        shutil.copytree(pictures / domain, tmp_path / domain / domain)
        (tmp_path / domain / "classes.txt").write_text("across\ndown\nsquare\n")
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SILOFLOW_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("SILOFLOW_DATA", str(tmp_path / TARGET))
    return tmp_path


def store_of(folder: Path) -> str:
    return (folder / "store").as_uri()


def test_the_planner_needs_the_targets_images_only(separate: Path) -> None:
    spec = values(Path("/nowhere"))
    federation = announce(spec, store_of(separate), "run-1", DOMAINS)
    assert (federation.silos, federation.spec.sources) == (list(DOMAINS), DOMAINS)
    assert steps(federation) == ["0/join", "1/train", "2/train", "2/validate"]
    stored = open_store(store_of(separate)).get(layout.GLOBAL, layout.plan_key("run-1"))
    assert stored is not None
    assert json.loads(stored)["classes"] == ["across", "down", "square"]
    again = announce(spec, store_of(separate), "run-1", DOMAINS)  # a retry
    assert again.digest == federation.digest


def test_a_silo_sees_its_own_images_only(separate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(values(Path("/nowhere")), store_of(separate), "run-1", DOMAINS)
    monkeypatch.setenv("SILOFLOW_DATA", str(separate / "ash"))
    role = planned(store_of(separate), "run-1", "ash")
    assert len(role.samples("train")) > 0
    assert role.federation.folder == separate / "state" / "runs" / "run-1"


def test_other_classes_are_refused_before_anything_is_trained(separate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(values(Path("/nowhere")), store_of(separate), "run-1", DOMAINS)
    (separate / "birch" / "classes.txt").write_text("across\ndown\nsquare\nzigzag\n")
    monkeypatch.setenv("SILOFLOW_DATA", str(separate / "birch"))
    with pytest.raises(InputError, match=r"classes: expected the 3 of the plan, found 4 \('zigzag' differs\)"):
        join(store_of(separate), "run-1", "birch")


def test_what_cannot_be_planned(separate: Path) -> None:
    spec, store = values(Path("/nowhere")), store_of(separate)
    for change, silos, line in (
        ({"store": "file:///elsewhere"}, DOMAINS, "store 'file:///elsewhere': expected none"),
        ({"algorithm": "deepall"}, DOMAINS, "algorithm 'deepall': pools the images"),
        ({"sources": ["ash", "oak"]}, DOMAINS, "sources 'oak': expected one of"),
        ({"silos_per_domain": 2}, DOMAINS, "silo 'ash-1': the spec deals images to it, expected one of ash, birch, cedar"),
        ({"target": "oak"}, DOMAINS, "target 'oak'"),
        ({"rounds": 0}, DOMAINS, "rounds: "),
    ):
        with pytest.raises(InputError) as error:
            announce({**spec, **change}, store, "run-1", silos)
        assert line in str(error.value)
    assert not (separate / "store").exists()


def test_who_may_join(separate: Path) -> None:
    store = store_of(separate)
    with pytest.raises(StoreError, match="expected bucket 'global'"):
        join(store, "run-1", "ash")
    open_store(store).prepare([layout.GLOBAL])
    assert join(store, "run-1", "ash") is None
    with pytest.raises(StoreError, match="holds no plan of it"):
        planned(store, "run-1", "ash")
    announce({**values(Path("/nowhere")), "sources": ["ash", "birch"]}, store, "run-1", DOMAINS)
    with pytest.raises(NotInvolved, match="silo 'cedar': takes no part in run 'run-1', whose silos are ash, birch"):
        join(store, "run-1", "cedar")
    with pytest.raises(InputError, match="holds another run of this name"):
        announce(values(Path("/nowhere")), store, "run-1", DOMAINS)
    open_store(store).put(layout.GLOBAL, layout.plan_key("run-2"), [b"{}"])
    with pytest.raises(StoreError, match="is not a plan of siloflow"):
        join(store, "run-2", "ash")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("s3://store.example:9000/fed/run-1?tls=false", ("s3://store.example:9000/fed?tls=false", "run-1")),
        ("file:///tmp/store/run-1/", ("file:///tmp/store", "run-1")),
        ("/tmp/store/run-1", ("/tmp/store", "run-1")),
    ],
)
def test_addresses(address: str, parts: tuple[str, str]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["s3://store.example", "s3://store.example/fed", "run-1", "", "file:///tmp/store/.."])
def test_addresses_without_a_run(address: str) -> None:
    with pytest.raises(InputError, match="expected"):
        split_address(address)


def test_steps_are_read_back() -> None:
    assert parse_step("12/train") == (12, "train")
    for text in ("train", "x/train", "1/", "-1/train"):
        with pytest.raises(InputError, match="expected round/exchange"):
            parse_step(text)
