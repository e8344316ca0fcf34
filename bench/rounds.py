"""What the rounds of a real local run cost: a run in a process of its own, watched from outside."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.observe import Observed, observe


class Marks:
    """Notes when each round begins; everything else a view could show is ignored (pipelines.local.View)."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def began(self, round: int, exchange: str, participants: Any) -> None:
        if round > 0:
            self.times.append(time.time())

    def finished(self, result: Any) -> None:
        self.times.append(time.time())

    planned = progress = done = warn = lambda *_, **__: None


def cost(seen: Observed, marks: list[float]) -> dict[str, float]:
    """Per round, without the first and the last: they start processes, and evaluate the final model. At least three rounds."""
    between = [later - earlier for earlier, later in pairwise(marks[1:-1])]
    cpu = (seen.cpu_at(marks[-2]) - seen.cpu_at(marks[1])) / len(between)
    return {
        "seconds_per_round": round(statistics.median(between), 4),
        "fastest_round": round(min(between), 4),
        "cpu_seconds_per_round": round(cpu, 4),
        "peak_pss_mb": round(seen.peak_pss / 1e6, 1),
    }


def watched(spec: dict[str, Any]) -> dict[str, float]:
    """The cost of a run of this spec in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        log = Path(folder) / "marks.json"
        environment = {**os.environ, "SILOFLOW_CACHE": os.environ.get("SILOFLOW_CACHE", f"{folder}/cache")}
        seen = observe([sys.executable, "-m", "bench.rounds", json.dumps(spec), log], environment)
        store = Path(folder) / "run" / "store" / "global"
        model = max(path.stat().st_size for path in store.rglob("*.safetensors"))
        return {**cost(seen, json.loads(log.read_text())), "model_mb": round(model / 1e6, 2)}


def main() -> None:
    from pipelines.local import LocalEngine

    spec, log, marks = json.loads(sys.argv[1]), Path(sys.argv[2]), Marks()
    LocalEngine(spec, log.parent / "run", marks).run()
    log.write_text(json.dumps(marks.times))


if __name__ == "__main__":
    main()
