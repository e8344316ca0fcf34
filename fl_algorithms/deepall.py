"""DeepAll: plain training on the union of all source domains, as if there were no silos (the ERM of DomainBed, arXiv:2007.01434).

It runs through the same rounds as a federation of one silo, so that preprocessing, seeds, metrics and selection are those of
the runs it is compared with. For equal budgets give it the same `epochs` and rounds: E T epochs over the union.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from fl_algorithms.contract import Silo
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.training import Draw, shuffled


@dataclass(frozen=True)
class DeepAllHyper(FedAvgHyper):
    # centralised training has no rounds: the optimiser must not notice where ours end
    persist_optimizer: Annotated[bool, "keep the optimiser's slots between rounds"] = True
    sampling: Annotated[
        Literal["union", "balanced"], "batches from the shuffled union, or with as many images of each domain as of any other"
    ] = "union"


class DeepAll(FedAvg[DeepAllHyper]):
    """Centralised training on all source domains: a reference, not a federated method."""

    Hyper: ClassVar[type] = DeepAllHyper
    paper: ClassVar[str] = "Gulrajani and Lopez-Paz, ICLR 2021, arXiv:2007.01434 (ERM)"
    leaves_silo: ClassVar[str] = "everything: one process reads all source images and trains the model; refused where silos are separate"
    centralised: ClassVar[bool] = True

    def draw(self, silo: Silo) -> Draw:
        if self.hyper.sampling == "union":
            return shuffled
        return lambda _, wanted, generator: balanced(silo.train.domains, wanted, generator)


def balanced(domains: torch.Tensor, wanted: int, generator: torch.Generator) -> torch.Tensor:
    """Row numbers that take turns over the M domains, so that every batch of B has B/M of each.

    Where M does not divide B the remainder moves on from batch to batch. A domain that is used up is shuffled and starts again.
    """
    rows = [(domains == domain).nonzero().squeeze(1) for domain in domains.unique()]
    order = torch.empty(wanted, dtype=torch.int64)
    for first, own in enumerate(rows[:wanted]):
        turn = slice(first, None, len(rows))
        order[turn] = own[shuffled(len(own), len(order[turn]), generator)]
    return order
