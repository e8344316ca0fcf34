"""The outcome of a run on a Pushgateway: what is left to see of it when its processes are gone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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
    outcome("last_run_rejected_updates").set(len(result["rejected"]))
    for rule, ratio in result["accuracy"].items():
        if ratio is not None:
            outcome("last_run_accuracy_ratio", rule=rule).set(ratio)
    for direction, count in result["bytes"].items():
        outcome("last_run_bytes", direction=direction).set(count)
    return outcome


def _shown(url: str) -> str:
    """Without a password that may be in it."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
