"""One silo of three publishes poison. It must be rejected for the right reason, named in the result and never averaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components import layout
from components.errors import QuorumError
from components.guards import Expected, Rejected, check_manifest, is_finite
from components.manifest import Rejection, Stored, UpdateManifest
from components.server import server_step
from components.silo import silo_step
from components.store.file import FileStore
from components.wire import Payload, model_digest
from fl_algorithms.contract import TensorShape
from tests.federations import Run, update_file, values
from tests.forgery import BAD, JOIN, JOIN_POISON, POISON, STEP, Forger, spoil


def trained(pictures: Path, folder: Path, **fields: Any) -> Run:
    """All three silos have published round 1; the server has not looked yet."""
    run = Run(values(pictures, rounds=1, **fields), folder / "run")
    run.go(until=(0, "join"))
    for silo in run.silos:
        silo_step(run.role(silo), *STEP)
    return run


@pytest.fixture(scope="module")
def lenient_run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(pictures, tmp_path_factory.mktemp("lenient"), quorum=0.6)


@pytest.fixture(scope="module")
def strict_run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(pictures, tmp_path_factory.mktemp("strict"))


@pytest.fixture(scope="module")
def honest_digest(lenient_run: Run) -> str:
    """The average of the two honest updates, worked out here."""
    payloads = {silo: Payload(update_file(lenient_run, silo, *STEP)) for silo in ("ash", "cedar")}
    samples = {silo: lenient_run.planned["samples"][silo] for silo in payloads}
    expected = {}
    for name, tensor in payloads["ash"].items():
        if tensor.is_floating_point():
            first, second = (samples[silo] / sum(samples.values()) for silo in payloads)
            expected[name] = (tensor.double() * first).add(payloads["cedar"][name].double(), alpha=second).to(tensor.dtype)
        else:
            expected[name] = torch.maximum(tensor, payloads["cedar"][name])
    return model_digest(expected)


def copy_of(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder, folder / "run")
    return Run.reopened(run, folder / "run")


@pytest.mark.parametrize(("reason", "forge"), POISON)
def test_poison_is_rejected_named_and_not_averaged(
    lenient_run: Run, honest_digest: str, tmp_path: Path, reason: str, forge: Callable[[Forger], object]
) -> None:
    run = copy_of(lenient_run, tmp_path)
    forge(Forger(run))
    broadcast = server_step(run.role("server"), *STEP)
    assert broadcast.accepted == ["ash", "cedar"]
    assert [(item.silo, item.reason) for item in broadcast.rejected] == [(BAD, reason)]
    assert broadcast.rejected[0].detail.isprintable()
    result = run.finish()
    assert result["digest"] == honest_digest
    assert result["rejected"] == [{"round": 1, "exchange": "train", **broadcast.rejected[0].model_dump()}]


@pytest.mark.parametrize(("reason", "forge"), POISON)
def test_poison_ends_a_run_that_needs_every_silo(strict_run: Run, tmp_path: Path, reason: str, forge: Callable[[Forger], object]) -> None:
    run = copy_of(strict_run, tmp_path)
    forge(Forger(run))
    with pytest.raises(QuorumError, match=rf"2 of 3 updates accepted, quorum is 3; rejected {BAD}: {reason} ") as caught:
        server_step(run.role("server"), *STEP)
    assert caught.value.exit_code == 5
    assert str(caught.value).isprintable()
    assert not (run.folder / "store" / layout.GLOBAL / layout.step_key(run.name, *STEP)).exists()


def test_without_poison_all_three_count(lenient_run: Run, honest_digest: str, tmp_path: Path) -> None:
    run = copy_of(lenient_run, tmp_path)
    Forger(run).tensors(lambda tensors: tensors)
    broadcast = server_step(run.role("server"), *STEP)
    assert broadcast.accepted == run.silos
    assert broadcast.rejected == []
    assert run.finish()["digest"] != honest_digest


def test_what_a_silo_writes_cannot_break_out_of_its_line(lenient_run: Run, tmp_path: Path) -> None:
    run = copy_of(lenient_run, tmp_path)
    Forger(run).declare(spec="\n\x1b[2J", **{"a\nb\x1b[31m": 1})
    assert server_step(run.role("server"), *STEP).rejected[0].detail.isprintable()


def test_a_rejected_silo_may_take_part_again(pictures: Path, tmp_path: Path) -> None:
    run = Run(values(pictures, rounds=2, quorum=0.6), tmp_path / "run")
    run.go(until=(0, "join"))
    for silo in run.silos:
        silo_step(run.role(silo), *STEP)
    Forger(run).tensors(spoil(float("nan")))
    assert server_step(run.role("server"), *STEP).participants == run.silos
    assert run.exchange(2, "train", run.silos).accepted == run.silos


def test_too_few_honest_updates_are_not_enough(lenient_run: Run, tmp_path: Path) -> None:
    run = copy_of(lenient_run, tmp_path)
    Forger(run).tensors(spoil(float("nan")))
    (run.folder / "store" / layout.silo_bucket("ash") / layout.update_keys(run.name, *STEP)[1]).unlink()
    with pytest.raises(QuorumError, match=r"1 of 3 updates accepted, quorum is 2; rejected birch: nonfinite"):
        server_step(run.role("server"), *STEP)


@pytest.fixture(scope="module")
def joined_run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All three silos have asked to join."""
    run = Run(values(pictures, rounds=1, quorum=0.6), tmp_path_factory.mktemp("joined") / "run")
    for silo in run.silos:
        silo_step(run.role(silo), *JOIN)
    return run


