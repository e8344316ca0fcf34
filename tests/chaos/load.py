"""Load and age: many silos on one server, many runs in one store, many rounds in one run."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from pipelines.local import LocalEngine
from tests.chaos.rows import Row
from tests.federations import DOMAINS, Run, draw_pictures, values
from tests.minio_server import running_minio

MODELS = 4.0  # what a server step may add to the server's memory, in models, whatever the number of silos
GROWTH = {"memory": 32 << 20, "files": 2, "threads": 1}  # between an early round and the last one, of any process
TINY = {"steps_per_epoch": 1, "batch_size": 8}


# ---- many silos


def server_step(silos: int, backbone: str, store: str | None = None) -> dict[str, Any]:
    """Memory and seconds of one server step, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="siloflow-load-") as folder:
        place = store or Path(folder, "store").as_uri()
        command = [sys.executable, "-m", "bench.server_memory", str(silos), folder, place, backbone]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


# ---- many runs


def _settle(environment: dict[str, str]) -> None:
    """The process that workers are forked from may be older than the keys to the store."""
    os.environ.update(environment)
    torch.set_num_threads(1)


def _digest(spec: dict[str, Any], folder: Path) -> str:
    return Run(spec, folder).digest


def together(specs: Sequence[dict[str, Any]], folders: Sequence[Path]) -> list[str]:
    """Digests of runs that all go on at the same time, each in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.federations"])
    with ProcessPoolExecutor(len(specs), context, initializer=_settle, initargs=(dict(os.environ),)) as pool:
        return list(pool.map(_digest, specs, folders))


def shared_store(runs: int, folder: Path, store: str) -> tuple[list[str], list[str]]:
    """Digests of runs in one store, and of the same runs in stores of their own; every run has another seed and another name."""
    pictures = draw_pictures(folder / "pictures")
    common: dict[str, Any] = {"sources": list(DOMAINS[:2]), "keep_rounds": 1, "rounds": 3}
    specs = [values(pictures, "fedccrl", TINY, seed=seed, **common) for seed in range(runs)]
    alone = together(specs, [folder / "alone" / f"run-{number}" for number in range(runs)])
    at_once = together([{**spec, "store": store} for spec in specs], [folder / "shared" / f"run-{number}" for number in range(runs)])
    return at_once, alone


# ---- many rounds


class Ages:
    """A view that weighs every process of the run at some rounds, and notes when each round ended (pipelines.local.View)."""

    def __init__(self, at: Sequence[int]) -> None:
        self.at = set(at)
        self.ended: dict[int, float] = {}
        self.weights: dict[int, dict[str, dict[str, int]]] = {}
        self.engine: LocalEngine | None = None

    def planned(self, plan: Mapping[str, Any]) -> None: ...

    def began(self, round: int, exchange: str, participants: Sequence[str]) -> None: ...

    def progress(self, worker: str, stage: str, done: int, total: int, rate: float, loss: float | None) -> None: ...

    def warn(self, message: str) -> None:
        raise AssertionError(message)

    def finished(self, result: Mapping[str, Any]) -> None: ...

    def done(self, worker: str, action: str, outcome: Mapping[str, Any]) -> None:
        if action == "server":
            self.ended[outcome["round"]] = time.monotonic()
            if outcome["round"] in self.at and self.engine is not None:
                processes = {
                    "engine": psutil.Process(),
                    **{name: psutil.Process(w.process.pid) for name, w in self.engine._workers.running.items()},
                }
                self.weights[outcome["round"]] = {name: _weight(process) for name, process in processes.items()}


def _weight(process: psutil.Process) -> dict[str, int]:
    return {"memory": process.memory_info().rss, "files": process.num_fds(), "threads": process.num_threads()}


def aged(rounds: int, early: int, folder: Path) -> dict[str, Any]:
    """A run of many small rounds with real worker processes: what grew between an early round and the last, and what is left."""
    view = Ages([early, rounds])
    engine = LocalEngine(values(draw_pictures(folder / "pictures"), "fedavg", TINY, rounds=rounds, threads=1), folder / "run", view)
    view.engine = engine
    result = engine.run()
    finished = time.monotonic()
    first, last = view.weights[early], view.weights[rounds]
    grown = {
        f"{name}: {what} from {first[name][what]} to {last[name][what]}"
        for name in first
        for what, most in GROWTH.items()
        if last[name][what] - first[name][what] > most
    }
    tenth = max(1, rounds // 10)
    return {
        "grown": sorted(grown),
        "memory": max(last[name]["memory"] - first[name]["memory"] for name in first),
        "round_seconds": [(view.ended[end] - view.ended[end - tenth]) / tenth for end in (early + tenth, rounds)],
        "finish_seconds": finished - view.ended[rounds],
        "models": len(list((folder / "run" / "store").rglob("model.safetensors"))),
        "rounds": len(result["history"]),
        "counted": sum(entry["target_accuracy"] is not None for entry in result["history"]),
    }


# ---- the campaign


def campaign(full: bool) -> Iterator[Row]:
    runs, rounds = (10, 500) if full else (3, 60)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="siloflow-load-")))
        patch.setenv("SILOFLOW_CACHE", str(folder / "cache"))
        minio = stack.enter_context(running_minio())
        for name, value in minio.environment.items():
            patch.setenv(name, value)
        for kind, store in (("file://", None), ("s3://", f"s3://{minio.endpoint}/silos")):
            yield _silos(50, "resnet-18" if full else "small-cnn", kind, store)
        for kind, store in (("file://", (folder / "store").as_uri()), ("s3://", f"s3://{minio.endpoint}/runs")):
            yield _runs(runs, folder / kind[:-3], kind, store)
        yield _rounds(rounds, folder / "aged")


def _silos(silos: int, backbone: str, kind: str, store: str | None) -> Row:
    found = server_step(silos, backbone, store)
    row = Row("load", f"{silos} silos x {found['model_bytes'] / 1e6:.1f} MB on one server, {kind}")
    row.note = f"the server step adds {found['models']:g} models to the server's memory"
    row.attempt(found["models"] <= MODELS, found["seconds"], f"{found['models']:g} models, expected at most {MODELS:g}")
    return row


def _runs(runs: int, folder: Path, kind: str, store: str) -> Row:
    row = Row("load", f"{runs} runs at once in one store, {kind}")
    for number, (found, expected) in enumerate(zip(*shared_store(runs, folder, store), strict=True)):
        row.attempt(found == expected, lost=f"run {number}: another digest than alone")
    return row


def _rounds(rounds: int, folder: Path) -> Row:
    found = aged(rounds, rounds // 10, folder)
    row = Row("load", f"{rounds} rounds in one run: memory, open files, threads, models in the store")
    early, late = (f"{1000 * seconds:.0f}" for seconds in found["round_seconds"])
    row.note = (
        f"largest growth {found['memory'] / 2**20:.1f} MB, a round takes {early} ms early and {late} ms at the end, "
        f"the result {found['finish_seconds']:.1f} s, {found['models']} models are left"
    )
    complete = found["rounds"] == found["counted"] == rounds
    lost = [*found["grown"], *([] if complete else ["rounds without a count"]), *([] if found["models"] <= 16 else ["models pile up"])]
    row.attempt(not lost, lost="; ".join(lost))
    return row
