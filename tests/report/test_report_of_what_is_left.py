"""Run folders that are incomplete, of another version or damaged: the report says what is missing and shows the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from components.errors import InputError, QuorumError
from components.federation import Federation
from components.layout import GLOBAL, failure_key
from components.report import write_comparison, write_report
from components.report.gather import gather
from components.silo import Role
from components.spec import FederationSpec, read_spec
from tests.federations import DOMAINS, TARGET, Run, values
from tests.report.conftest import Damage


def change(folder: Path, name: str, edit: Callable[[dict[str, object]], object]) -> None:
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))


def lose_images(folder: Path) -> None:
    spec = (folder / "spec.yaml").read_text().splitlines()
    (folder / "spec.yaml").write_text("\n".join("  path: /nowhere" if line.startswith("  path:") else line for line in spec))


def last(folder: Path, name: str, suffix: str) -> Path:
    return sorted(folder.glob(f"store/{name}/runs/*/rounds/2/*/{suffix}"))[-1]


CURVE = 'id="fig-accuracy"'

# what is done to the folder, what the report says of it, and what is still on the page
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no result": (lambda f: (f / "result.json").unlink(), "", CURVE),
    "result is not JSON": (lambda f: (f / "result.json").write_text("{"), "result.json: expected JSON", CURVE),
    "result is a list": (lambda f: (f / "result.json").write_text("[]"), "result.json: expected an object", CURVE),
    "result of another version": (lambda f: change(f, "result.json", lambda r: r.pop("digest")), "result.json: digest", CURVE),
    "result with text for numbers": (
        lambda f: change(f, "result.json", lambda r: r.update(accuracy={"last": "good"})), "result.json: accuracy.last", CURVE,
    ),
    "no plan": (lambda f: (f / "plan.json").unlink(), "plan.json: cannot be read", 'id="fig-tsne-class"'),
    "no spec": (lambda f: (f / "spec.yaml").unlink(), "spec.yaml: cannot be read", CURVE),
    "spec of another version": (
        lambda f: (f / "spec.yaml").write_text((f / "spec.yaml").read_text() + "novelty: 1\n"), "spec.yaml: field 'novelty'", CURVE,
    ),
    "unknown algorithm": (
        lambda f: (f / "spec.yaml").write_text((f / "spec.yaml").read_text().replace("algorithm: fedavg", "algorithm: fedfuture")),
        "algorithm 'fedfuture' is not known here", CURVE,
    ),
    "neither result nor store": (
        lambda f: ((f / "result.json").write_text("{"), shutil.rmtree(f / "store")), "result.json: expected JSON", 'id="fig-confusion"',
    ),
    "no store": (lambda f: shutil.rmtree(f / "store"), "expected bucket 'global', found no such folder", CURVE),
    "a damaged broadcast": (
        lambda f: last(f, "global", "broadcast.json").write_bytes(b"{}"), "rounds/2/train/broadcast.json: manifest ", 'id="fig-weights"',
    ),
    "a damaged update": (lambda f: last(f, "silo-ash", "update.json").write_bytes(b"{}"), "", 'id="fig-drift"'),
    "a damaged table": (
        lambda f: last(f, "evaluator", "update.safetensors").write_bytes(b"x"), "confusion table of the evaluator", 'id="fig-confusion"',
    ),
    "a changed model": (lambda f: last(f, "global", "model.safetensors").write_bytes(b"x"), "model of round 2", 'id="fig-tsne-class"'),
    "no model": (
        lambda f: [path.unlink() for path in [last(f, "global", "model.safetensors"), f / "model.safetensors"]],
        "model: expected it in the store or as model.safetensors", 'id="fig-confusion"',
    ),
    "another model": (
        lambda f: [last(f, "global", "model.safetensors").unlink(), change(f, "result.json", lambda r: r.update(digest="0" * 64))],
        "the file was changed", 'id="fig-confusion"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_missing_is_said_and_the_rest_is_shown(case: str, copied: Damage, tmp_path: Path) -> None:
    damage, said, still = DAMAGE[case]
    folder = copied("fedavg")
    damage(folder)
    notes = write_report(folder, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert still in page
    assert any(said in note for note in notes) if said else notes == []
    assert ('id="missing"' in page) == bool(notes)
    assert all("\n" not in note and "Traceback" not in note for note in notes)


def test_images_that_are_elsewhere_now(copied: Damage, tmp_path: Path) -> None:
    """The spec's digest changes with the path, so that the store has nothing for it: result.json is what is left."""
    folder = copied("fedavg")
    lose_images(folder)
    notes = write_report(folder, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert any("belongs to another spec" in note for note in notes)
    assert CURVE in page and 'id="fig-tsne-class"' not in page


def test_a_renamed_folder_whose_plan_is_lost(site: Path, tmp_path: Path) -> None:
    """The name of the run in the store is then read from the result."""
    folder = Path(shutil.copytree(site / "runs" / "csac", tmp_path / "renamed"))
    (folder / "plan.json").unlink()
    assert write_report(folder, tmp_path / "page.html") == ["plan.json: cannot be read (No such file or directory)"]
    assert 'id="fig-layers"' in (tmp_path / "page.html").read_text()


def test_a_run_that_lost_its_quorum_says_why(site: Path, tmp_path: Path) -> None:
    run = Run(values(site / "pictures") | {"norm_bound": 1e-6}, tmp_path / "run")
    with pytest.raises(QuorumError) as lost:
        run.result()
    (run.folder / "logs").mkdir(exist_ok=True)
    (run.folder / "logs" / "server.log").write_text(f"16:47:24 INFO begins\n16:47:25 ERROR {lost.value}\n16:47:26 INFO failed\n")
    notes = write_report(run.folder, tmp_path / "page.html")
    assert f"run: ended with: {lost.value}" in notes
    (run.folder / "logs" / "server.log").unlink()
    run.federation.store.put(GLOBAL, failure_key(run.name), [json.dumps({"reason": "no quorum, gave up"}).encode()])
    assert "run: ended with: no quorum, gave up" in write_report(run.folder, tmp_path / "page.html")


def test_an_unfinished_run_shows_the_rounds_there_are(site: Path, tmp_path: Path) -> None:
    run = Run(values(site / "pictures", rounds=3), tmp_path / "run")
    run.go(until=(1, "train"))
    notes = write_report(run.folder, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "run: not finished, 1 of 3 rounds are there; resume it" in notes
    assert CURVE in page and 'id="fig-tsne-domain"' in page and "1 of 3" in page


def test_a_run_that_has_only_been_planned(site: Path, tmp_path: Path) -> None:
    run = Run(values(site / "pictures"), tmp_path / "run")
    notes = write_report(run.folder, tmp_path / "page.html")
    assert any("0 of 2 rounds" in note for note in notes)
    assert "has not been evaluated" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("content", [{}, {"notes.txt": "x"}, {"result.json": "{}"}, {"spec.yaml": "a: 1", "result.json": "[1]"}])
def test_a_folder_without_a_run_is_refused_in_one_line(content: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    with pytest.raises(InputError, match=r"expected spec\.yaml and result\.json of a run") as caught:
        write_report(folder, tmp_path / "page.html")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(InputError, match="found none; check the path"):
        write_report(tmp_path / "nowhere", tmp_path / "page.html")


def test_a_comparison_survives_a_damaged_run(site: Path, copied: Damage, tmp_path: Path) -> None:
    folder = copied("csac")
    (folder / "result.json").write_text("{")
    shutil.rmtree(folder / "store" / "evaluator")
    notes = write_comparison([site / "runs" / "fedavg", folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert notes and all(note.startswith("csac: ") for note in notes)
    assert "fedavg" in page and "csac" in page and CURVE in page


def test_what_the_manifests_say_is_what_the_result_says(site: Path) -> None:
    for name in ("fedavg", "csac", "fedadg"):
        folder = site / "runs" / name
        record, result = gather(folder), json.loads((folder / "result.json").read_text())
        for row in result["history"]:
            entry = record.rounds[row["round"]]
            assert entry.target is not None and entry.pooled is not None
            assert entry.target.accuracy == row["target_accuracy"]
            assert entry.pooled.accuracy == pytest.approx(row["validation_accuracy"])
            assert entry.pooled.loss == pytest.approx(row["validation_loss"])
            assert {silo: score.accuracy for silo, score in entry.validation.items()} == row["validation"]
            assert (entry.train_loss, entry.weights) == (row["train_loss"], row["weights"])
            assert set(entry.drift) == set(DOMAINS) and min(entry.drift.values()) > 0
        sent = sum(u.payload.bytes for u in record.updates if u.payload and u.author in record.silos)
        assert sent == result["bytes"]["up"]
        assert bool(record.rounds[2].layer_weights) == (name == "csac")
    weights = gather(site / "runs" / "csac").rounds[2].layer_weights
    assert all(sum(row.values()) == pytest.approx(1.0) for row in weights.values())


def test_from_the_store_alone_with_the_images_of_the_target_only(site: Path, tmp_path: Path) -> None:
    """As in a cluster: no run folder, no silo's data; the evaluator has its own volume."""
    elsewhere = tmp_path / "volume"
    shutil.copytree(site / "pictures" / TARGET, elsewhere / TARGET)
    (elsewhere / "classes.txt").write_text("across\ndown\nsquare\n")
    spec = FederationSpec.model_validate(read_spec(site / "runs" / "fedavg" / "spec.yaml"))
    store = (site / "runs" / "fedavg" / "store").as_uri()
    roles = {
        name: Role(Federation(spec, "fedavg", tmp_path / "scratch", name, store_url=store, data_path=str(elsewhere)), name)
        for name in ("server", "evaluator")
    }
    notes = write_report(roles["server"], tmp_path / "page.html", evaluator=roles["evaluator"])
    page = (tmp_path / "page.html").read_text()
    assert [note.split(":")[0] for note in notes] == [f"images of {domain}" for domain in DOMAINS]
    for figure in ("accuracy", "confusion", "tsne-class", "tsne-domain", "weights", "drift", "timeline"):
        assert f'id="fig-{figure}"' in page, figure
    assert "only the target is shown" in page
    assert not (tmp_path / "scratch").exists()
