"""Options that change what a round does, seen through the whole protocol."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from components.received import read_update
from components.wire import Payload
from fl_algorithms.evaluation import count
from tests.federations import Run, Start, global_model


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


# ---- options of FedAvg


def statistics(run: Run, round: int) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in global_model(run, round).items() if "running" in name}


def test_pooled_statistics_differ_from_averaged_in_the_variance_only(start: Start) -> None:
    averaged, pooled = (start(hyper={"bn_buffers": rule}, rounds=1) for rule in ("average", "pooled"))
    averaged.go()
    pooled.go()
    for name, tensor in global_model(averaged, 1).items():
        if name.endswith("running_var"):
            assert (global_model(pooled, 1)[name] > tensor).any()
            assert (global_model(pooled, 1)[name] >= tensor - 1e-6).all()
        else:
            assert torch.equal(global_model(pooled, 1)[name], tensor)


@pytest.mark.parametrize("algorithm", ["fedavg", "csac"])
def test_frozen_statistics_never_change(start: Start, algorithm: str) -> None:
    run = start(algorithm, {"bn_buffers": "frozen"})
    run.go()
    first, last = statistics(run, 0), statistics(run, 2)
    assert first
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert not torch.equal(global_model(run, 0)["head.weight"], global_model(run, 2)["head.weight"])


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
        received = {"model": global_model(run, round - 1)}
        losses = {}
        for silo in run.silos:
            counts = count(fresh.federation.algorithm.predictor(received, torch.device("cpu")), fresh.role(silo).samples("train"))
            reported = read_update(run.federation, silo, round, "loss")
            assert reported is not None
            losses[silo] = counts.loss_sum / counts.total
            assert reported.metrics["loss"] == pytest.approx(losses[silo], rel=1e-6)
        assert chosen[2 * round] == [max(losses, key=lambda name: losses[name])]
