"""Optimisers that leave torch's compiler alone.

They import it only to tell it to look away, which takes longer than a short step: more than a second in every pod. With another
torch, whose wrappers differ, nothing here applies and the import happens as it would anyway.
"""

from __future__ import annotations

import inspect

import torch
from torch.optim import Optimizer

WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def leave_the_compiler_alone() -> None:
    """Fill in what torch remembers of the import once it was made: the method itself."""
    for name in WRAPPED:
        method = inspect.unwrap(getattr(Optimizer, name))
        if not hasattr(method, "__dynamo_disable"):
            method.__dynamo_disable = method


def take_step(optimizer: Optimizer) -> None:
    """`optimizer.step()` without the wrappers that import the compiler; what they do otherwise is to switch gradients off."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)
