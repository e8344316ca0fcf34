"""Imported once by the process that all workers are forked from: what it has in memory, they share."""

from __future__ import annotations

import atexit
import gc

import torch._dynamo  # noqa: F401  the first step of an optimiser imports it: 1.2 s, here once instead of in every worker

import components.worker  # noqa: F401
import pipelines.workers  # noqa: F401

gc.collect()
gc.freeze()  # the collector would otherwise write to every object's header, and so copy the shared pages one by one
atexit.register(gc.unfreeze)  # or some extension modules would report everything frozen as a leak
