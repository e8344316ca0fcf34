"""The round protocol on a federation of three silos: deterministic, idempotent, resumable, and nothing leaves a silo but its update."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from components import layout
from components.errors import DeadlineError, InputError, StoreError
from components.received import read_broadcast, read_update
from components.server import Accepted, server_step
from components.silo import evaluate_step, silo_step, validate_step
from components.store.file import FileStore
from components.wire import Payload, encode, model_digest
from fl_algorithms.aggregation import average
from fl_algorithms.evaluation import count
from tests.federations import ALGORITHMS, DOMAINS, Run, draw_pictures, values

PRIVATE_NAMES = ("frozen.", "projections.", "optimizer.", "bn.")
Start = Callable[..., Run]


class Killed(BaseException):
    """Not an Exception: nothing may handle it."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module", autouse=True)
def one_thread(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


@pytest.fixture
def start(pictures: Path, tmp_path: Path) -> Start:
    """Plans a run in a folder of its own; all are called `run`, so that only the spec can make a difference."""
    number = itertools.count()

    def begin(algorithm: str = "fedavg", hyper: dict[str, Any] | None = None, **fields: Any) -> Run:
        return Run(values(pictures, algorithm, hyper, **fields), tmp_path / str(next(number)) / "run")

    return begin


def model(run: Run, round: int) -> Payload:
    folder = run.folder / "store" / layout.GLOBAL / layout.step_key(run.name, round, run.federation.last_exchange(round))
    return Payload(folder / "model.safetensors")


# ---- the same spec, the same digest


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_neither_repetition_nor_order_nor_a_new_process_changes_a_bit(start: Start, algorithm: str) -> None:
    resident = start(algorithm, rounds=3)
    digest = resident.digest
    backwards = start(algorithm, rounds=3)
    backwards.go(order=lambda silos: silos[::-1])
    assert backwards.finish()["digest"] == digest
    forgetful = start(algorithm, rounds=3)
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest


def test_another_seed_gives_another_model(start: Start) -> None:
    assert start(seed=1).digest != start(seed=2).digest


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_step_may_be_called_again(start: Start, algorithm: str) -> None:
    run = start(algorithm)
    result = run.result()
    before = {path: path.read_bytes() for path in run.stored()}
    run.restart()
    assert run.result() == result
    assert {path: path.read_bytes() for path in run.stored()} == before


# ---- killed anywhere


def kill_before(monkeypatch: pytest.MonkeyPatch, fatal: Callable[[tuple[str, str, str]], bool]) -> None:
    """Ends the process, as far as a test can, instead of the writes that `fatal` picks: to the store and to private volumes alike."""
    for operation in ("put", "delete"):
        original = getattr(FileStore, operation)

        def guarded(
            self: FileStore, bucket: str, key: str, *rest: Any, original: Callable[..., None] = original, operation: str = operation
        ) -> None:
            if fatal((operation, bucket, key)):
                raise Killed
            original(self, bucket, key, *rest)

        monkeypatch.setattr(FileStore, operation, guarded)


def finished_whatever_happens(begin: Callable[[], Run]) -> tuple[str, int]:
    """Digest of the run and how often it had to be started."""
    for starts in itertools.count(1):
        try:
            return begin().digest, starts
        except Killed:
            continue
    raise AssertionError


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_killed_before_each_write_in_turn(start: Start, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    digest = start(algorithm).digest
    seen: set[tuple[str, str, str]] = set()

    def first_attempt(write: tuple[str, str, str]) -> bool:
        return write not in seen and not seen.add(write)  # type: ignore[func-returns-value]

    kill_before(monkeypatch, first_attempt)
    found, starts = finished_whatever_happens(lambda: Run(values(pictures, algorithm), tmp_path / "killed" / "run"))
    assert found == digest
    assert starts == len(seen) + 1 > 25


@pytest.mark.parametrize("algorithm", ["fedavg", "csac"])
def test_killed_once_before_any_write(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    """What is on disk before a write is what a kill at that moment leaves: every such state must lead to the same end."""
    run = start(algorithm, sources=list(DOMAINS[:2]))
    states: list[Path] = []

    def keep_a_copy(_: tuple[str, str, str]) -> bool:
        states.append(tmp_path / f"state-{len(states)}" / "run")
        shutil.copytree(run.folder, states[-1])
        return False

    with monkeypatch.context() as patch:
        kill_before(patch, keep_a_copy)
        digest = run.digest
    assert len(states) > 20
    for state in states:
        assert Run.reopened(run, state).digest == digest, state


def test_persisted_optimiser_survives_a_restart_and_matters(start: Start) -> None:
    resident = start(hyper={"persist_optimizer": True}, rounds=3).digest
    forgetful = start(hyper={"persist_optimizer": True}, rounds=3)
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == resident
    assert start(hyper={"persist_optimizer": False}, rounds=3).digest != resident


# ---- what leaves a silo


@pytest.mark.parametrize(
    ("algorithm", "hyper"),
    [*((algorithm, {}) for algorithm in ALGORITHMS), ("fedavg", {"persist_optimizer": True, "bn_buffers": "local"}), ("csac", {"persist_optimizer": True})],
)
def test_a_silo_publishes_exactly_what_was_agreed(start: Start, algorithm: str, hyper: dict[str, Any]) -> None:
    run = start(algorithm, hyper, rounds=2)
    for step in run.steps():
        expected = run.federation.exchange(*step).upload
        participants = previous.participants if (previous := _before(run, step)) else run.silos
        for silo in participants:
            manifest = silo_step(run.role(silo), *step)
            assert manifest.tensors.keys() == expected.keys()
            path = run.folder / "store" / layout.silo_bucket(silo) / layout.update_keys(run.name, *step)[0]
            assert path.exists() == bool(expected)
            assert not expected or Payload(path).keys() == expected.keys()
        server_step(run.role("server"), *step)
        for path in run.stored(".safetensors"):
            assert not [name for name in Payload(path) if name.startswith(PRIVATE_NAMES)], path
    kept = {name for path in (run.folder / "private").rglob("*.safetensors") for name in Payload(path)}
    if hyper or algorithm == "csac":
        assert any(name.startswith(PRIVATE_NAMES) for name in kept)


def _before(run: Run, step: tuple[int, str]) -> Any:
    before = run.federation.step_before(*step)
    return read_broadcast(run.federation, *before) if before else None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
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
        path = run.folder / "store" / layout.silo_bucket(silo) / layout.update_keys(run.name, 1, "statistics")[0]
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


@pytest.mark.parametrize(("algorithm", "hyper"), [("fedavg", {}), ("fedccrl", {}), ("fedavg", {"participants": 1}), ("csac", {})])
def test_raw_updates_are_gone_when_the_server_has_used_them(start: Start, algorithm: str, hyper: dict[str, Any]) -> None:
    run = start(algorithm, hyper, rounds=3)
    run.go()
    assert run.stored("update.safetensors") == []


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
        payloads[silo] = Payload(run.folder / "store" / layout.silo_bucket(silo) / layout.update_keys(run.name, 1, "train")[0])
    weights = {"ash": 0.17, "birch": 0.5, "cedar": 0.33}
    digests = set()
    for order in itertools.permutations(run.silos):
        accepted = Accepted({silo: manifests[silo] for silo in order}, {silo: payloads[silo] for silo in order})
        digests.add(model_digest(average(accepted, {silo: weights[silo] for silo in order})))
    assert len(digests) == 1


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_follow_the_sample_counts_or_are_equal(start: Start, weighting: str) -> None:
    run = start(hyper={"weighting": weighting}, rounds=1)
    run.go(until=(0, "join"))
    broadcast = run.exchange(1, "train", run.silos)
    total = sum(broadcast.roster.values())
    assert len(set(broadcast.roster.values())) == 3
    for silo, samples in broadcast.roster.items():
        assert broadcast.weights[silo] == pytest.approx(samples / total if weighting == "samples" else 1 / 3, abs=1e-15)


def test_sampled_participants_are_fixed_by_the_seed_and_change_over_rounds(start: Start) -> None:
    def drawn(seed: int) -> list[list[str]]:
        run, rounds = start(hyper={"participants": 2}, rounds=6, seed=seed), []
        run.go(after_exchange=lambda broadcast: rounds.append(broadcast.participants))
        accepted = [r["participants"] for r in run.finish()["history"]]
        assert accepted == rounds[:-1]
        return accepted

    first = drawn(5)
    assert all(len(set(names)) == 2 for names in first)
    assert len({tuple(names) for names in first}) > 1
    assert drawn(5) == first
    assert drawn(6) != first


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


# ---- options of FedAvg


def statistics(run: Run, round: int) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model(run, round).items() if "running" in name}


def test_pooled_statistics_differ_from_averaged_in_the_variance_only(start: Start) -> None:
    averaged, pooled = (start(hyper={"bn_buffers": rule}, rounds=1) for rule in ("average", "pooled"))
    averaged.go()
    pooled.go()
    for name, tensor in model(averaged, 1).items():
        if name.endswith("running_var"):
            assert (model(pooled, 1)[name] > tensor).any()
            assert (model(pooled, 1)[name] >= tensor - 1e-6).all()
        else:
            assert torch.equal(model(pooled, 1)[name], tensor)


@pytest.mark.parametrize("algorithm", ["fedavg", "csac"])
def test_frozen_statistics_never_change(start: Start, algorithm: str) -> None:
    run = start(algorithm, {"bn_buffers": "frozen"})
    run.go()
    first, last = statistics(run, 0), statistics(run, 2)
    assert first
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert not torch.equal(model(run, 0)["head.weight"], model(run, 2)["head.weight"])


def test_local_statistics_stay_and_keep_moving(start: Start) -> None:
    run = start(hyper={"bn_buffers": "local"}, rounds=3)
    kept: list[dict[str, torch.Tensor]] = []

    def look(_: object) -> None:
        found = sorted((run.folder / "private" / "ash").glob("*.safetensors"))
        kept.extend([dict(Payload(found[-1]))] if found else [])

    run.go(after_exchange=look)
    assert all(torch.equal(statistics(run, 3)[name], tensor) for name, tensor in statistics(run, 0).items())
    name = next(name for name in kept[0] if name.endswith("running_mean"))
    assert len(kept) == 3
    assert not torch.equal(kept[0][name], kept[1][name])
    assert not torch.equal(kept[1][name], kept[2][name])
    assert kept[2][next(name for name in kept[2] if name.endswith("num_batches_tracked"))] == 6
    assert run.finish()["accuracy"]["last"] is not None


@pytest.mark.parametrize("bn_buffers", ["average", "local"])
def test_silos_without_validation_images_report_nothing(start: Start, bn_buffers: str) -> None:
    history = (run := start(hyper={"bn_buffers": bn_buffers}, rounds=1, validation=0.01)).result()["history"]
    assert history[0]["validation_accuracy"] is None
    assert history[0]["target_accuracy"] is not None
    assert run.finish()["accuracy"]["best_validation"] is None


# ---- power-of-choice over the wire


def test_the_reported_loss_is_that_of_the_model_before_training(start: Start) -> None:
    run = start("power-of-choice", {"participants": 1, "lr": 0.01})
    chosen: list[Sequence[str]] = []
    run.go(after_exchange=lambda broadcast: chosen.append(broadcast.accepted))
    fresh = Run.reopened(run, run.folder)
    for round in (1, 2):
        received = {"model": model(run, round - 1)}
        losses = {}
        for silo in run.silos:
            counts = count(fresh.federation.algorithm.predictor(received, torch.device("cpu")), fresh.role(silo).samples("train"))
            reported = read_update(run.federation, silo, round, "loss")
            assert reported is not None
            losses[silo] = counts.loss_sum / counts.total
            assert reported.metrics["loss"] == pytest.approx(losses[silo], rel=1e-6)
        assert chosen[2 * round] == [max(losses, key=lambda name: losses[name])]


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
    assert result["digest"] == model_digest(model(run, 1)) == model_digest(Payload(run.folder / "model.safetensors"))


@pytest.mark.parametrize(
    "metrics",
    [{"total": 3.0}, {"correct": None, "total": 3.0, "loss_sum": 1.0}, {"correct": 9.0, "total": 3.0, "loss_sum": 1.0}, {"correct": -1.0, "total": 3.0}],
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
