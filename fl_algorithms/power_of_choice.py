"""Power-of-choice (Cho et al. 2020, arXiv:2010.01243): train only the silos on which the global model is worst.

Written so that it combines with any algorithm derived from FedAvg: `class X(PowerOfChoice, Other)` puts the `loss`
exchange in front of Other's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le

from fl_algorithms.contract import Broadcast, Exchange, Server, Silo, Update, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.randomness import stream
from fl_algorithms.selection import draw_biased, draw_without_replacement, largest

ASKS_FOR_LOSS = ("pow-d", "cpow-d", "adapow-d")
RANKING = "ranking"  # in the server's private state: who trains, best first


@dataclass(frozen=True)
class PowerOfChoiceHyper(FedAvgHyper):
    # candidates are drawn by size already: weighting by size again would count it twice
    weighting: Annotated[Literal["samples", "uniform"], "aggregation weight of a silo: n_k/N or 1/m"] = "uniform"
    participants: Annotated[int | None, Ge(1), "m: silos that train in a round; null: half of them"] = None
    candidates: Annotated[int | None, Ge(1), "d: silos that are asked for their loss; null: all"] = None
    reserves: Annotated[
        int, Ge(0), "silos next in rank that train too; each counts only where one of the m drops out, for which quorum must allow"
    ] = 0
    selector: Annotated[
        Literal["pow-d", "cpow-d", "rpow-d", "adapow-d", "random", "biased"],
        "loss on all images; on one batch; as last reported; all silos, then m after half the rounds; no loss; FedDANN's biased draw",
    ] = "pow-d"
    weighted: Annotated[bool, "draw candidates in proportion to their number of images"] = True
    bias_probability: Annotated[float, Ge(0), Le(1), "selector=biased: chance to pick from the first share of the list"] = 0.5
    bias_share: Annotated[float, Ge(0), Le(1), "selector=biased: that share"] = 0.1


class PowerOfChoice(FedAvg[PowerOfChoiceHyper]):
    """FedAvg on the participants with the largest loss among d candidates."""

    Hyper: ClassVar[type] = PowerOfChoiceHyper
    paper: ClassVar[str] = "Cho et al. 2020, arXiv:2010.01243"
    leaves_silo: ClassVar[str] = FedAvg.leaves_silo + "; from each candidate, the mean loss of the global model on its training images"

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        m, d, reserves = self._wanted(len(silos)), self.hyper.candidates, self.hyper.reserves
        if d is not None and not m <= d <= len(silos):
            raise Unusable(f"hyper.candidates: {d}, expected between participants ({m}) and the number of silos ({len(silos)})")
        most = (len(silos) if d is None else d) - m
        if reserves > most:
            raise Unusable(f"hyper.reserves: {reserves}, expected at most the candidates that are no participants ({most})")
        if reserves and self.hyper.selector == "biased":
            raise Unusable("hyper.reserves: expected 0 with selector=biased, which ranks nobody; choose another selector")

    def exchanges(self, round: int) -> Sequence[Exchange]:
        steps = list(super().exchanges(round))
        if round > 0 and self.hyper.selector in ASKS_FOR_LOSS:
            steps.insert(0, Exchange("loss", self.report_loss, self.choose))
        return steps

    # ---- exchange `loss`

    def report_loss(self, silo: Silo) -> Update:
        """F_k: mean loss of w_t before training, in evaluation mode; on one random batch for cpow-d."""
        model = self.load(silo.received[MODEL], silo.device).eval()
        order = None
        if self.hyper.selector == "cpow-d":
            draw = stream(silo.seed, "loss", silo.name, silo.round)
            order = torch.randperm(len(silo.train), generator=draw)[: self.hyper.batch_size]
        total, count = torch.zeros((), dtype=torch.float64, device=silo.device), 0
        with torch.inference_mode():
            for images, labels, _ in silo.train.batches(64, order):
                total += F.cross_entropy(model(images), labels, reduction="sum")
                count += len(labels)
                silo.report("loss", count, len(silo.train))
        return Update(metrics={"loss": float(total) / count})

    def choose(self, server: Server, updates: Updates) -> Broadcast:
        losses = {name: updates.metrics(name).get("loss") for name in updates.names}
        return Broadcast(participants=self._ranked(server, largest(losses, self._training(server))))

    def _ranked(self, server: Server, names: Sequence[str]) -> list[str]:
        """Who trains next. The ranking is kept: of those who deliver, the first m count."""
        if self.hyper.reserves:
            roster = list(server.roster)
            server.private[RANKING] = torch.tensor([roster.index(name) for name in names])
        return sorted(names)

    # ---- exchange `train`

    def combine(self, server: Server, updates: Updates) -> Broadcast:
        names = list(server.roster)
        table = server.private.get("last_loss", torch.full((len(names),), math.inf, dtype=torch.float64)).clone()
        for name in updates.names:
            loss = updates.metrics(name).get("loss")
            table[names.index(name)] = math.inf if loss is None else loss
        server.private["last_loss"] = table
        if self.hyper.reserves:
            ranked = [name for name in (names[i] for i in server.private[RANKING].tolist()) if name in updates.names]
            updates = Chosen(updates, ranked[: self._wanted(len(names))])
        return super().combine(server, updates)

    def sample(self, server: Server) -> Sequence[str]:
        """Who is asked next: d candidates where a loss exchange follows, otherwise the m participants themselves."""
        names, round = list(server.roster), server.round + 1
        m, d = self._wanted(len(names)), self.hyper.candidates or len(names)
        draw = stream(server.seed, "participants", round)
        if self.hyper.selector == "biased":
            return draw_biased(names, m, self.hyper.bias_probability, self.hyper.bias_share, draw)
        if self.hyper.selector == "adapow-d":
            d = len(names) if round <= server.rounds / 2 else self._training(server)
        elif self.hyper.selector == "random":
            d = self._training(server)
        weights = [float(server.roster[name]) if self.hyper.weighted else 1.0 for name in names]
        drawn = [names[i] for i in draw_without_replacement(weights, d, draw)]
        if self.hyper.selector == "rpow-d":
            known = server.private.get("last_loss")
            drawn = largest({n: math.inf if known is None else float(known[names.index(n)]) for n in drawn}, self._training(server))
        return sorted(drawn) if self.hyper.selector in ASKS_FOR_LOSS else self._ranked(server, drawn)

    def _wanted(self, silos: int) -> int:
        """m"""
        return self.hyper.participants or max(1, silos // 2)

    def _training(self, server: Server) -> int:
        return self._wanted(len(server.roster)) + self.hyper.reserves


class Chosen:
    """Some of the accepted updates (contract.Updates)."""

    def __init__(self, updates: Updates, names: Sequence[str]) -> None:
        self.names: Sequence[str] = sorted(names)
        self._all = updates

    def metrics(self, silo: str) -> Mapping[str, float | None]:
        return self._all.metrics(silo)

    def keys(self) -> Sequence[str]:
        return self._all.keys()

    def each(self, key: str) -> Iterator[torch.Tensor]:
        return (tensor for name, tensor in zip(self._all.names, self._all.each(key), strict=True) if name in self.names)
