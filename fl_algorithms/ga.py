"""GA, generalization adjustment (Zhang et al., CVPR 2023): silos that averaging hurts most count more in the next average.

Written so that it combines with any algorithm derived from FedAvg whose training exchange is `train`: `class X(GA, Other)`
measures around Other's training and replaces its weights. A silo measures its own model after training, and the average
when it receives it for the next round's training: the model is not sent once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le

from fl_algorithms.aggregation import normalised
from fl_algorithms.contract import Broadcast, Server, Silo, Tensors, Update, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.evaluation import count
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper

BEFORE, AFTER = "before", "after"  # metrics: of the silo's own model, of the average of the round before
SHARES, LAST = "ga.shares", "ga.before"  # in the server's private state, one number per silo of the roster
SMALLEST = 1e-12

Form = Literal["centred", "official", "paper"]


@dataclass(frozen=True)
class GAHyper(FedAvgHyper):
    weighting: Annotated[Literal["samples", "uniform"], "aggregation weights of the first round: n_k/N or 1/K"] = "uniform"
    gap_step: Annotated[float, Ge(0), Le(1), "d0: how far weights move after round 1, falling to 0; 0 leaves them as they are"] = 0.2
    gap_form: Annotated[
        Form, "centred: gaps around their mean, step d/K; official: gaps as they are, step d/3; paper: centred, by the largest gap, step d"
    ] = "centred"
    gap_metric: Annotated[Literal["loss", "accuracy"], "what a gap is a gap of"] = "loss"
    gap_images: Annotated[Literal["validation", "train"], "where it is measured; train also where a silo has no validation"] = "validation"


class GA(FedAvg[GAHyper]):
    """Aggregation weights moved towards silos with a large generalisation gap."""

    Hyper: ClassVar[type] = GAHyper
    paper: ClassVar[str] = "Zhang et al., CVPR 2023, https://github.com/MediaBrain-SJTU/FedDG-GA"
    leaves_silo: ClassVar[str] = (
        FedAvg.leaves_silo
        + "; per round, the mean loss or the accuracy of its own model and of the last global model on its validation images"
    )

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        if len(silos) < 2 or self.hyper.participants == 1:
            raise Unusable("algorithm ga: needs at least 2 silos a round, found 1: there are no weights to move")

    # ---- what a silo does

    def train(self, silo: Silo) -> Update:
        # the initial model is nobody's average
        after = {AFTER: self.gap_score(silo, silo.received[MODEL])} if silo.round > 1 else {}
        update = super().train(silo)
        before = {BEFORE: self.gap_score(silo, self.network.state_dict())}
        return Update(update.tensors, {**update.metrics, **before, **after})

    def gap_score(self, silo: Silo, state: Tensors) -> float:
        """Of this model, always on the same images of the silo."""
        samples = silo.train if silo.validation is None or self.hyper.gap_images == "train" else silo.validation
        silo.report("measure", 0, 1)
        counts = count(self.predictor({MODEL: state}, silo.device), samples)
        return (counts.loss_sum if self.hyper.gap_metric == "loss" else counts.correct) / counts.total

    # ---- what the server does

    def combine(self, server: Server, updates: Updates) -> Broadcast:
        self.adjust_shares(server, updates)
        return super().combine(server, updates)

    def adjust_shares(self, server: Server, updates: Updates) -> None:
        """The weights of this round, from the gaps of the last one."""
        hyper, last = self.hyper, server.private.get(LAST)
        server.private[LAST] = _reported(server, updates, BEFORE)
        if last is None or hyper.gap_step == 0:
            return
        gaps = _reported(server, updates, AFTER) - last
        worse = gaps if hyper.gap_metric == "loss" else -gaps
        start = normalised({name: float(n) if hyper.weighting == "samples" else 1.0 for name, n in server.roster.items()})
        shares = server.private.get(SHARES, torch.tensor(list(start.values()), dtype=torch.float64))
        length = step_length(hyper.gap_step, server.round - 2, server.rounds, hyper.gap_form)  # the first gap is that of round 1, r = 0
        server.private[SHARES] = adjusted(shares, worse, length, hyper.gap_form)

    def weigh(self, server: Server, updates: Updates) -> dict[str, float]:
        shares = server.private.get(SHARES)
        if shares is None:
            return super().weigh(server, updates)
        present = {name: share for name, share in zip(server.roster, shares.tolist(), strict=True) if name in updates.names}
        return normalised(present) if any(present.values()) else super().weigh(server, updates)


def _reported(server: Server, updates: Updates, metric: str) -> torch.Tensor:
    """This metric for each silo of the roster; nan where there is none."""
    found = {name: updates.metrics(name).get(metric) for name in updates.names}
    return torch.tensor([float("nan") if found.get(name) is None else found[name] for name in server.roster], dtype=torch.float64)


def step_length(first: float, r: int, rounds: int, form: Form = "centred") -> float:
    """d_r, r counted from 0: linear to 0; in the released code one round behind."""
    return first * (1 - (r - 1 if form == "official" else r) / rounds)


def adjusted(shares: torch.Tensor, worse: torch.Tensor, length: float, form: Form = "centred") -> torch.Tensor:
    """The new weights. `worse`: how much averaging hurt each silo; one of which that is not known keeps its weight."""
    known = worse.isfinite()
    gaps = worse[known]
    if not len(gaps):
        return shares
    if form != "official":
        gaps = gaps - gaps.mean()
    largest = gaps.max() if form == "paper" else gaps.abs().max()
    scale = {"centred": 1 / len(shares), "official": 1 / 3, "paper": 1.0}[form]
    if largest < SMALLEST:
        return shares
    moved = shares.clone()
    moved[known] += length * scale * gaps / largest
    moved.clamp_(0, 1)
    return moved / moved.sum() if moved.any() else shares
