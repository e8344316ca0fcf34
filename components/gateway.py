"""The outcome of a run on a Pushgateway: what is left to see of it when its processes are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any
from urllib.parse import unquote, urlsplit

from components import VERSION
from components.errors import InputError
from components.metrics import Series

PUSH_SECONDS = 5.0


def check_gateway(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"pushgateway: expected an address such as http://gateway:9091, found {_shown(url)[:80]!r}")
    return url


def push(gateway: str, group: Mapping[str, str], outcome: Series, replace: bool) -> str | None:
    """Replace all of the group (PUT) or only the metrics given (POST). Returns what went wrong, in one line."""
    from prometheus_client import push_to_gateway, pushadd_to_gateway

    send = push_to_gateway if replace else pushadd_to_gateway
    options: dict[str, Any] = {"registry": outcome.registry, "grouping_key": dict(group), "timeout": PUSH_SECONDS, **_signing_in(gateway)}
    try:
        send(_shown(gateway), job="siloflow", **options)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        return f"pushgateway {_shown(gateway)}: took no outcome of this run ({why}); the run itself is not affected"
    return None


def _signing_in(gateway: str) -> dict[str, Any]:
    """With the name and password of http://name:password@gateway, if there are any."""
    from prometheus_client.exposition import basic_auth_handler

    parts = urlsplit(gateway)
    if parts.username is None:
        return {}
    return {"handler": partial(basic_auth_handler, username=unquote(parts.username), password=unquote(parts.password or ""))}


def ended(run: str, code: int) -> Series:
    outcome = Series()
    outcome("last_run_info").info({"run": run, "version": VERSION})
    outcome("last_run_timestamp_seconds").set_to_current_time()
    outcome("last_run_exit_code").set(code)
    return outcome


def succeeded(run: str, result: Mapping[str, Any], seconds: float) -> Series:
    """`result`: as in result.json."""
    outcome = ended(run, 0)
    outcome("last_success_timestamp_seconds").set_to_current_time()
    outcome("last_run_seconds").set(seconds)
    outcome("last_run_rounds").set(result["rounds"])
    if "rejected" in result:
        outcome("last_run_rejected_updates").set(len(result["rejected"]))
    for rule, ratio in result["accuracy"].items():
        if ratio is not None:
            outcome("last_run_accuracy_ratio", rule=rule).set(ratio)
    for direction, count in result["bytes"].items():
        outcome("last_run_bytes", direction=direction).set(count)
    return outcome


# ---- a benchmark


def push_night(
    gateway: str, pipeline: str, night: str, rows: Iterable[Mapping[str, Any]], gates: Mapping[str, bool], code: int
) -> Iterator[str]:
    """A night of the benchmark, told as its runs would tell it: one outcome for each algorithm and target, with means over the seeds.

    And one for all of it: the exit code, and of each gate that was applied whether it passed. `rows` as in results.jsonl. Yields
    what went wrong, a line each.
    """
    places: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row.get("exact"):
            places.setdefault((row["algorithm"], row["target"]), []).append(row)
    told = [({"algorithm": algorithm, "target": target}, *_of_seeds(night, own)) for (algorithm, target), own in places.items()]
    for group, outcome, replace in [({}, _judged(gates, code), True), *told]:
        problem = push(gateway, {"pipeline": pipeline, **group}, outcome, replace)
        if problem is not None:
            yield problem
            return  # each of the others would wait as long, to say the same


def _judged(gates: Mapping[str, bool], code: int) -> Series:
    outcome = Series()
    outcome("last_night_timestamp_seconds").set_to_current_time()
    outcome("last_night_exit_code").set(code)
    for gate, passed in gates.items():
        outcome("last_night_gate_passed", gate=gate).set(passed)
    return outcome


def _of_seeds(night: str, rows: Sequence[Mapping[str, Any]]) -> tuple[Series, bool]:
    """Its outcome, and whether it replaces all that is known: a place where one seed failed has no success to tell."""
    failed = [row for row in rows if row["status"] != "done"]
    if failed:
        return ended(night, int(failed[0]["exit_code"]) or 1), False
    accuracy = {rule: _mean(row["accuracy"][rule] for row in rows) for rule in rows[0]["accuracy"]}
    moved = {direction: _mean(row["bytes"][direction] for row in rows) for direction in rows[0]["bytes"]}
    result = {"rounds": rows[0]["setting"]["rounds"], "accuracy": accuracy, "bytes": moved}
    return succeeded(night, result, _mean(row["seconds"] for row in rows) or 0.0), True


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _shown(url: str) -> str:
    """Without a password that may be in it."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
