"""What a run ran on: the versions and the machine that a figure depends on. Never a host name, a user or a path."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

IMAGE = "SILOFLOW_CONTAINER_IMAGE"  # what the pod was told to run: a container cannot ask. With its digest, if it was named by it
PACKAGES = ("siloflow", "torch", "torchvision", "numpy", "scikit-learn")


def environment(device: str) -> dict[str, str]:
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a bare checkout
            found[name] = "not installed"
    told = {"commit": _commit(), "image": os.environ.get(IMAGE, "")}
    return {
        **found,
        **{name: value for name, value in told.items() if value},
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "device": device,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """Of the checkout this code is in; an image has none and says so by SILOFLOW_COMMIT."""
    if os.environ.get("SILOFLOW_COMMIT"):
        return os.environ["SILOFLOW_COMMIT"][:40]
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return ""
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
