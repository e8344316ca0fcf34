"""A benchmark of seconds, and its baseline as this machine makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.pipelines.commands import command, finish

BENCHMARK: dict[str, Any] = {
    "name": "small", "algorithms": ["fedavg"], "targets": ["paper"], "seeds": [0, 1],
    "spec": {"dataset": "styled-digits", "rounds": 2, "hyper": {"epochs": 1, "steps_per_epoch": 5}},
    "exact": {"algorithm": "fedavg", "dataset": "styled-digits", "target": "paper", "rounds": 1, "hyper": {"steps_per_epoch": 2}},
}  # fmt: skip
FIRST = "history: nothing to compare with for speed fedavg; this night is kept, the next one will have it"
RED = "1 of 3 gates failed: speed fedavg"


def accepted_here(folder: Path, *words: str) -> dict[str, Any]:
    """The results of this machine as the baseline; `words` are of the command that makes them.

    It claims another machine: the speed of a first night would be compared with it, and a busy machine could not pass.
    """
    file, out, baseline = folder / "small.yaml", folder / "accepted", folder / "baseline.json"
    file.write_text(json.dumps(BENCHMARK))
    for call in (("bench", file, "--out", out, *words), ("gate", out / "results.jsonl", "--baseline", baseline, "--accept")):
        code, _, said = finish(command(*call), 600)
        assert code == 0, said
    found: dict[str, Any] = json.loads(baseline.read_text())
    found["system"]["processor"] = "another"
    return found


def as_if_nights_had_cost(history: dict[str, Any], factor: float) -> dict[str, Any]:
    """So many times as much: what the speed gate then says does not depend on a busy machine."""
    for entry in (entry for night in history["nights"] for entry in night["perf"]):
        entry["value"] *= factor
    return history
