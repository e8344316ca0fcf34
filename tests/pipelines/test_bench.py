"""`siloflow bench` as the installed command: to the end, with a failing cell, interrupted, killed, told again; and its tables."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from components.environment import IMAGE
from pipelines.bench_file import Cell, Work, chosen, read_bench, work_of
from pipelines.bench_lanes import PORTABLE, divided
from pipelines.bench_rows import append, mend, perf, read_rows, still_to_do
from pipelines.bench_table import markdown
from tests.federations import Run, draw_pictures, values
from tests.pipelines.bench_rows import failed, row, small
from tests.pipelines.commands import command, finish, invoke
from tests.pipelines.test_runs import assert_nothing_is_left, session_members, wait_for


def bench_file(folder: Path, **fields: Any) -> Path:
    if not (folder / "pictures").exists():
        draw_pictures(folder / "pictures")
    common = values(folder / "pictures", rounds=1)
    grid = {name: common.pop(name) for name in ("algorithm", "target")}
    content = {"name": "small", "algorithms": [grid["algorithm"]], "targets": [grid["target"]], "seeds": [0], "spec": common, **fields}
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def ended(folder: Path) -> tuple[int, str, str]:
    """Two algorithms on two targets, of which one cell fails: its silos can never be in time. And an exact run."""
    exact = values(folder / "pictures", rounds=1, target="yew")
    spec = bench_file(
        folder, algorithms=["fedavg", "fedprox"], targets=["yew", "ash"], per_algorithm={"fedprox": {"deadline": 0.001}}, exact=exact
    )
    words = ("bench", spec, "--out", folder / "out", "--history", (folder / "nights").as_uri(), "--json")
    return finish(command(*words, env={**os.environ, IMAGE: "siloflow@sha256:0123"}))  # as a pod is told


def test_a_failing_cell_is_recorded_and_the_others_go_on(ended: tuple[int, str, str], folder: Path) -> None:
    code, out, err = ended
    assert code == 3, err
    told = json.loads(out)
    assert [one["cell"] for one in told["failed"]] == ["fedprox/yew/0", "fedprox/ash/0"]
    assert "deadline" in told["failed"][0]["error"] and err.splitlines()[-1].startswith("error: 2 cells failed; fedprox/yew/0: ")
    assert set(told["average"]["last"]) == {"fedavg"} and told["verdict"] == "not gated"
    assert "failed, exit code 3" in err and "\x1b" not in err


def test_a_row_says_what_was_run_on_what(ended: tuple[int, str, str], folder: Path) -> None:
    rows = {(one["algorithm"], one["target"], one["exact"]): one for one in read_rows(folder / "out/results.jsonl")}
    assert len(rows) == 5
    done = rows["fedavg", "yew", False]
    assert set(done["accuracy"]) == {"last", "best_validation", "oracle"} and 0 <= done["accuracy"]["last"] <= 1
    assert done["setting"]["rounds"] == 1 and done["silos"] == 3 and len(done["digest"]) == len(done["spec_digest"]) == 64
    assert done["data"].startswith("blake3:") and {"torch", "processor", "cores"} <= set(done["system"]) and done["cpu_seconds"] > 0
    assert done["bytes"]["up"] > 0 and done["commit"] and str(folder) not in json.dumps(done)
    assert done["system"]["image"] == "siloflow@sha256:0123"
    assert rows["fedavg", "yew", True]["data"] == done["data"], "the checksum is that of the images, whatever is done with them"


def test_what_it_writes(ended: tuple[int, str, str], folder: Path) -> None:
    entries = json.loads((folder / "out/perf.json").read_text())
    assert [entry["name"] for entry in entries] == ["fedavg: CPU seconds a round", "fedavg: uploaded a round"]
    assert all(set(entry) == {"name", "unit", "value", "range", "extra"} and entry["value"] > 0 for entry in entries)
    table = (folder / "out/table.md").read_text()
    assert "| algorithm | yew | ash | average | seeds |" in table and "- fedprox/yew/0: exit code 3" in table
    assert "<title>" in (folder / "out/report.html").read_text()
    assert not any((folder / "out/runs").glob("*fedavg*")), "run folders of finished cells are not kept"
    nights = json.loads((folder / "nights/global/benchmarks/small/history.json").read_text())["nights"]
    assert [one["failed"] for one in nights] == [2]


def test_called_again_it_runs_only_what_is_missing(ended: tuple[int, str, str], folder: Path) -> None:
    before = read_rows(folder / "out/results.jsonl")
    exact = values(folder / "pictures", rounds=1, target="yew")
    spec = bench_file(folder, algorithms=["fedavg"], targets=["yew", "ash"], exact=exact)
    code, out, err = finish(command("bench", spec, "--out", folder / "out", "--json", "--only", "fedavg"))
    assert code == 0, err
    assert json.loads(out)["cells"] == 3, "what is there is shown, also what was not asked for"
    assert "cells to run" not in err and read_rows(folder / "out/results.jsonl") == before
    other = bench_file(folder, algorithms=["fedavg"], spec={**yaml.safe_load(spec.read_text())["spec"], "rounds": 2})
    refused = invoke("bench", other, "--out", folder / "out")
    assert refused.exit_code == 2 and "fedavg/yew/0 is there with another spec" in refused.stderr, refused.stderr


def test_interrupted_then_killed_then_done_with_the_same_digests(tmp_path: Path) -> None:
    """Ctrl-C in the first cell; a lane killed in the second; the third call ends it as if nothing had been."""
    spec = bench_file(tmp_path, targets=["yew", "ash"], spec=_long(tmp_path))
    process = command("bench", spec, "--out", tmp_path / "out", "--workers", "1")
    runs = tmp_path / "out/runs"
    wait_for(lambda: any(runs.glob("*/store/global/runs/*/rounds/3")), process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130 and err.splitlines()[-1] == "error: interrupted; the same command goes on where it stopped"
    assert_nothing_is_left(process)
    assert not (tmp_path / "out/results.jsonl").exists()

    done = len(list(runs.glob("*/store/global/runs/*/rounds/*")))
    process = command("bench", spec, "--out", tmp_path / "out", "--workers", "1")
    wait_for(lambda: len(list(runs.glob("*/store/global/runs/*/rounds/*"))) > done + 1, process)
    (lane,) = (child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline()))
    lane.kill()
    code, _, err = finish(process)
    assert code == 1 and "was ended (SIGKILL)" in err
    assert [one["status"] for one in read_rows(tmp_path / "out/results.jsonl")] == ["failed", "done"]

    code, _, err = finish(command("bench", spec, "--out", tmp_path / "out", "--workers", "2"))
    assert code == 0, err
    rows = {one["target"]: one for one in read_rows(tmp_path / "out/results.jsonl")}
    (undisturbed,) = (Run(dict(item.values), tmp_path / "run") for item in work_of(read_bench(spec)) if item.cell.target == "yew")
    assert set(rows) == {"yew", "ash"} and rows["yew"]["digest"] == undisturbed.result()["digest"]


def _long(folder: Path) -> dict[str, Any]:
    draw_pictures(folder / "pictures")
    spec = values(folder / "pictures", rounds=30, evaluate_every=30)
    return {name: value for name, value in spec.items() if name not in ("algorithm", "target")}


def test_the_parent_killed_leaves_nobody_behind(tmp_path: Path) -> None:
    process = command("bench", bench_file(tmp_path, spec=_long(tmp_path)), "--out", tmp_path / "out")
    wait_for(lambda: any((tmp_path / "out/runs").glob("*/store/global/runs/*/rounds/2")), process)
    assert len(session_members(process.pid)) > 3
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert_nothing_is_left(process)


# ---- the file


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"algorithms": ["fedavgg"]}, "algorithms 'fedavgg': did you mean 'fedavg'?"),
        ({"algorithms": []}, "algorithms"),
        ({"spec": {"seed": 1}}, "spec.seed: is set by the grid"),
        ({"spec": {"hyper": {"lrr": 1}}}, "spec.hyper.lrr: no algorithm of this benchmark has it; did you mean 'lr'?"),
        ({"per_algorithm": {"fedavg": {"hyper": {"mu": 1}}}}, "per_algorithm.fedavg.hyper.mu: unknown to fedavg"),
        ({"per_algorithm": {"fedavg": {"round": 1}}}, "cell fedavg/yew/0: unknown field 'round': did you mean 'rounds'?"),
        ({"name": "../x"}, "name: expected"),
        ({"nam": "x"}, "unknown field 'nam'"),
        ({"exact": {"algorithm": "nothing"}}, "algorithm 'nothing'"),
    ],
)
def test_wrong_input_is_one_line_before_anything_runs(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    content = {"name": "x", "algorithms": ["fedavg"], "targets": ["yew"], "spec": {"rounds": 1}, **fields}
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(content))
    refused = invoke("bench", tmp_path / "bench.yaml", "--out", tmp_path / "out")
    assert refused.exit_code == 2 and said in refused.stderr and refused.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_store_or_a_baseline_that_is_not_there_is_known_before_hours_of_work(tmp_path: Path) -> None:
    spec = bench_file(tmp_path)
    refused = invoke("bench", spec, "--out", tmp_path / "out", "--gate", tmp_path / "none.json")
    assert refused.exit_code == 2 and not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    refused = invoke("bench", spec, "--out", tmp_path / "out", "--history", (tmp_path / "file").as_uri())
    assert refused.exit_code == 4 and not (tmp_path / "out").exists()


def test_cells_are_seeds_then_algorithms_then_targets_and_share_what_they_have(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(yaml.safe_dump({
        "name": "x", "algorithms": ["fedavg", "fedprox"], "targets": [1, "b"], "seeds": [0, 7],
        "spec": {"rounds": 2, "hyper": {"lr": 0.1, "mu": 0.5}}, "per_algorithm": {"fedprox": {"rounds": 3, "hyper": {"lr": 0.2}}},
    }))  # fmt: skip
    work = work_of(read_bench(path, ["rounds=4"]))
    assert [str(item.cell) for item in work[:5]] == ["fedavg/1/0", "fedavg/b/0", "fedprox/1/0", "fedprox/b/0", "fedavg/1/7"]
    assert work[0].values == {"threads": 1, "rounds": 4, "algorithm": "fedavg", "target": "1", "seed": 0, "hyper": {"lr": 0.1}}
    assert (work[2].values["rounds"], work[2].values["hyper"]) == (3, {"lr": 0.2, "mu": 0.5})
    assert [str(item.cell) for item in chosen(work, ["fedprox"])[:2]] == ["fedprox/1/0", "fedprox/b/0"]


def test_every_file_of_the_repository_is_a_benchmark() -> None:
    files = [Path("bench/nightly.yaml"), *sorted(Path("bench/reproduce").glob("*.yaml"))]
    assert len(files) > 3
    for path in files:
        assert work_of(read_bench(path))


def test_names_of_runs_are_of_the_night_and_fit_into_a_store() -> None:
    work = Work(Cell("fedavg", "Real World", 0, exact=True), {})
    assert work.run_name("2026-01-01") == "2026-01-01-fedavg-Real-World-0-exact"
    assert len(Work(Cell("a" * 90, "b" * 90, 0), {}).run_name("x")) == 100


# ---- rows and tables


def test_a_row_cut_off_by_a_kill_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    append(file, row())
    with file.open("a") as opened:
        opened.write('{"bench": "sma')
    assert len(read_rows(file)) == 1
    mend(file)
    append(file, row(seed=1))
    assert [one["seed"] for one in read_rows(file)] == [0, 1]


def test_failed_cells_are_tried_again_and_the_newest_row_counts(tmp_path: Path) -> None:
    file, work = tmp_path / "results.jsonl", [Work(Cell("fedavg", "yew", 0), {})]
    append(file, failed())
    assert still_to_do(work, read_rows(file), file) == work
    append(file, row(asked=work[0].digest))
    assert still_to_do(work, read_rows(file), file) == []


def test_the_table_is_laid_out_as_in_papers() -> None:
    text = markdown(small(), "siloflow bench x")
    first = text.split("## ")[1]
    assert "| algorithm | yew | oak | average | seeds |" in first
    lines = [line for line in first.splitlines() if line.startswith("| fed")]
    assert lines == ["| fedprox | 55.0 ± 1.2 | 65.0 ± 1.2 | 60.0 ± 1.2 | 3 |", "| fedavg | 50.0 ± 1.2 | 60.0 ± 1.2 | 55.0 ± 1.2 | 3 |"]
    assert "oracle: not a result" in text


def test_published_values_stand_beneath_and_say_what_is_different() -> None:
    setting = {"image_size": 96, "weights": "x", "backbone": "mobilenet-v2", "rounds": 3, "silos_per_domain": 2}
    rows = [row("fedavg", target, 0, dataset="pacs", setting=setting) for target in ("photo", "art_painting", "cartoon", "sketch")]
    text = markdown(rows, "siloflow bench x")
    assert "*FedCCRL, Table 1 (" in text and "other setting:" in text and "backbone mobilenet-v3-large, here mobilenet-v2" in text
    assert "same setting" not in text


def test_speed_is_the_median_over_runs() -> None:
    seconds = next(entry for entry in perf(small()) if entry["name"] == "fedavg: CPU seconds a round")
    assert (seconds["value"], seconds["range"], seconds["extra"]) == (2.5, "± 0.5", "median of 6 runs; P")


def test_cores_are_divided_and_never_shared() -> None:
    assert divided([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3]]
    assert divided([0, 1], 5) == [[0], [1]]
    assert divided([3], 1) == [[3]]


def test_the_exact_run_gets_kernels_of_any_cpu(ended: tuple[int, str, str], folder: Path) -> None:
    """Run by hand with the same settings it has the same digest: what is golden can be looked into without the benchmark."""
    (golden,) = (one["digest"] for one in read_rows(folder / "out/results.jsonl") if one["exact"])
    spec = folder / "exact.yaml"
    spec.write_text(yaml.safe_dump({**values(folder / "pictures", rounds=1), "seed": 0, "threads": 1}))
    code, out, err = finish(command("run", spec, "--no-report", "--json", "--out", folder / "exact", env={**os.environ, **PORTABLE}))
    assert code == 0, err
    assert json.loads(out)["digest"] == golden
