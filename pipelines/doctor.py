"""`siloflow doctor`: can this machine run this federation, and if not, what has to be fixed."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from components import allocator, layout
from components.errors import InputError, SiloflowError, StoreError
from components.spec import FederationSpec, parse_spec
from components.store import open_store
from pipelines.summary import weights_of
from pipelines.workers import cores

LITTLE_DISK = 2 << 30
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Doubt(Exception):
    """It will work, but perhaps not well."""


@dataclass(frozen=True)
class Check:
    area: str
    state: Literal["ok", "warn", "fail"]
    found: str  # and, unless it is ok, what to do
    exit_code: int = 0


def examine(values: Mapping[str, Any]) -> list[Check]:
    """Every check; those that need a valid spec only if there is one."""
    machine = [("python", _python), ("torch", _torch), ("allocator", _allocator), ("disk", _disk), ("cache", _cache)]
    checks = [_check(area, look) for area, look in machine]
    try:
        spec = parse_spec(values)
    except SiloflowError as error:
        return [*checks, Check("spec", "fail", str(error), error.exit_code)]
    of_spec = [("cuda", _cuda), ("cores", _cores), ("store", _store), ("data", _data), ("weights", _weights)]
    return checks + [_check(area, lambda look=look: look(spec)) for area, look in of_spec]  # type: ignore[misc]


def report(console: Console, checks: list[Check], as_json: bool) -> int:
    """Print them; returns the exit code, that of the first failure."""
    code = next((check.exit_code for check in checks if check.state == "fail"), 0)
    if as_json:
        shown = [{key: value for key, value in asdict(check).items() if key != "exit_code"} for check in checks]
        console.file.write(json.dumps({"ok": code == 0, "checks": shown}) + "\n")
        return code
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(check.area, Text(check.state, style=STYLES[check.state]), check.found)
    console.print(table)
    return code


def _check(area: str, look: Callable[[], str]) -> Check:
    try:
        return Check(area, "ok", look())
    except Doubt as doubt:
        return Check(area, "warn", str(doubt))
    except SiloflowError as error:
        return Check(area, "fail", str(error), error.exit_code)


# ---- the machine


def _python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _torch() -> str:
    try:
        import torch
        import torchvision
    except (ImportError, OSError, RuntimeError) as error:  # a wheel for another CPU or CUDA fails to load in any of these ways
        raise InputError(
            f"cannot be imported ({' '.join(str(error).split())}); install torch and torchvision that fit each other"
        ) from None
    return f"{torch.__version__}, torchvision {torchvision.__version__}"


def _allocator() -> str:
    """Never a warning: without it everything works, in more memory."""
    chosen = os.environ.get(allocator.PRELOAD) or allocator.installed()
    return f"{chosen}" if chosen else f"that of the C library; silos need less memory with {allocator.PACKAGE}"


def _disk() -> str:
    free = shutil.disk_usage(Path.cwd()).free
    if free < LITTLE_DISK:
        raise Doubt(f"{free / 1e9:.1f} GB free in this folder; a run keeps every round's model, free some or choose another --out")
    return f"{free / 1e9:.1f} GB free in this folder"


def _cache() -> str:
    from fl_algorithms.data.cache import cache_root

    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return str(root)
    except OSError as error:
        raise InputError(f"cache {root}: cannot be written ({error.strerror}); set SILOFLOW_CACHE to another folder") from None


# ---- the federation


def _cuda(spec: FederationSpec) -> str:
    import torch

    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if spec.device == "cuda" and not devices:
        raise InputError("device 'cuda': no usable CUDA device; set device=cpu, or install a driver and a CUDA build of torch")
    return ", ".join(devices) or "none; silos train on the CPU"


def _cores(spec: FederationSpec) -> str:
    if spec.threads is not None and spec.threads > cores():
        raise Doubt(f"{cores()}, but threads={spec.threads}: silos will wait for each other; set threads={cores()} or less")
    return f"{cores()}, shared by the silos"


def _store(spec: FederationSpec) -> str:
    """Writes, reads and deletes a small object, as the server would."""
    if spec.store is not None:
        return _probe(spec.store)
    try:
        with tempfile.TemporaryDirectory(prefix=".siloflow-", dir=Path.cwd()) as folder:
            _probe(folder)
    except OSError as error:
        raise StoreError(f"this folder cannot be written ({error.strerror}); change to another one, or choose it with --out") from None
    return "inside the run folder, which can be written"


def _probe(url: str) -> str:
    store, key, content = open_store(url, "server"), f"probe-{secrets.token_hex(8)}", b"siloflow"
    store.prepare([layout.GLOBAL])
    store.put(layout.GLOBAL, key, [content])
    found = store.get(layout.GLOBAL, key)
    store.delete(layout.GLOBAL, key)
    if found != content:
        raise StoreError(f"{store.url}: an object reads back differently from what was written; check the store's disk")
    return f"{store.url}: written, read and deleted"


def _data(spec: FederationSpec) -> str:
    from components.federation import Federation, resolve

    federation = Federation(resolve(spec), "check", Path())
    data = federation.data
    size = f"{len(data.domains)} domains, {len(data.classes)} classes, {data.image_size} px"
    return f"{data.name}: {size}; target {federation.spec.target}, {len(federation.silos)} silos"


def _weights(spec: FederationSpec) -> str:
    from components.federation import Federation, resolve
    from components.plan import check_weights

    digest = check_weights(Federation(resolve(spec), "check", Path()))
    return weights_of({"weights": digest, "spec": {"weights": spec.weights}}).removeprefix("weights: ")
