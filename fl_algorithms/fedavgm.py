"""FedAvgM (Hsu et al. 2019, arXiv:1909.06335): the server treats the average as a gradient step and adds momentum to it.

Combines with any algorithm derived from FedAvg whose server step is `combine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt

from fl_algorithms.contract import Broadcast, Server, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper

VELOCITY = "velocity."  # prefix in the server's private state


@dataclass(frozen=True)
class FedAvgMHyper(FedAvgHyper):
    """Default momentum: the one chosen in the FedDANN paper, section 6.2."""

    server_momentum: Annotated[float, Ge(0), Lt(1), "beta: share of the last step repeated in the next; 0 with server_lr=1 is FedAvg"] = 0.6
    server_lr: Annotated[float, Gt(0), "eta_s: factor of the server's step"] = 1.0
    dampening: Annotated[float, Ge(0), Lt(1), "share of each new step left out; equal to server_momentum: a moving average"] = 0.0
    nesterov: Annotated[bool, "look ahead: step along d + beta v instead of v"] = False


class FedAvgM(FedAvg[FedAvgMHyper]):
    """FedAvg with momentum on the server."""

    Hyper: ClassVar[type] = FedAvgMHyper
    paper: ClassVar[str] = "Hsu et al. 2019, arXiv:1909.06335"

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        if self.hyper.nesterov and self.hyper.dampening:
            raise Unusable(f"hyper.dampening: {self.hyper.dampening:g} with nesterov=true, expected 0; set one of the two")

    @cached_property
    def with_momentum(self) -> frozenset[str]:
        """Names of the trainable tensors. Statistics are plainly averaged: an overshoot could make a running variance negative."""
        with torch.device("meta"):
            return frozenset(name for name, _ in self.build().named_parameters())

    def combine(self, server: Server, updates: Updates) -> Broadcast:
        broadcast, hyper = super().combine(server, updates), self.hyper
        if hyper.server_momentum == 0 and hyper.server_lr == 1 and hyper.dampening == 0:
            return broadcast  # the arithmetic below would only round
        current, model = server.parts[MODEL], dict(broadcast.parts[MODEL])
        for name in sorted(self.with_momentum):
            last = server.private.get(VELOCITY + name)
            moved, velocity = momentum_step(
                current[name], model[name], last, hyper.server_momentum, hyper.server_lr, hyper.dampening, hyper.nesterov
            )
            server.private[VELOCITY + name] = velocity.to(model[name].dtype)
            model[name] = moved.to(model[name].dtype)
        broadcast.parts = {**broadcast.parts, MODEL: model}
        return broadcast


def momentum_step(
    current: torch.Tensor,
    average: torch.Tensor,
    velocity: torch.Tensor | None,
    beta: float,
    lr: float = 1.0,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """w_{t+1} and v_{t+1} in float64. No velocity: v_0 = 0, so that the first step is dampened like the others."""
    w = current.to(torch.float64)
    d = w - average.to(torch.float64)  # pseudo-gradient: points away from where the silos went
    v = (1 - dampening) * d if velocity is None else beta * velocity.to(torch.float64) + (1 - dampening) * d
    return w - lr * (d + beta * v if nesterov else v), v
