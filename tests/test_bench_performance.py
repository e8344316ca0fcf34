"""docs/performance.md is made of what was measured, and what measures it still runs: every part once, as small as it can be."""

from __future__ import annotations

import gc
import json
import mmap
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import __main__ as bench
from bench import (
    chart,
    cluster,
    exchange,
    flower,
    machine,
    memory,
    page,
    pipelines,
    s3,
    scaling,
    scrape,
    sections,
    server_memory,
    silo_memory,
)
from bench import workers as at_once
from bench.observe import Observed, growing, observe
from bench.rounds import cost
from tests.minio_server import Unavailable, skip_or_fail

ROOT = Path(__file__).parents[1]
SECTIONS = {section.part: section for section in sections.SECTIONS}
Patch = pytest.MonkeyPatch


@pytest.fixture
def small(monkeypatch: Patch, tmp_path: Path) -> Callable[..., None]:
    """Sets constants of a module, in a place that has a data cache of its own."""
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))

    def shrink(module: Any, **constants: Any) -> None:
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)

    return shrink


# ---- the page


def test_the_page_and_its_figures_are_what_the_data_makes() -> None:
    made = page.files(page.read(ROOT))
    for path, text in made.items():
        assert (ROOT / "docs" / path).read_text() == text, f"docs/{path} is not made of its data; run `make bench ARGS=--page`"
    drawn = {f"img/{file.name}" for file in (ROOT / "docs" / "img").glob("performance-*.svg")}
    assert drawn == set(made) - {"performance.md"}


def test_every_part_has_a_section_and_a_way_to_measure_it() -> None:
    assert {*bench.PARTS, sections.CLUSTER} == set(SECTIONS)
    for part in bench.PARTS:
        assert (ROOT / "bench" / f"{part}.py").is_file() or (ROOT / "bench" / part / "__main__.py").is_file()


@pytest.mark.parametrize("part", SECTIONS)
def test_a_missing_part_is_said_and_the_others_are_shown(part: str) -> None:
    known = page.read(ROOT)
    known.pop(part, None)
    made = page.files(known)
    assert f"## {SECTIONS[part].title}\n\nNot measured yet: {SECTIONS[part].command}.\n" in made["performance.md"]
    assert made["performance.md"].count("Not measured yet") == len(set(SECTIONS) - set(known))
    assert SECTIONS[part].figure not in made


def test_a_page_of_nothing() -> None:
    assert page.files({})["performance.md"].count("Not measured yet") == len(SECTIONS)


def test_a_part_that_is_measured_again_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page.keep(tmp_path, {"s3": {"measured": 1}, "memory": {"measured": 2}})
    page.keep(tmp_path, {"s3": {"measured": 3}})
    assert page.read(tmp_path) == {"s3": {"measured": 3}, "memory": {"measured": 2}}


@pytest.mark.parametrize(("others", "said"), [(0.1, False), (1.5, True)])
def test_the_page_says_what_was_measured_under_load(others: float, said: bool) -> None:
    quiet, then = {"load": 0.5, "cores_of_others": 0.0}, {"load": 3.0, "cores_of_others": others}
    part = {"date": "2026-01-01", "commit": "abc", "seconds": 9, "machine": {**machine.machine(), "before": quiet, "after": then}}
    text = page.about(part, "`make`")
    assert ("measured under load" in text) is said
    assert f"others kept 0.0 and {others} cores busy" in text


# ---- the figures


def test_figures_are_images_on_their_own_in_light_and_dark() -> None:
    made = chart.figures(page.read(ROOT))
    for text in made.values():
        root = ElementTree.fromstring(text)
        assert root.attrib["aria-label"]
        assert "prefers-color-scheme: dark" in text
        assert "<script" not in text and "href" not in text


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    both = {"seconds_per_round": 1.0, "cpu_seconds_per_round": 1.0, "peak_pss_mb": 100.0}
    root = ElementTree.fromstring(chart.bars({"siloflow": both, "flower": {**both, "seconds_per_round": 4.0}}))
    widths = [float(one.attrib["width"]) for one in root.iter() if "bar" in one.attrib.get("class", "").split()]
    assert widths == [25.0, 100.0, 100.0, 100.0, 100.0, 100.0]


@pytest.mark.parametrize("most", [0.013, 0.7, 1.0, 9.9, 13.6, 4200.0])
def test_ticks_cover_the_largest_value_in_round_steps(most: float) -> None:
    marks = chart.ticks(most)
    assert marks[0] == 0 and marks[-2] < most <= marks[-1] and len(marks) <= 7


def test_labels_that_would_cover_each_other_move_apart() -> None:
    assert chart.apart([10.0, 90.0]) == [10.0, 90.0]
    first, second = chart.apart([50.0, 52.0])
    assert second - first == 15 and first + second == 102


