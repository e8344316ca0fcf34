"""How far a silo's training moved the model it was given."""

from __future__ import annotations

import torch

from fl_algorithms.contract import Tensors
from fl_algorithms.fedavg import RUNNING_MEAN, RUNNING_VAR


def drift(update: Tensors, before: Tensors) -> dict[str, float]:
    """The metric `drift`: L2 norm of the change over all trained tensors, as `norm_bound` counts it but without running statistics.

    Empty where the update is not a changed model: it says nothing then.
    """
    if not update or not update.keys() <= before.keys():
        return {}
    square = 0.0
    for name, tensor in update.items():
        if tensor.is_floating_point() and not name.endswith((RUNNING_MEAN, RUNNING_VAR)):
            square += float(torch.linalg.vector_norm(tensor - before[name].to(tensor.device))) ** 2
    return {"drift": square**0.5}
