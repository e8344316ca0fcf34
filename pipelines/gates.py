"""The gates of a benchmark: is it as accurate, as fast and bit for bit the same as it was?

    speed     the median CPU seconds a round, at most 1.15 x the median of the last seven nights on the same kind of machine,
              or of the accepted results, if they are of such a machine and there was no night yet
    accuracy  the mean over seeds, at least the reference minus two of its standard errors
    exact     the tiny run's digest, equal to the golden one

A gate that has nothing to compare with is never green.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from components.errors import GateError, InputError, SiloflowError
from components.report.bench_scores import Row, Scores
from components.spec import Strict, explain
from components.store.file import write_file
from pipelines.bench_rows import SPEED, exact_digest, perf

SLOWER = 1.15
NIGHTS = 7
ERRORS = 2.0
RULE = "last"  # the project's first selection rule
SAME_MACHINE = ("processor", "cores", "device")
Verdict = Literal["passed", "failed", "no baseline"]


class Reference(Strict):
    mean: Annotated[float, Field(ge=0, le=1)]
    error: Annotated[float, Field(ge=0, le=1)]
    seeds: Annotated[int, Field(ge=2)]


class Baseline(Strict):
    """What was accepted: target accuracy after the last round by algorithm/target, seconds by algorithm on the machine they were
    measured on, digests by what they may depend on."""

    bench: str
    when: str
    commit: str
    version: str
    system: dict[str, str]
    accuracy: dict[str, Reference]
    seconds: dict[str, float]
    exact: dict[str, str]


@dataclass(frozen=True)
class Gate:
    gate: Literal["accuracy", "speed", "exact"]
    name: str
    verdict: Verdict
    found: str
    expected: str


# ---- the baseline's file


def read_baseline(path: Path) -> Baseline:
    try:
        return Baseline.model_validate_json(path.read_bytes())
    except OSError as error:
        advice = f"`siloflow gate RESULTS --baseline {path} --accept` makes one of results that you trust"
        raise InputError(f"baseline {path}: cannot be read ({error.strerror}); {advice}") from None
    except ValidationError as error:
        raise InputError(f"baseline {path}: {explain(error, Baseline)}; make a new one with --accept") from None


def accept(rows: Sequence[Row], path: Path) -> Baseline:
    """Make these results the baseline. Golden digests of other systems stay while this system's is the same."""
    before = read_baseline(path).exact if path.exists() else {}
    references = {}
    for place, found in sorted(Scores(rows).places(RULE).items()):
        if found.error is None:
            raise InputError(f"{place}: expected two seeds or more, found one: a reference needs a standard error")
        references[place] = Reference(mean=found.mean, error=found.error, seeds=found.seeds)
    if not references:
        raise InputError("results: expected at least one finished cell, found none; nothing was accepted")
    found_exact = exact_digest(rows)
    golden = dict([found_exact]) if found_exact else {}
    kept = before if all(before.get(key, digest) == digest for key, digest in golden.items()) else {}
    first = Scores(rows).done[0]
    about = {name: first[name] for name in ("bench", "when", "commit", "version", "system")}
    baseline = Baseline(**about, accuracy=references, seconds=_seconds(perf(rows)), exact={**kept, **golden})
    try:
        write_file(path, [json.dumps(baseline.model_dump(), indent=1).encode() + b"\n"])
    except OSError as error:
        raise InputError(f"baseline {path}: cannot be written ({error.strerror}); choose another name") from None
    return baseline


# ---- the gates


def gates(rows: Sequence[Row], baseline: Baseline, nights: Sequence[Mapping[str, Any]]) -> list[Gate]:
    """`nights`: the history before this one."""
    benches = {row["bench"] for row in rows}
    if benches != {baseline.bench}:
        raise InputError(f"baseline: is of benchmark {baseline.bench!r}, the results are of {', '.join(map(repr, sorted(benches)))}")
    return [*_accuracy(rows, baseline), *_exact(rows, baseline), *_speed(rows, baseline, nights)]


