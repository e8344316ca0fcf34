"""Old rounds expire: the store stops growing, what is in force or still to be counted with stays, and no bit of the result changes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from components import layout
from components.errors import ExpiredError, InputError, StoreError
from components.received import read_broadcast
from components.retention import PATIENCE
from components.server import server_step
from components.silo import evaluate_step, silo_step, validate_step
from tests.components.test_resume import finished_whatever_happens, kill_before
from tests.federations import DOMAINS, Run, Start, values

KEPT = 2


def models(run: Run) -> list[int]:
    """Rounds whose global model is still in the store."""
    found = [re.search(r"rounds/(\d+)/", str(path)) for path in run.stored("model.safetensors")]
    return sorted(int(match[1]) for match in found if match)


def forget(run: Run, silo: str, round: int) -> None:
    """As if the silo had not published in time."""
    for path in (run.folder / "store" / layout.silo_bucket(silo) / layout.step_key(run.name, round, "train")).iterdir():
        path.unlink()


def without_counting(run: Run, *steps: tuple[int, str]) -> None:
    for round, exchange in steps:
        for silo in run.silos:
            silo_step(run.role(silo), round, exchange)
        server_step(run.role("server"), round, exchange)


def count(run: Run, round: int) -> None:
    for silo in run.silos:
        validate_step(run.role(silo), round)
    evaluate_step(run.role("evaluator"), round)


def test_the_store_holds_the_last_rounds_only(start: Start) -> None:
    run = start(rounds=6, keep_rounds=KEPT)
    most = 0

    def watch(_: object) -> None:
        nonlocal most
        most = max(most, len(models(run)))

    run.go(after_exchange=watch)
    assert models(run) == [4, 5, 6]
    assert most == KEPT + 1
    assert run.finish()["digest"] == start(rounds=6, keep_rounds=None).digest


def test_null_keeps_all(start: Start) -> None:
    run = start(rounds=5, keep_rounds=None)
    run.go()
    assert models(run) == [0, 1, 2, 3, 4, 5]


def test_the_history_stays(start: Start) -> None:
    result = start(rounds=5, keep_rounds=1).result()
    everything = start(rounds=5, keep_rounds=None).result()
    assert result["accuracy"] == everything["accuracy"]
    assert [entry["validation"] for entry in result["history"]] == [entry["validation"] for entry in everything["history"]]


def broadcast_payloads(run: Run) -> set[str]:
    paths = {str(path.relative_to(run.folder)) for path in run.stored(".safetensors")}
    return {path for path in paths if f"/{layout.GLOBAL}/" in path or "/inbox/" in path}


@pytest.mark.parametrize("algorithm", ["fedccrl", "feddg", "csac", "copa"])
def test_what_is_in_force_stays_and_what_was_replaced_goes(start: Start, algorithm: str) -> None:
    """Also in inboxes, and also what one round publishes for all later ones."""
    run, everything = start(algorithm, rounds=4, keep_rounds=1), start(algorithm, rounds=4, keep_rounds=None)
    assert run.digest == everything.digest
    in_force, steps = set(), run.steps()
    for step in steps[steps.index((3, run.federation.last_exchange(3))) :]:
        manifest = read_broadcast(run.federation, *step)
        if manifest is not None:
            in_force |= {layout.part_place(run.name, part.round, part.exchange, name, None) for name, part in manifest.parts.items()}
            in_force |= {layout.part_place(run.name, *at, name, silo) for name, at in manifest.personal.items() for silo in run.silos}
    assert broadcast_payloads(run) == broadcast_payloads(everything) & {f"store/{bucket}/{key}" for bucket, key in in_force}


def test_a_model_waits_for_those_who_have_not_counted_yet(start: Start) -> None:
    run = start(rounds=8, keep_rounds=1)
    steps = run.steps()
    without_counting(run, *steps[:5])
    assert models(run) == [1, 2, 3, 4]  # the model of round 0 is counted with by nobody
    count(run, 1)
    without_counting(run, steps[5])
    assert models(run) == [2, 3, 4, 5]
    for silo in run.silos:
        validate_step(run.role(silo), 2)
    without_counting(run, steps[6])
    assert 2 in models(run)  # the evaluator has not looked at it


def test_a_silo_that_never_counts_does_not_fill_the_store(start: Start) -> None:
    run = start(rounds=PATIENCE + 5, keep_rounds=1, hyper={"batch_size": 64})
    without_counting(run, *run.steps())
    assert models(run) == list(range(4, PATIENCE + 6))
    forget(run, "ash", 3)
    with pytest.raises(ExpiredError, match="round 2: what the server broadcast then has expired"):
        validate_step(run.role("ash"), 2)
    with pytest.raises(ExpiredError, match="go on with the current round"):
        silo_step(run.role("ash"), 3, "train")


def test_a_step_that_is_late_by_as_many_rounds_still_runs(start: Start) -> None:
    """Its update is not waited for any more; it must not fail either."""
    run = start(rounds=6, keep_rounds=KEPT, quorum=0.5)
    run.go(until=(5, "train"))
    run.restart()
    for round in (4, 5):
        forget(run, "ash", round)
        silo_step(run.role("ash"), round, "train")
    assert run.digest == start(rounds=6, keep_rounds=KEPT, quorum=0.5).digest


def test_killed_before_each_write_and_deletion_in_turn(
    start: Start, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that could not finish tidying up does it again, and leaves nothing behind."""
    spec: dict[str, Any] = {"rounds": 3, "keep_rounds": 1, "sources": list(DOMAINS[:2])}
    digest = start("fedccrl", **spec).digest
    seen: set[tuple[str, str, str]] = set()

    def first_attempt(write: tuple[str, str, str]) -> bool:
        return write not in seen and not seen.add(write)  # type: ignore[func-returns-value]

    kill_before(monkeypatch, first_attempt)
    begin = partial(Run, values(pictures, "fedccrl", **spec), tmp_path / "killed" / "run")
    assert finished_whatever_happens(begin)[0] == digest
    assert len([key for operation, bucket, key in seen if operation == "delete" and (bucket == layout.GLOBAL or "inbox" in key)]) == 4
    assert models(begin()) == [2, 3]


def test_a_lost_model_is_not_called_expired(start: Start) -> None:
    run = start(rounds=3)
    run.go(until=(1, "train"))
    run.stored("model.safetensors")[-1].unlink()
    run.restart()
    with pytest.raises(StoreError, match="the store lost or changed what the server published"):
        silo_step(run.role("ash"), 2, "train")


def test_a_shorter_memory_than_one_round_is_refused(start: Start) -> None:
    with pytest.raises(InputError, match="keep_rounds"):
        start(keep_rounds=0)


def test_no_role_but_the_server_deletes_what_others_read(start: Start) -> None:
    run = start(rounds=3, keep_rounds=1)
    run.go(until=(2, "train"))
    before = run.stored("model.safetensors")
    for silo in run.silos:
        silo_step(run.role(silo), 3, "train")
    assert run.stored("model.safetensors") == before
