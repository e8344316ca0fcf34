"""Imported once by the process that all workers are forked from: what it has in memory, they share."""

from __future__ import annotations

import atexit
import gc

from pipelines.workers import end_with_parent

# an engine that is stopped while this process still imports torch must not leave it behind for those seconds
end_with_parent()

import components.worker  # noqa: E402, F401

gc.collect()
gc.freeze()  # the collector would otherwise write to every object's header, and so copy the shared pages one by one
atexit.register(gc.unfreeze)  # or some extension modules would report everything frozen as a leak