def _accuracy(rows: Sequence[Row], baseline: Baseline) -> Iterable[Gate]:
    now = Scores(rows).places(RULE)
    for name in sorted(now.keys() | baseline.accuracy.keys()):
        reference, found = baseline.accuracy.get(name), now.get(name)
        if reference is None:
            yield Gate("accuracy", name, "no baseline", found.points() if found else "nothing", "a reference")
            continue
        least = reference.mean - ERRORS * reference.error
        expected = f"at least {100 * least:.1f} ({100 * reference.mean:.1f} - 2 x {100 * reference.error:.1f})"
        if found is None:
            yield Gate("accuracy", name, "failed", "no finished cell", expected)
        else:
            # as many digits as a float has: a mean that is the reference itself must not fail for rounding
            yield Gate("accuracy", name, "passed" if found.mean >= least - 1e-12 else "failed", f"{100 * found.mean:.1f}", expected)


def _exact(rows: Sequence[Row], baseline: Baseline) -> Iterable[Gate]:
    found = exact_digest(rows)
    if found is None:
        if baseline.exact or any(row.get("exact") for row in rows):
            yield Gate("exact", "digest", "failed", "no finished run", "the tiny run's digest")
        return
    system, digest = found
    golden = baseline.exact.get(system)
    verdict: Verdict = "no baseline" if golden is None else "passed" if golden == digest else "failed"
    yield Gate("exact", system, verdict, digest[:16], golden[:16] if golden else "a golden digest")


def _speed(rows: Sequence[Row], baseline: Baseline, nights: Sequence[Mapping[str, Any]]) -> Iterable[Gate]:
    done = Scores(rows).done
    if not done:
        return
    here = _machine(done[0]["system"])
    before = [_seconds(night["perf"]) for night in nights if _machine(night["system"]) == here][-NIGHTS:]
    if not before and _machine(baseline.system) == here:
        before = [baseline.seconds]
    for name, value in _seconds(perf(rows)).items():
        earlier = [night[name] for night in before if name in night]
        if not earlier:
            yield Gate("speed", name, "no baseline", f"{value:.3g} s a round", "an earlier night on such a machine")
            continue
        usual = statistics.median(earlier)
        ratio = value / usual if usual else 1.0
        expected = f"at most {SLOWER:g} x {usual:.3g} s ({len(earlier)} night{'s' * (len(earlier) > 1)})"
        yield Gate("speed", name, "passed" if ratio <= SLOWER else "failed", f"{value:.3g} s, {ratio:.2f} x", expected)


def _seconds(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """CPU seconds a round by algorithm."""
    return {str(entry["name"]).split(":")[0]: float(entry["value"]) for entry in entries if str(entry["name"]).endswith(SPEED)}


def _machine(system: Mapping[str, str]) -> list[str | None]:
    return [system.get(name) for name in SAME_MACHINE]


# ---- what they say together


def overall(found: Iterable[Gate]) -> Verdict:
    verdicts = {gate.verdict for gate in found}
    return "failed" if "failed" in verdicts else "passed" if verdicts == {"passed"} else "no baseline"


def refusal(found: Sequence[Gate], baseline: Path) -> SiloflowError | None:
    """The error that ends the command, unless every gate has passed."""
    verdict = overall(found)
    if verdict == "passed":
        return None
    of_that = [gate for gate in found if gate.verdict == verdict]
    named = ", ".join(f"{gate.gate} {gate.name}" for gate in of_that[:4]) + (", ..." if len(of_that) > 4 else "")
    if verdict == "failed":
        return GateError(f"{len(of_that)} of {len(found)} gates failed: {named}")
    what = f"nothing to compare with for {named}" if of_that else "no gate had anything to look at"
    if any(gate.gate == "speed" for gate in of_that) and all(gate.gate == "speed" for gate in of_that):
        return InputError(f"history: {what}; this night is kept, the next one will have it")
    return InputError(
        f"baseline {baseline}: {what}; accept results that you trust with `siloflow gate RESULTS --baseline {baseline} --accept`"
    )
