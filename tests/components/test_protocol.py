"""The round protocol on a federation of three silos: nothing leaves a silo but its update, and whatever is missing is named."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from components import layout
from components.errors import DeadlineError, InputError, StoreError
from components.received import read_broadcast
from components.server import Accepted, server_step
from components.silo import evaluate_step, silo_step, validate_step
from components.wire import Payload, encode, model_digest
from fl_algorithms.aggregation import average
from tests.federations import ALGORITHMS, Run, Start, global_model, update_file

PRIVATE_NAMES = ("frozen.", "projections.", "optimizer.", "bn.", "fedadg.", "fedsr.", "velocity.", "ga.", "last_loss")
KEEP_SOMETHING = ("csac", "deepall", "fedadg", "fedavgm", "ga", "power-of-choice")


# ---- what leaves a silo


@pytest.mark.parametrize(
    ("algorithm", "hyper"),
    [
        *((algorithm, {}) for algorithm in ALGORITHMS),
        ("fedavg", {"persist_optimizer": True, "bn_buffers": "local"}),
        ("csac", {"persist_optimizer": True}),
        ("fedsr", {"share_reference": False}),
    ],
)
def test_a_silo_publishes_exactly_what_was_agreed(start: Start, algorithm: str, hyper: dict[str, Any]) -> None:
    run = start(algorithm, hyper, rounds=2)
    for step in run.steps():
        expected = run.federation.exchange(*step).upload
        participants = previous.participants if (previous := _before(run, step)) else run.silos
        for silo in participants:
            manifest = silo_step(run.role(silo), *step)
            assert manifest.tensors.keys() == expected.keys()
            path = update_file(run, silo, *step)
            assert path.exists() == bool(expected)
            assert not expected or Payload(path).keys() == expected.keys()
        server_step(run.role("server"), *step)
        for path in run.stored(".safetensors"):
            assert not [name for name in Payload(path) if name.startswith(PRIVATE_NAMES)], path
    kept = {name for path in (run.folder / "private").rglob("*.safetensors") for name in Payload(path)}
    assert any(name.startswith(PRIVATE_NAMES) for name in kept) == bool(hyper or algorithm in KEEP_SOMETHING)


def _before(run: Run, step: tuple[int, str]) -> Any:
    before = run.federation.step_before(*step)
    return read_broadcast(run.federation, *before) if before else None


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "deepall"])  # the average of its one silo is that silo's
def test_no_broadcast_is_a_silos_update(start: Start, algorithm: str) -> None:
    run = start(algorithm)
    uploads: set[str] = set()
    for step in run.steps():
        previous = _before(run, step)
        for silo in previous.participants if previous else run.silos:
            payload = silo_step(run.role(silo), *step).payload
            uploads |= {payload.digest} if payload else set()
        server_step(run.role("server"), *step)
    shown = [path for path in run.stored(".safetensors") if path.name != "update.safetensors"]
    assert len(uploads) >= 4
    assert len(shown) >= 3
    assert not uploads & {encode(Payload(path)).digest for path in shown}


def test_a_pool_holds_the_statistics_of_the_others_only(start: Start) -> None:
    run = start("fedccrl", {"ratio": 0.5})
    run.go(until=(0, "join"))
    own: dict[str, torch.Tensor] = {}
    for silo in run.silos:
        silo_step(run.role(silo), 1, "statistics")
        path = update_file(run, silo, 1, "statistics")
        own[silo] = torch.cat([Payload(path)["mean"], Payload(path)["std"]], dim=1).flatten(1).clone()
    server_step(run.role("server"), 1, "statistics")
    for silo in run.silos:
        bucket, key = layout.part_place(run.name, 1, "statistics", "pool", silo)
        pool = Payload(run.folder / "store" / bucket / key)
        rows = {tuple(row) for row in torch.cat([pool["mean"], pool["std"]], dim=1).flatten(1).tolist()}
        assert rows == {tuple(row) for other in run.silos if other != silo for row in own[other].tolist()}
        assert not rows & {tuple(row) for row in own[silo].tolist()}
    buckets = [path.relative_to(run.folder / "store").parts[0] for path in run.stored("pool.safetensors")]
    assert buckets == [layout.silo_bucket(silo) for silo in run.silos]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(("algorithm", "hyper"), [("fedavg", {}), ("fedccrl", {}), ("fedavg", {"participants": 1}), ("csac", {})])
def test_raw_updates_are_gone_when_the_server_has_used_them(start: Start, algorithm: str, hyper: dict[str, Any], every: int) -> None:
    run = start(algorithm, hyper, rounds=3, evaluate_every=every)
    run.go()
    left = run.stored("update.safetensors")
    assert {path.relative_to(run.folder / "store").parts[0] for path in left} == {layout.EVALUATOR}  # its confusion table stays
    assert {name for path in left for name in Payload(path)} == {"confusion"}


def test_raw_updates_stay_until_the_server_has_used_them(start: Start) -> None:
    run = start()
    run.go(until=(0, "join"))
    for silo in run.silos:
        silo_step(run.role(silo), 1, "train")
        silo_step(run.role(silo), 1, "train")
    assert len(run.stored("update.safetensors")) == len(run.silos)


# ---- the server


def test_arrival_order_changes_no_bit(start: Start) -> None:
    run = start()
    run.go(until=(0, "join"))
    manifests, payloads = {}, {}
    for silo in run.silos:
        manifests[silo] = silo_step(run.role(silo), 1, "train")
        payloads[silo] = Payload(update_file(run, silo, 1, "train"))
    weights = {"ash": 0.17, "birch": 0.5, "cedar": 0.33}
    digests = set()
    for order in itertools.permutations(run.silos):
        accepted = Accepted({silo: manifests[silo] for silo in order}, {silo: payloads[silo] for silo in order})
        digests.add(model_digest(average(accepted, {silo: weights[silo] for silo in order})))
    assert len(digests) == 1


def test_a_lost_silo_is_named_and_others_go_on_below_full_quorum(start: Start) -> None:
    strict, lenient = start(), start(quorum=0.6)
    for run in (strict, lenient):
        run.go(until=(0, "join"))
        for silo in ("ash", "cedar"):
            silo_step(run.role(silo), 1, "train")
    with pytest.raises(DeadlineError, match="silo birch: published nothing"):
        server_step(strict.role("server"), 1, "train")
    broadcast = server_step(lenient.role("server"), 1, "train")
    assert (broadcast.accepted, broadcast.missing) == (["ash", "cedar"], ["birch"])
    assert sum(broadcast.weights.values()) == pytest.approx(1)


def test_a_silo_that_never_joined_is_in_the_result(start: Start) -> None:
    run = start(quorum=0.6)
    for silo in ("ash", "cedar"):
        silo_step(run.role(silo), 0, "join")
    server_step(run.role("server"), 0, "join")
    run.go(order=lambda silos: [silo for silo in silos if silo != "birch"])
    assert run.finish()["absent"] == ["birch"]


def test_a_lost_inbox_is_noticed(start: Start) -> None:
    run = start("fedccrl")
    run.go(until=(1, "statistics"))
    inbox = run.folder / "store" / layout.silo_bucket("birch") / layout.inbox_key(run.name, 1, "statistics")
    inbox.unlink()
    with pytest.raises(StoreError, match="the store lost what the server published"):
        silo_step(run.role("birch"), 1, "train")


def test_a_step_before_its_broadcast_says_what_is_missing(start: Start) -> None:
    run = start()
    with pytest.raises(DeadlineError, match="broadcast of round 0 join is not in"):
        silo_step(run.role("ash"), 1, "train")
    with pytest.raises(StoreError, match="the broadcast before round 1 train is missing"):
        server_step(run.role("server"), 1, "train")
    with pytest.raises(DeadlineError, match="the model of round 1 is not in"):
        validate_step(run.role("ash"), 1)


def test_a_damaged_broadcast_is_noticed(start: Start) -> None:
    run = start()
    run.go(until=(0, "join"))
    path = run.folder / "store" / layout.GLOBAL / layout.step_key(run.name, 0, "join") / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="does not match the digest"):
        silo_step(run.role("ash"), 1, "train")


def test_csac_without_its_frozen_model_says_so(start: Start) -> None:
    run = start("csac")
    run.go(until=(1, "acquire"))
    for path in (run.folder / "private" / "ash").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="silo ash: its frozen model of round 1 is not on its volume"):
        silo_step(run.role("ash"), 2, "calibrate")


# ---- counting


def test_results_are_counted_over_all_silos_and_the_target(start: Start) -> None:
    run = start(rounds=1)
    result = run.result()
    row = result["history"][0]
    counted = [validate_step(run.role(silo), 1).metrics for silo in run.silos]
    correct, total = sum(m["correct"] or 0 for m in counted), sum(m["total"] or 0 for m in counted)
    assert row["validation_accuracy"] == correct / total
    target = evaluate_step(run.role("evaluator"), 1).metrics
    assert target["total"] == run.planned["target_images"]
    assert row["target_accuracy"] == (target["correct"] or 0) / 42 == result["accuracy"]["last"]
    assert result["digest"] == model_digest(global_model(run, 1)) == model_digest(Payload(run.folder / "model.safetensors"))


@pytest.mark.parametrize(
    "metrics",
    [
        {"total": 3.0},
        {"correct": None, "total": 3.0, "loss_sum": 1.0},
        {"correct": 9.0, "total": 3.0, "loss_sum": 1.0},
        {"correct": -1.0, "total": 3.0},
    ],
)
def test_impossible_counts_of_a_silo_are_left_out(start: Start, metrics: dict[str, float | None]) -> None:
    run = start(rounds=1)
    run.go()
    honest = run.finish()["history"][0]["validation"]
    manifest = validate_step(run.role("ash"), 1).model_copy(update={"metrics": metrics})
    key = layout.update_keys(run.name, 1, layout.VALIDATE)[1]
    run.federation.store.put(layout.silo_bucket("ash"), key, [manifest.encode()])
    row = run.finish()["history"][0]
    assert row["validation"] == {silo: accuracy for silo, accuracy in honest.items() if silo != "ash"}


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b" " * (5 << 20)])
def test_an_unreadable_count_of_a_silo_is_left_out(start: Start, content: bytes) -> None:
    run = start(rounds=1)
    run.go()
    for name in (layout.VALIDATE, "train"):
        run.federation.store.put(layout.silo_bucket("ash"), layout.update_keys(run.name, 1, name)[1], [content])
    row = run.finish()["history"][0]
    assert sorted(row["validation"]) == ["birch", "cedar"]
