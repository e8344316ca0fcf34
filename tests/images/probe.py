"""Runs inside the image and prints what it finds there as JSON; nothing of this project but the installed package is used."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path

SKIP = {"/proc", "/sys", "/dev", "/tmp", "/run", "/var/run"}
PRODUCT = ("fl_algorithms", "components", "pipelines")
SECRET = re.compile(r"(access_key|secret_key|id_rsa|id_ed25519|\.netrc|\.env|.*\.key|credentials\.json|kubeconfig)")
CACHE = {".git", ".cache", "__pypackages__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "egg-info"}
TOOLS = ("gcc", "cc", "g++", "make", "pip", "pip3", "git", "curl", "wget")


def walk() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"secrets": [], "caches": [], "tests": [], "without_bytecode": []}
    for name, folders, files in os.walk("/"):
        folder = Path(name)
        folders[:] = [name for name in folders if str(folder / name) not in SKIP]
        found["caches"] += [str(folder / name) for name in folders if name in CACHE]
        found["secrets"] += [str(folder / name) for name in files if SECRET.fullmatch(name)]
    site = Path(next(path for path in sys.path if path.endswith("site-packages")))
    found["tests"] += [str(path) for name in ("tests", "bench", "docs") for path in [site / name] if path.exists()]
    for package in (*PRODUCT, "torch/nn", "kfp/dsl"):
        for path in (site / package).rglob("*.py"):
            if not (path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc").exists():
                found["without_bytecode"].append(str(path))
    return found


def writable(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def seconds_to_import(name: str) -> float:
    begin = time.perf_counter()
    __import__(name)
    return time.perf_counter() - begin


def main() -> None:
    answer = {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "python": shutil.which("python3"),
        "siloflow": shutil.which("siloflow"),
        "shell": shutil.which("sh"),
        "tools": [name for name in TOOLS if shutil.which(name)],
        "writable": {name: writable(name) for name in ("/", "/tmp", "/opt/siloflow", os.environ["HOME"], str(Path.cwd()))},
        "allocator": "libtcmalloc_minimal" in Path("/proc/self/maps").read_text(encoding="utf-8"),
        "folders": [name for name in ("/state", "/data", "/credentials") if Path(name).is_dir()],
        "installed": {item.name: item.version for item in distributions()},
        "seconds": {name: seconds_to_import(name) for name in ("torch", "kfp", "components.worker")},
        **walk(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