# ---- the command


def test_a_part_that_fails_stays_as_it_was(tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    page.keep(tmp_path, {"s3": {"kept": True}})
    before = (tmp_path / "docs" / "performance.json").read_text()
    monkeypatch.setattr(page, "write", lambda root: None)
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "s3"])
    monkeypatch.setattr(bench, "busy", dict)
    assert bench.main() == 1  # there is no bench to run in that folder
    assert "error: s3: ended with 1; what is known of it stays" in capsys.readouterr().err
    assert (tmp_path / "docs" / "performance.json").read_text() == before


def test_a_part_runs_in_its_own_process_and_says_where(monkeypatch: Patch) -> None:
    answer = subprocess.CompletedProcess([], 0, '{"figure": 1}')
    monkeypatch.setattr(bench, "busy", lambda: {"load": 0.0, "cores_of_others": 0.0})
    monkeypatch.setattr(bench, "commit", lambda: "abc")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    found = bench.measured("s3")
    assert found["measured"] == {"figure": 1}
    assert found["machine"]["cores"] >= 1 and found["commit"] == "abc" and found["date"] == machine.today()


LOG = """
tests/cluster/test_pipelines.py ..{"pods": 3, "tasks": 2, "seconds": 40.0, "seconds_per_task": 20.0, "own": 1}
.{"bytes_per_step": [10, 30, 20], "allowed": 99, "spec": 5}
{not json
2 passed
"""


def test_the_figures_of_a_cluster_are_read_from_the_log() -> None:
    found = cluster.printed(LOG)
    assert found == {"pods": 3, "tasks": 2, "seconds": 40.0, "seconds_per_task": 20.0, "bytes_per_step": [10, 30, 20]}
    assert "| 10 to 30 |" in sections.cluster(found)


