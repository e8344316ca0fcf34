"""Ends a process of a real run at an exact place. Python loads this file by its name, given its folder on PYTHONPATH.

SILOFLOW_CHAOS="birch inside payload 2 self": when silo birch is inside its second write of a payload, SIGKILL for that process.
Other victims: `all` (its process group), `engine` (the group's leader), `store` (waits until the campaign has done something to
the store); `frozen` is SIGSTOP for that process.
SILOFLOW_CHAOS="record" ends nothing and lists every place that was passed; "skew 3600" signs requests as of an hour later.
SILOFLOW_CHAOS_SIGN names the file that says what happened. Nothing in the product knows of this: its functions are replaced in
each worker, right after it was forked.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

_ORDER = os.environ.get("SILOFLOW_CHAOS", "").split()
_SIGN = Path(os.environ.get("SILOFLOW_CHAOS_SIGN", ""))
_passed: Counter[str] = Counter()


def _kind(path: str) -> str:
    """What is written there, by the names of components/layout.py and of the run folder."""
    name = path.rsplit("/", 1)[-1]
    if "/private/" in path:
        return "private"
    if "/rounds/" not in path:
        return "result" if name in ("result.json", "model.safetensors") else "plan"
    if "/validate/" in path or "/evaluate/" in path:
        return "counts"
    return "payload" if name.endswith(".safetensors") else "manifest"


def _role() -> str:
    return multiprocessing.current_process().name.removeprefix("siloflow-")


def _moments(kind: str) -> Sequence[str]:
    """Those of this passage at which the order says to strike."""
    _passed[kind] += 1
    if _ORDER == ["record"]:
        with _SIGN.open("a") as file:
            file.write(f"{_role()} {kind}\n")
        return ()
    role, moment, wanted, count, _ = _ORDER
    return (moment,) if (role, wanted, int(count)) == (_role(), kind, _passed[kind]) else ()


def _strike() -> None:
    try:
        _SIGN.touch(exist_ok=False)
    except FileExistsError:
        return  # done before, in an earlier process of this role
    victim = _ORDER[-1]
    if victim == "store":
        while not _SIGN.with_suffix(".done").exists():
            time.sleep(0.005)
        return
    if victim == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if victim == "all":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpgrp() if victim == "engine" else os.getpid(), signal.SIGKILL)
    time.sleep(60)  # only the engine is dead: this process must end by itself, and not finish its step first


@contextmanager
def _watched(kind: str, halve: Callable[[], None] = lambda: None) -> Iterator[None]:
    moments = _moments(kind)
    if "before" in moments:
        _strike()
    if "inside" in moments:
        halve()
    yield
    if "after" in moments:
        _strike()


def _watch_files(modules: dict[str, Any]) -> None:
    file = modules["components.store.file"]
    original = file.write_file

    def half_of_it(descriptor: int, views: Sequence[memoryview]) -> int:
        data = b"".join(views)
        os.write(descriptor, data[: len(data) // 2])
        _strike()
        raise AssertionError("the writer of half a file is alive")

    def write_file(path: Path, *arguments: Any) -> None:
        with _watched(_kind(str(path)), lambda: setattr(os, "writev", half_of_it)):
            original(path, *arguments)

    file.write_file = modules["components.plan"].write_file = write_file


def _watch_s3(modules: dict[str, Any]) -> None:
    federation, send = modules["components.federation"], http.client.HTTPConnection.send
    original = federation.open_store

    def half_of_it(self: http.client.HTTPConnection, data: bytes) -> None:
        if data[:4] == b"PUT ":  # the head of the request
            send(self, data)
            return
        http.client.HTTPConnection.send = send  # type: ignore[method-assign]
        send(self, data[: len(data) // 2])
        _strike()
        send(self, data[len(data) // 2 :])

    def open_store(url: str, role: str | None = None) -> Any:
        store = original(url, role)
        if url.startswith("s3://"):
            put = store.put

            def watched(bucket: str, key: str, *arguments: Any) -> None:
                with _watched(_kind(f"{bucket}/{key}"), lambda: setattr(http.client.HTTPConnection, "send", half_of_it)):
                    put(bucket, key, *arguments)

            store.put = watched
        return store

    federation.open_store = open_store


def _watch_steps(modules: dict[str, Any]) -> None:
    server, silo = modules["components.server"], modules["components.silo"]
    check_quorum, count = server.check_quorum, silo.count

    def checked(*arguments: Any) -> None:
        with _watched("reading"):  # every update has been read, nothing is published
            check_quorum(*arguments)

    def counted(model: Callable[..., Any], samples: Any, **options: Any) -> Any:
        def dies(images: Any) -> Any:
            _strike()
            return model(images)

        return count(dies if "inside" in _moments("evaluation") else model, samples, **options)

    server.check_quorum, silo.count = checked, counted


def _skew(seconds: float) -> None:
    import minio.time

    now = minio.time.utcnow
    minio.time.utcnow = lambda: now() + timedelta(seconds=seconds)


def _arm() -> None:
    if "components.worker" not in sys.modules:
        return
    if _ORDER[0] == "skew":
        _skew(float(_ORDER[1]))
        return
    for watch in (_watch_files, _watch_s3, _watch_steps):
        watch(sys.modules)


if _ORDER:
    os.register_at_fork(after_in_child=_arm)
