"""The three gates, each made to fail, and what has nothing to compare with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.errors import StoreError
from pipelines import gates
from pipelines.history import History, night
from tests.pipelines.bench_rows import SYSTEM, failed, row, small
from tests.pipelines.commands import invoke


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    gates.accept(small(), tmp_path / "baseline.json")
    return tmp_path / "baseline.json"


def verdicts(rows: list[dict[str, Any]], baseline: Path, nights: list[dict[str, Any]] | None = None) -> dict[str, str]:
    found = gates.gates(rows, gates.read_baseline(baseline), nights or [])
    return {f"{gate.gate} {gate.name}": gate.verdict for gate in found}


def results(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_what_was_accepted_passes(baseline: Path) -> None:
    found = verdicts(small(), baseline)
    assert found == dict.fromkeys(
        ["accuracy fedavg/oak", "accuracy fedavg/yew", "accuracy fedprox/oak", "accuracy fedprox/yew",
         "exact Linux x86_64, torch 2.9", "speed fedavg", "speed fedprox"],
        "passed",
    )  # fmt: skip


@pytest.mark.parametrize(("worse", "verdict"), [(0.023, "passed"), (0.0235, "failed")])
def test_accuracy_fails_below_two_standard_errors(baseline: Path, worse: float, verdict: str) -> None:
    """The standard deviation of 48, 50, 52 is 2, the error of their mean 2 / sqrt(3) = 1.1547, two of them 2.309 points."""
    rows = [row(seed=seed, last=0.5 - worse + 0.02 * (seed - 1)) if (one["algorithm"], one["target"]) == ("fedavg", "yew") else one
            for one in small() if not one["exact"] for seed in [one["seed"]]]  # fmt: skip
    found = verdicts([*rows, row(exact=True, digest="e" * 64)], baseline)
    assert found.pop("accuracy fedavg/yew") == verdict
    assert set(found.values()) == {"passed"}


def test_accuracy_fails_where_no_cell_is_left_and_has_no_baseline_where_one_is_new(baseline: Path) -> None:
    rows = [one for one in small() if (one["algorithm"], one["target"]) != ("fedprox", "oak")]
    assert verdicts(rows, baseline)["accuracy fedprox/oak"] == "failed"
    assert verdicts([*small(), row("ga", "yew")], baseline)["accuracy ga/yew"] == "no baseline"


@pytest.mark.parametrize(("ratio", "verdict"), [(1.149, "passed"), (1.151, "failed")])
def test_speed_fails_above_115_percent_of_the_median_of_seven_nights(baseline: Path, ratio: float, verdict: str) -> None:
    """Nine nights; the two oldest are slow and must not count, one of the seven is slow and must not matter."""
    seconds = [90.0, 90.0, 2.5, 2.5, 2.5, 80.0, 2.5, 2.5, 2.5]
    nights = [{**night(small(), "passed"), "perf": [{"name": "fedavg: CPU seconds a round", "unit": "s", "value": v}]} for v in seconds]
    rows = [{**one, "cpu_seconds": 5.0 * ratio} for one in small()]
    found = gates.gates(rows, gates.read_baseline(baseline), nights)
    (speed,) = (gate for gate in found if gate.gate == "speed" and gate.name == "fedavg")
    assert (speed.verdict, "7 nights" in speed.expected) == (verdict, True)


def test_speed_of_another_machine_is_no_baseline(baseline: Path) -> None:
    rows = [{**one, "system": {**SYSTEM, "processor": "Q"}} for one in small()]
    assert verdicts(rows, baseline, [night(small(), "passed")])["speed fedavg"] == "no baseline"
    assert verdicts(rows, baseline, [night(rows, "passed")])["speed fedavg"] == "passed"


def test_exact_fails_for_another_digest_and_has_no_baseline_on_another_torch(baseline: Path) -> None:
    changed = [{**one, "digest": "f" * 64} if one["exact"] else one for one in small()]
    assert verdicts(changed, baseline)["exact Linux x86_64, torch 2.9"] == "failed"
    newer = [{**one, "system": {**SYSTEM, "torch": "2.10"}} for one in small()]
    assert verdicts(newer, baseline)["exact Linux x86_64, torch 2.10"] == "no baseline"
    assert verdicts([one for one in small() if not one["exact"]], baseline)["exact digest"] == "failed", "it was not run"


def test_accepting_keeps_other_systems_digests_while_this_ones_is_the_same(baseline: Path) -> None:
    newer = [{**one, "system": {**SYSTEM, "torch": "2.10"}} for one in small()]
    assert gates.accept(newer, baseline).exact == {"Linux x86_64, torch 2.9": "e" * 64, "Linux x86_64, torch 2.10": "e" * 64}
    changed = [{**one, "digest": "f" * 64} for one in small()]
    assert gates.accept(changed, baseline).exact == {"Linux x86_64, torch 2.9": "f" * 64}, "the arithmetic changed: the other is stale"


# ---- the command


def test_exit_codes(baseline: Path, tmp_path: Path) -> None:
    file = results(tmp_path / "results.jsonl", small())
    green = invoke("gate", file, "--baseline", baseline)
    assert green.exit_code == 0 and green.stdout.count("passed") == 7
    file = results(tmp_path / "results.jsonl", [{**one, "digest": "f" * 64} for one in small()])
    red = invoke("gate", file, "--baseline", baseline, "--json")
    assert red.exit_code == 6 and "1 of 7 gates failed: exact Linux x86_64, torch 2.9" in red.stderr
    assert json.loads(red.stdout)["verdict"] == "failed"


def test_without_a_baseline_it_is_never_green(baseline: Path, tmp_path: Path) -> None:
    file = results(tmp_path / "results.jsonl", small())
    none = invoke("gate", file, "--baseline", tmp_path / "none.json")
    assert none.exit_code == 2 and "--accept" in none.stderr and none.stderr.count("\n") == 1
    file = results(tmp_path / "results.jsonl", [*small(), row("ga", "yew")])
    part = invoke("gate", file, "--baseline", baseline)
    assert part.exit_code == 2 and "accuracy ga/yew" in part.stderr
    other = results(tmp_path / "other.jsonl", [{**one, "bench": "large"} for one in small()])
    assert invoke("gate", other, "--baseline", baseline).exit_code == 2
    (tmp_path / "broken.json").write_text('{"bench": "small"')
    broken = invoke("gate", file, "--baseline", tmp_path / "broken.json")
    assert broken.exit_code == 2 and broken.stderr.count("\n") == 1


def test_failed_cells_come_first_and_cannot_be_accepted(baseline: Path, tmp_path: Path) -> None:
    file = results(tmp_path / "results.jsonl", [*small(), failed("ga", "yew", 0, code=4)])
    ended = invoke("gate", file, "--baseline", baseline)
    assert ended.exit_code == 4 and "1 cell failed; ga/yew/0: silo ash: late" in ended.stderr
    before = baseline.read_bytes()
    assert invoke("gate", file, "--baseline", baseline, "--accept").exit_code == 2 and baseline.read_bytes() == before
    one_seed = results(tmp_path / "one.jsonl", [row()])
    refused = invoke("gate", one_seed, "--baseline", tmp_path / "new.json", "--accept")
    assert refused.exit_code == 2 and "two seeds" in refused.stderr and not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("content", ["", "{}\n", "nonsense\n{}\n", '{"algorithm": 1}\n'])
def test_results_that_are_none(content: str, baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(content)
    ended = invoke("gate", tmp_path / "results.jsonl", "--baseline", baseline)
    assert ended.exit_code == 2 and ended.stderr.startswith("error: results ") and ended.stderr.count("\n") == 1


# ---- the nights


def test_nights_are_kept_and_one_that_is_told_again_is_the_same(tmp_path: Path) -> None:
    history = History((tmp_path / "store").as_uri(), "small")
    assert history.nights() == []
    history.add(small(), "passed")
    later = [{**one, "when": "2026-01-02T00:00:00Z"} for one in small()]
    history.add(later, "failed")
    history.add(later, "passed")
    assert [(one["when"], one["verdict"]) for one in history.nights()] == [
        ("2026-01-01T00:00:02Z", "passed"),
        ("2026-01-02T00:00:00Z", "passed"),
    ]
    assert history.nights()[0]["cells"]["fedavg/oak"]["mean"] == pytest.approx(0.6)
    rows = tmp_path / "store/global/benchmarks/small/nights/2026-01-02T000000Z.jsonl"
    assert [json.loads(line) for line in rows.read_text().splitlines()] == later


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"nights": [{"when": "x"}]}', b'{"nights": 3}'])
def test_a_damaged_history_is_said_and_left_alone(content: bytes, tmp_path: Path) -> None:
    history = History((tmp_path / "store").as_uri(), "small")
    history.add(small(), "passed")
    file = tmp_path / "store/global/benchmarks/small/history.json"
    file.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        history.add(small(), "passed")
    assert file.read_bytes() == content
