"""What a measurement has to say about itself: the machine, what else it had to do, the commit, the date."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

LISTEN = 2.0  # seconds in which we do nothing and everybody else shows


def machine() -> dict[str, Any]:
    facts = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in facts.items()}
    flags = named.get("flags", "").split()
    return {
        "cpu": named.get("model name", platform.machine()),
        "vectors": "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "neither AVX2 nor AVX-512",
        "cores": len(os.sched_getaffinity(0)), "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(), "torch": version("torch"),
    }  # fmt: skip


def busy() -> dict[str, float]:
    """Load average of the last minute, ours included, and the cores that others keep busy just now."""
    others = psutil.cpu_percent(LISTEN) / 100 * (os.cpu_count() or 1)
    return {"load": round(os.getloadavg()[0], 1), "cores_of_others": round(others, 1)}


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" and changes after it" if git("status", "--porcelain", "--untracked-files=no") else "")


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
