"""FedProx (Li et al. 2020, arXiv:1812.06127): FedAvg with a proximal term that pulls local weights to the received ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import nn

from fl_algorithms.contract import Silo, Task
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.models import Network


@dataclass(frozen=True)
class FedProxHyper(FedAvgHyper):
    mu: Annotated[float, Ge(0), "strength of the proximal term; 0 is FedAvg"] = 0.01


class FedProx(FedAvg[FedProxHyper]):
    """FedAvg with (mu/2) ||w - w_t||^2 added to each silo's loss."""

    Hyper: ClassVar[type] = FedProxHyper
    paper: ClassVar[str] = "Li et al., MLSys 2020, arXiv:1812.06127"

    def __init__(self, hyper: FedProxHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._received: list[torch.Tensor] = []

    def begin(self, model: Network, silo: Silo) -> None:
        # a copy: the live parameters move, the reference must stay this round's broadcast
        self._received = [parameter.detach().clone() for parameter in model.parameters()]

    def before_step(self, model: Network) -> None:
        add_proximal_gradient(list(model.parameters()), self._received, self.hyper.mu)


def add_proximal_gradient(parameters: list[nn.Parameter], received: list[torch.Tensor], mu: float) -> None:
    """grad += mu (w - w_t): the same as adding the term to the loss, in two fused kernels. Buffers are not in the term."""
    if mu == 0:
        return
    pairs = [(p, r) for p, r in zip(parameters, received, strict=True) if p.grad is not None]
    with torch.no_grad():
        difference = torch._foreach_sub([p for p, _ in pairs], [r for _, r in pairs])
        torch._foreach_add_([p.grad for p, _ in pairs if p.grad is not None], difference, alpha=mu)
