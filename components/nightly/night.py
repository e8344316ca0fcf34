"""One night of the benchmark in a pod: the command that every night runs, and what a pipeline shows of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from components.errors import SiloflowError

FOLDER = Path("/opt/siloflow/bench")  # images/Dockerfile puts both files there
SPEC, BASELINE = "nightly.yaml", "baseline.json"
RESULTS, PERF, REPORT = "results.jsonl", "perf.json", "report.html"
RULE = "last"  # what the gate looks at


def command(spec: str | Path, out: str | Path, history: str, baseline: str | Path) -> list[str]:
    """Of every night, whoever starts it: .github/workflows/nightly.yml and the chart spell the same words."""
    return ["siloflow", "bench", str(spec), "--out", str(out), "--history", history, "--gate", str(baseline)]


class Ended(NamedTuple):
    """`why`: what the command said last if it did not end well."""

    code: int
    why: str
    figures: dict[str, float]


def night_task(store: str, job: str, benchmark: Mapping[str, Any], baseline: Mapping[str, Any], page: str) -> Ended:
    """Run the command under a name of its own and put its report at `page`. An empty mapping stands for the image's file.

    A night that is red has a report as well, and whoever looks at a red night wants it: so this returns the exit code. Only where
    there is no report, there is nothing to show, and the command's exit code is this task's.
    """
    folder = Path(tempfile.mkdtemp(prefix="night-"))
    given = {name: _file(folder, name, values) for name, values in ((SPEC, benchmark), (BASELINE, baseline))}
    out = folder / job
    code, why = _run(command(given[SPEC], out, store, given[BASELINE]))
    if not (out / REPORT).is_file():
        error = SiloflowError(why or f"{SPEC}: ended with exit code {code} and without a report; its log says why")
        error.exit_code = code or SiloflowError.exit_code
        raise error
    Path(page).write_bytes((out / REPORT).read_bytes())
    return Ended(code, why, {"exit_code": float(code), **_figures(out)})


def verdict_task(code: int, why: str) -> None:
    """Ends as the night did."""
    if code:
        error = SiloflowError(why or f"the night ended with exit code {code}; the report of the task before this says why")
        error.exit_code = code
        raise error
    print("the night is green")


def _file(folder: Path, name: str, values: Mapping[str, Any]) -> Path:
    if not values:
        return FOLDER / name
    path = folder / name
    path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    return path


def _run(words: Sequence[str]) -> tuple[int, str]:
    """Exit code, and the last line that says what is wrong. All it says goes to the log while it says it."""
    why = ""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            why = line.strip().removeprefix("error: ") if line.startswith("error: ") else why
    code = process.returncode
    return (code, why) if code >= 0 else (128 - code, f"ended by signal {-code}, 9 where the memory limit was reached")


def _figures(out: Path) -> dict[str, float]:
    """Accuracy of every algorithm on every target, a mean over the seeds, and what the night cost."""
    accuracies: dict[str, list[float]] = {}
    for row in _rows(out / RESULTS):
        value = (row.get("accuracy") or {}).get(RULE)
        if row.get("status") == "done" and not row.get("exact") and value is not None:
            accuracies.setdefault(f"{row['algorithm']}/{row['target']}", []).append(float(value))
    means = {f"accuracy {place}": sum(values) / len(values) for place, values in accuracies.items()}
    costs = json.loads((out / PERF).read_text(encoding="utf-8")) if (out / PERF).is_file() else []
    return {**means, **{str(cost["name"]): float(cost["value"]) for cost in costs}}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The newest of every cell: one that failed and was tried again has two."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.strip()]
    yield from {(row["algorithm"], row["target"], row["seed"], bool(row.get("exact"))): row for row in rows}.values()