@pytest.mark.parametrize(("reason", "forge"), JOIN_POISON)
def test_a_silo_that_joins_with_a_lie_is_not_in_the_roster(
    joined_run: Run, tmp_path: Path, reason: str, forge: Callable[[Forger], object]
) -> None:
    run = copy_of(joined_run, tmp_path)
    forge(Forger(run, JOIN))
    broadcast = server_step(run.role("server"), *JOIN)
    assert (list(broadcast.roster), broadcast.participants) == (["ash", "cedar"], ["ash", "cedar"])
    assert [(item.silo, item.reason) for item in broadcast.rejected] == [(BAD, reason)]
    assert broadcast.rejected[0].detail.isprintable()


def test_the_federation_says_how_many_images_a_silo_can_have(pictures: Path, tmp_path: Path) -> None:
    run = Run(values(pictures, rounds=1, quorum=0.3, samples_bound=26), tmp_path / "run")
    for silo in run.silos:
        silo_step(run.role(silo), *JOIN)
    broadcast = server_step(run.role("server"), *JOIN)
    assert broadcast.roster == {"ash": run.planned["samples"]["ash"]}
    assert broadcast.rejected[0].detail == "expected at most 26 training images (samples_bound), found 27"


# ---- the same name twice


@pytest.fixture(scope="module")
def two_rounds(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Round 1 is over, all three silos have published round 2; the updates of round 1 are kept aside in `old`."""
    run = Run(values(pictures, rounds=2, quorum=0.6), tmp_path_factory.mktemp("two") / "run")
    run.go(until=JOIN)
    for silo in run.silos:
        silo_step(run.role(silo), *STEP)
    shutil.copytree(run.folder / "store" / layout.silo_bucket(BAD), run.folder / "old")
    server_step(run.role("server"), *STEP)
    for silo in run.silos:
        silo_step(run.role(silo), 2, "train")
    return run


def test_an_update_of_an_older_round_is_stale(two_rounds: Run, tmp_path: Path) -> None:
    run = copy_of(two_rounds, tmp_path)
    for old, new in zip(layout.update_keys(run.name, *STEP), layout.update_keys(run.name, 2, "train"), strict=True):
        shutil.copy(run.folder / "old" / old, run.folder / "store" / layout.silo_bucket(BAD) / new)
    assert [(item.silo, item.reason) for item in server_step(run.role("server"), 2, "train").rejected] == [(BAD, "stale")]


def test_an_update_that_is_replaced_while_the_server_reads_it(two_rounds: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, fetch = copy_of(two_rounds, tmp_path), FileStore.fetch
    payload_key = layout.update_keys(run.name, 2, "train")[0]

    def replaced_before(store: FileStore, bucket: str, key: str, limit: int) -> Any:
        if (bucket, key) == (layout.silo_bucket(BAD), payload_key):
            store.put(bucket, key, [update_file(run, "ash", 2, "train").read_bytes()])
        return fetch(store, bucket, key, limit)

    monkeypatch.setattr(FileStore, "fetch", replaced_before)
    assert [(item.silo, item.reason) for item in server_step(run.role("server"), 2, "train").rejected] == [(BAD, "digest")]


def test_what_a_silo_writes_after_its_update_was_used_changes_nothing(two_rounds: Run, tmp_path: Path) -> None:
    undisturbed, disturbed = copy_of(two_rounds, tmp_path / "a"), copy_of(two_rounds, tmp_path / "b")
    results = []
    for run in (undisturbed, disturbed):
        before = server_step(run.role("server"), 2, "train")
        if run is disturbed:
            Forger(run, (2, "train")).tensors(spoil(1000.0))
            Forger(run, (2, "train")).declare(samples=10**9)
            run.restart()
            assert server_step(run.role("server"), 2, "train") == before
        results.append(run.result())
    assert results[0]["digest"] == results[1]["digest"]
    assert not results[1]["rejected"]


# ---- what comes of it


def test_a_model_that_is_not_finite_is_not_published(pictures: Path, tmp_path: Path) -> None:
    run = Run(values(pictures, "fedavgm", {"server_lr": 1e60}, rounds=1), tmp_path / "run")
    run.go(until=JOIN)
    for silo in run.silos:
        silo_step(run.role(silo), *STEP)
    with pytest.raises(
        QuorumError, match=r"^round 1 train: model tensor \S+ would hold NaN or infinity, .* sent: ash \S+, birch "
    ) as caught:
        server_step(run.role("server"), *STEP)
    assert caught.value.exit_code == 5
    assert not (run.folder / "store" / layout.GLOBAL / layout.step_key(run.name, *STEP)).exists()


@pytest.mark.parametrize(("bound", "rejected"), [(1e-4, ["norm"] * 3), (1e4, [])])
def test_norm_bound(pictures: Path, tmp_path: Path, bound: float, rejected: list[str]) -> None:
    run = trained(pictures, tmp_path, norm_bound=bound, quorum=0.3)
    if rejected:
        with pytest.raises(QuorumError, match=r"norm at most 0\.0001 from the global model"):
            server_step(run.role("server"), *STEP)
    else:
        assert server_step(run.role("server"), *STEP).accepted == run.silos


def test_norm_bound_stops_an_update_that_is_merely_large(pictures: Path, tmp_path: Path) -> None:
    run = trained(pictures, tmp_path, norm_bound=100.0, quorum=0.6)
    Forger(run).tensors(spoil(1000.0))
    assert server_step(run.role("server"), *STEP).rejected == [
        Rejection(silo=BAD, reason="norm", detail="expected a difference of norm at most 100 from the global model, found 1000")
    ]


# ---- rows by sample count (FedCCRL's statistics)


@pytest.mark.parametrize("rows", [0, 28])
def test_a_silo_may_not_show_more_rows_than_it_has_images(pictures: Path, tmp_path: Path, rows: int) -> None:
    run = Run(values(pictures, "fedccrl", rounds=1, quorum=0.6), tmp_path / "run")
    run.go(until=(0, "join"))
    for silo in run.silos:
        silo_step(run.role(silo), 1, "statistics")
    assert run.planned["samples"][BAD] == 27
    forger = Forger(run, (1, "statistics"))
    forger.tensors(lambda t: t.update({"mean": torch.zeros(rows, 3, 1, 1), "std": torch.ones(rows, 3, 1, 1)}))
    assert [item.reason for item in server_step(run.role("server"), 1, "statistics").rejected] == ["shape"]


# ---- the guards by themselves


def test_the_size_limit_counts_rows_by_the_sample_count() -> None:
    shapes = {"a": TensorShape(torch.float32, (None, 3)), "b": TensorShape(torch.int64, ())}
    expected = Expected("run", "spec", 1, "train", shapes, 10)
    assert expected.most_bytes(10) - expected.most_bytes(0) == 10 * 3 * 4
    too_much = Stored(bytes=expected.most_bytes(10) + 1, digest="")
    manifest = UpdateManifest(run="run", spec="spec", round=1, exchange="train", author="ash", samples=10, payload=too_much)
    with pytest.raises(Rejected) as caught:
        check_manifest(manifest, "ash", expected)
    assert caught.value.reason == "size"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_every_place_and_type_is_checked_for_finite_values(dtype: torch.dtype, value: float) -> None:
    assert is_finite(torch.full((2, 9), torch.finfo(dtype).max, dtype=dtype))
    for place in range(18):
        tensor = torch.zeros(2, 9, dtype=dtype)
        tensor.view(-1)[place] = value
        assert not is_finite(tensor)
    assert is_finite(torch.zeros(0, dtype=dtype))
