"""Fuzzing of everything that parses foreign bytes, in a process of its own: what it dies of is a find too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.chaos.rows import Row
from tests.fuzz.run import MOST_MEMORY

INPUTS, SAMPLE = 100_000, 5_000
SUBJECTS = {
    "manifest": "manifest of an update, damaged",
    "payload": "payload of an update, damaged",
    "vouched": "payload, damaged, with a manifest that vouches for it",
    "header": "safetensors file, damaged",
    "broadcast": "manifest of a broadcast, damaged",
    "inbox": "manifest of an inbox, damaged",
    "spec": "spec, damaged",
    "silos": "silos file, damaged",
}


def campaign(full: bool) -> Iterator[Row]:
    command = [sys.executable, "-m", "tests.fuzz.run", str(INPUTS if full else SAMPLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield _row(json.loads(line))
    if process.returncode:
        yield Row("fuzz", "the fuzzer's own process", tried=1, lost=[f"ended with exit code {process.returncode}"])


def _row(findings: dict[str, Any]) -> Row:
    finds = [f"{what}: {find}" for what in ("crashes", "hangs", "accepted") for find in findings[what]]
    bad = sum(findings["kinds"].get(kind, 0) for kind in ("crash", "hang", "accepted"))
    memory = findings["memory"] >> 20
    if findings["memory"] > MOST_MEMORY:
        bad, finds = max(bad, 1), [*finds, f"{memory} MB above baseline"]
    note = f"slowest {findings['slowest']} s, at most {memory} MB above baseline"
    return Row("fuzz", SUBJECTS[findings["target"]], findings["inputs"], findings["inputs"] - bad, lost=finds, note=note)
