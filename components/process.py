"""How a process that plays a role sets itself up: log, threads, determinism, memory. The same in a worker, a pod and a resident loop."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys

import torch

PORTABLE = "SILOFLOW_PORTABLE"  # set: without oneDNN, whose blocks, and so whose sums, follow the CPU's caches
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def log_to_stderr() -> None:
    level = logging.DEBUG if os.environ.get("SILOFLOW_DEBUG") else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")


def compute_with(threads: int) -> None:
    """So many threads, and the same bits every time."""
    torch.set_num_threads(threads)
    if os.environ.get(PORTABLE):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only then
    if torch.cuda.is_available():  # on the CPU a fixed number of threads is enough, and the call costs seconds of imports
        torch.use_deterministic_algorithms(True, warn_only=True)


def keep_freed_memory() -> None:
    """glibc gives freed activations back to the kernel after every batch and faults them in again for the next (specs: 1.13x)."""
    with contextlib.suppress(OSError, AttributeError):  # another libc has no such setting
        libc = ctypes.CDLL(None)
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            libc.mallopt(option, 1 << 30)
