"""Imported once by the process that all workers are forked from: what it has in memory, they share."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h

with contextlib.suppress(OSError, AttributeError):  # another system has no such call
    # an engine that is stopped while this process still imports torch must not leave it behind for those seconds
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

import components.worker  # noqa: E402, F401
import pipelines.workers  # noqa: E402, F401

gc.collect()
gc.freeze()  # the collector would otherwise write to every object's header, and so copy the shared pages one by one
atexit.register(gc.unfreeze)  # or some extension modules would report everything frozen as a leak