def test_a_log_without_them_is_refused(tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("2 passed\n")
    monkeypatch.setattr(sys, "argv", ["cluster", str(tmp_path / "log"), "--about", "a cluster"])
    assert cluster.main() == 2
    assert "found no 'pods'" in capsys.readouterr().err


# ---- how it is measured


def test_cpu_seconds_lie_between_samples() -> None:
    seen = Observed(10**6, [(0.0, 0.0), (2.0, 1.0), (4.0, 5.0)])
    assert [seen.cpu_at(moment) for moment in (-1.0, 0.0, 1.0, 3.0, 4.0, 9.0)] == [0.0, 0.0, 0.5, 3.0, 5.0, 5.0]
    found = cost(seen, [0.0, 1.0, 2.0, 3.0, 9.0])  # the first round and the last do not count
    assert found == {"seconds_per_round": 1.0, "fastest_round": 1.0, "cpu_seconds_per_round": 1.25, "peak_pss_mb": 1.0}


def test_a_command_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match="no such luck"):
        observe([sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_memory_that_is_given_back_is_still_the_peak() -> None:
    gc.collect()  # what else this process gives back meanwhile would hide as much
    # Pages from the kernel: a bytearray may be served from what earlier tests freed and the allocator kept, and nothing grows.
    with growing() as growth, mmap.mmap(-1, 256 << 20) as block:
        block[::4096] = b"x" * len(block[::4096])
        give_up = time.monotonic() + 60
        while growth.bytes < 128 << 20 and time.monotonic() < give_up:
            time.sleep(0.01)  # on a busy machine the one that looks may come late
    assert growth.bytes >= 128 << 20


def test_the_peer_has_the_same_model() -> None:
    from fl_algorithms.models import build_model

    weights = build_model("resnet-18", exchange.CLASSES, 3, 32).state_dict()
    sizes = [count * _product(shape) for count, shape in flower.SHAPES]
    floats = [tensor.numel() for tensor in weights.values() if tensor.is_floating_point()]
    assert abs(sum(sizes) - sum(floats)) < 0.001 * sum(floats)


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


# ---- every part, as small as it can be


def test_exchange(small: Callable[..., None], tmp_path: Path) -> None:
    small(exchange, BACKBONE="small-cnn", CLASSES=2, SILOS=("a",), ROUNDS=4, REPEATS=1, PEER=tmp_path / "nowhere")
    found = exchange.measure()
    assert found["siloflow"]["seconds_per_round"] > 0 and found["siloflow"]["peak_pss_mb"] > 50
    assert "Flower was not installed" in sections.exchange(found)
    assert "flower" not in chart.figures({"exchange": {"measured": found}})


PEER = """#!{python}
import json, sys, time
marks = []
for _ in range(int(sys.argv[2])):
    marks.append(time.time())
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
json.dump({{"version": "9.9", "marks": [*marks, time.time()]}}, open(sys.argv[4], "w"))
"""


def test_exchange_beside_a_peer(small: Callable[..., None], tmp_path: Path) -> None:
    """One that only counts time: Flower itself is there where `make bench` has been."""
    peer = tmp_path / "python"
    peer.write_text(PEER.format(python=sys.executable))
    peer.chmod(0o755)
    small(exchange, BACKBONE="small-cnn", CLASSES=2, SILOS=("a", "b"), ROUNDS=4, REPEATS=1, PEER=peer)
    found = exchange.measure()
    assert found["flower"]["seconds_per_round"] >= 0.2
    ours = found["siloflow"]["seconds_per_round"] / found["flower"]["seconds_per_round"]
    assert found["ratio"]["seconds_per_round"]["median"] == pytest.approx(ours, abs=0.001)
    assert found["ratio"]["peak_pss_mb"]["median"] > 1
    assert "Flower 9.9" in sections.exchange(found)
    assert "Flower" in chart.figures({"exchange": {"measured": found}})["flower"]


def test_scaling(small: Callable[..., None]) -> None:
    small(scaling, SILOS=(1, 2), STEPS={"small-cnn": 0}, REPEATS=1)
    found = scaling.measure()
    assert [row["silos"] for row in found["small-cnn"]] == [1, 2]
    assert all(row["seconds_per_round"] > 0 and row["peak_pss_mb"] > 50 for row in found["small-cnn"])
    assert sections.scaling(found).count("\n| 2 |") == 1
    ElementTree.fromstring(chart.curves({**found, "resnet-18": found["small-cnn"]}))


def test_workers(small: Callable[..., None]) -> None:
    small(at_once, ROUNDS=2, REPEATS=1, SPEC={**at_once.SPEC, "hyper": {"epochs": 1, "steps_per_epoch": 1}})
    found = at_once.measure()
    assert [row["workers"] for row in found["rows"]] == [1, 2] and found["silos"] == 4
    assert "| 1.00x |" in sections.workers(found)


def test_memory(small: Callable[..., None]) -> None:
    small(silo_memory, NETWORKS=("small-cnn",), SIZE=32)
    small(server_memory, SILOS=(1, 2), BACKBONE="small-cnn")
    found = memory.measure()
    row = found["silo"][0]
    assert row["needed_bytes"]["optimiser"] == 2 * row["needed_bytes"]["gradients"] > 0
    assert min(row["needed_bytes"]["activations"], row["silo_bytes"], row["glibc_bytes"], row["bare_bytes"]) > 0
    assert row["over_needed_bytes"] == row["silo_bytes"] - sum(row["needed_bytes"].values())
    assert [row["silos"] for row in found["server"]] == [1, 2]
    assert "| small CNN |" in sections.memory(found)


def test_s3(small: Callable[..., None], monkeypatch: Patch) -> None:
    for name in ("SILOFLOW_ACCESS_KEY", "SILOFLOW_SECRET_KEY"):
        monkeypatch.setenv(name, "replaced by the benchmark, and put back by the test")
    small(s3, MODEL_BYTES=800_000, REPETITIONS=2)
    try:
        found = s3.measure()
    except Unavailable as reason:
        skip_or_fail(f"S3 BENCHMARK: {reason}")
    assert 0 < found["put"]["our_mb_s"] <= found["put"]["our_best_mb_s"]
    assert "An update of 0.800 MB" in sections.s3(found)


@pytest.mark.timeout(600)  # nine tasks, each a process that imports torch
def test_pipelines(small: Callable[..., None]) -> None:
    spec = {**pipelines.SPEC, "sources": ["chalk"], "hyper": {"epochs": 1, "steps_per_epoch": 1}}
    small(pipelines, SILOS=("chalk",), SPEC=spec, SHORT=1, LONG=2, REPEATS=1)
    found = pipelines.measure()
    assert found["stepwise_kfp_local"]["tasks"] == 9
    assert found["round_seconds"]["resident"] > 0
    assert "for 9 tasks" in sections.pipelines(found)


def test_scrape(small: Callable[..., None]) -> None:
    small(scrape, EVERY=0.05)
    found = scrape.measure(0.5, 60)
    assert found["idle"]["scrapes"] > 0 and found["training"]["scrapes"] > 0 and found["series"] > 100
    assert "| training |" in sections.scrape(found)


def test_steps_are_measured_by_their_own_target(monkeypatch: Patch) -> None:
    called: list[Any] = []
    monkeypatch.setenv("MAKEFLAGS", "ARGS=--only")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: called.append((words, options["env"])))
    bench.measure_steps()
    (((words,), environment),) = called
    assert words == ["make", "bench-algorithms", "ARGS=--write"] and "MAKEFLAGS" not in environment
    assert all(found["rows"] for found in json.loads((ROOT / "docs" / "performance-algorithms.json").read_text()).values())
