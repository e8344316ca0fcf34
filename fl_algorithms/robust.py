"""Robust aggregation: a global model that a few malicious or broken silos cannot move far.

Coordinate-wise median and trimmed mean: Yin et al. 2018 (definitions 1 and 2). Krum and Multi-Krum: Blanchard et al. 2017
(section 4). Clipping of norms: Sun et al. 2019 (section 3).

Written so that it combines with an algorithm derived from FedAvg whose server step is `combine`: `class X(Robust, Other)`
hands Other a single update, the one that the rule made of all of them. Only the exchange of models is protected: what
Other's silos show each other in further exchanges is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt

from fl_algorithms.aggregation import normalised, weighted_sum
from fl_algorithms.contract import Broadcast, Server, Tensors, Updates
from fl_algorithms.errors import TooFew, Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.fedavgm import FedAvgM

HELD = 1 << 19  # values held at a time, all silos together: memory does not grow with their number
UNDERSTOOD = (FedAvg, FedAvgM)  # whose way to combine is the same for one update as for many

Rule = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"]
BY_SCORE = ("krum", "multi-krum")


@dataclass(frozen=True)
class RobustHyper(FedAvgHyper):
    # a silo says itself how many images it has
    weighting: Annotated[Literal["samples", "uniform"], "weight under mean and multi-krum: n_k/N as the silo says, or 1/K"] = "uniform"
    rule: Annotated[
        Rule,
        "mean: of all; median, trimmed-mean: per coordinate, without the f smallest and f largest; krum: the one update closest to its "
        "n-f-2 nearest; multi-krum: mean of the n-f best by that score",
    ] = "trimmed-mean"
    byzantine: Annotated[int, Ge(0), "f: how many silos a round may be malicious"] = 1
    clip_norm: Annotated[float | None, Gt(0), "L2 norm to which a longer difference from the global model is shortened; null: any"] = None
    clip_median: Annotated[bool, "shorten differences to the median of the round's norms"] = False


class Robust(FedAvg[RobustHyper]):
    """Median, trimmed mean, Krum or clipped mean in place of the average."""

    Hyper: ClassVar[type] = RobustHyper
    paper: ClassVar[str] = (
        "Yin et al., ICML 2018, arXiv:1803.01498; Blanchard et al., NeurIPS 2017, arXiv:1703.02757; Sun et al. 2019, arXiv:1911.07963"
    )

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        for cls in type(self).__mro__:
            owns = issubclass(cls, FedAvg) and vars(cls).keys() & {"combine", "weigh"}
            if owns and cls not in (Robust, *UNDERSTOOD):
                raise Unusable(
                    f"algorithm {cls.__name__.lower()}: has weights of its own, which a robust rule would ignore; use one of the two"
                )
        if self.exchanges(1)[-1].server != self.combine:
            raise Unusable(f"algorithm {type(self).__name__.lower()}: does not combine updates as FedAvg does; leave the robust rule out")
        if self.hyper.bn_buffers == "pooled":
            raise Unusable("hyper.bn_buffers: pooled statistics have no robust form; use average, local or frozen")
        self.require(self.hyper.participants or len(silos), "silos a round")

    def require(self, count: int, of_what: str) -> None:
        """Where fewer take part, f of them could decide: no weaker rule is used instead."""
        hyper, f = self.hyper, self.hyper.byzantine
        fewest = 2 * f + (3 if hyper.rule in BY_SCORE else 1)
        trusting = hyper.rule == "mean" and not hyper.clip_median  # a bound that is given holds for any number
        if count < fewest and not trusting:
            raise TooFew(
                f"hyper.byzantine: rule {hyper.rule} with {f} malicious silos needs {fewest} {of_what}, found {count}; "
                "lower byzantine, add silos or choose another rule"
            )

    def combine(self, server: Server, updates: Updates) -> Broadcast:
        self.require(len(updates.names), "accepted updates")
        agreed = self.agree(server, updates)
        return replace(super().combine(server, agreed), weights=agreed.weights)

    def agree(self, server: Server, updates: Updates) -> Agreed:
        hyper, count = self.hyper, len(updates.names)
        agreed = Agreed(updates, server.parts[MODEL], self.weigh(server, updates))
        if hyper.rule in BY_SCORE or hyper.clip_norm is not None or hyper.clip_median:
            products = inner_products(agreed)
            agreed.factors = clip_factors(products.diagonal().sqrt(), hyper.clip_norm, hyper.clip_median)
            products *= agreed.factors * agreed.factors[:, None]
        if hyper.rule in BY_SCORE:
            best = krum_scores(products, hyper.byzantine).argsort(stable=True)  # equal scores: in the order of names
            chosen = {updates.names[i] for i in best[: 1 if hyper.rule == "krum" else count - hyper.byzantine].tolist()}
            shares = normalised({name: agreed.weights[name] for name in chosen})
            agreed.weights = {name: shares.get(name, 0.0) for name in updates.names}
        elif hyper.rule != "mean":
            agreed.trim = hyper.byzantine if hyper.rule == "trimmed-mean" else (count - 1) // 2
            agreed.weights = dict.fromkeys(updates.names, 1 / count)
        agreed.largest_counter = hyper.rule == "mean"
        return agreed


@dataclass
class Agreed:
    """One update made of all (contract.Updates), tensor by tensor when asked for; it stands under the first silo's name."""

    updates: Updates
    model: Tensors
    weights: Mapping[str, float]  # a silo whose weight is 0 is not read
    factors: torch.Tensor | None = None  # by which each silo's difference from the model is shortened
    trim: int | None = None  # values left out at both ends of each coordinate; None: the weighted sum
    # the house rule for integers is the maximum, with which one silo could set a counter; otherwise it is the lower median
    largest_counter: bool = False
    names: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = self.updates.names[:1]

    def metrics(self, silo: str) -> Mapping[str, float | None]:
        return self.updates.metrics(silo)

    def keys(self) -> Sequence[str]:
        return self.updates.keys()

    def each(self, key: str) -> Iterator[torch.Tensor]:
        result = torch.empty_like(self.model[key], memory_format=torch.contiguous_format)
        for columns, values in self.blocks(key):
            result.view(-1)[columns] = self.merged(values)
        yield result

    def blocks(self, key: str) -> Iterator[tuple[slice, torch.Tensor]]:
        """Some columns of this tensor of every silo that counts, a row for each: floating-point values in float64."""
        base, counted = self.model[key].reshape(-1), [self.weights[name] > 0 for name in self.updates.names]
        kind = torch.float64 if base.is_floating_point() else base.dtype
        width = max(1, HELD // len(counted))
        for begin in range(0, len(base), width):
            columns = slice(begin, begin + width)
            rows = torch.empty((sum(counted), len(base[columns])), dtype=kind)
            at = iter(rows)
            for counts, tensor in zip(counted, self.updates.each(key), strict=True):
                if counts:
                    next(at).copy_(tensor.reshape(-1)[columns])
            yield columns, self._shortened(rows, base[columns], counted)

    def _shortened(self, rows: torch.Tensor, base: torch.Tensor, counted: list[bool]) -> torch.Tensor:
        if self.factors is None or not rows.is_floating_point():
            return rows
        factors, start = self.factors[counted][:, None], base.to(torch.float64)
        return torch.where(factors < 1, start + factors * (rows - start), rows)  # not shortened: not a bit changed

    def merged(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.is_floating_point() and self.trim is None:
            return weighted_sum(rows, [weight for weight in self.weights.values() if weight > 0])
        if self.largest_counter:
            return rows.amax(0)
        ordered = torch.from_numpy(np.sort(rows.numpy(), axis=0))  # many times as fast as torch's sort
        if not rows.is_floating_point():
            return ordered[(len(rows) - 1) // 2]
        assert self.trim is not None
        return ordered[self.trim : len(rows) - self.trim].mean(0)


def inner_products(agreed: Agreed) -> torch.Tensor:
    """Of every two silos' differences from the global model, [K,K]: all that norms and distances need.

    Statistics of BatchNorm count like parameters: with them, too, a model can be ruined.
    """
    total = torch.zeros((len(agreed.updates.names),) * 2, dtype=torch.float64)
    for key in agreed.keys():
        base = agreed.model[key].reshape(-1)
        for columns, rows in agreed.blocks(key) if base.is_floating_point() else ():
            difference = rows - base[columns].to(torch.float64)
            total += difference @ difference.T
    return total


def clip_factors(norms: torch.Tensor, bound: float | None, to_median: bool) -> torch.Tensor:
    """min(1, bound/norm); of an even number of norms the median is the lower one, which fewer silos can raise."""
    limits = [bound] if bound is not None else []
    if to_median:
        limits.append(float(norms.sort().values[(len(norms) - 1) // 2]))
    return (min(limits) / norms).nan_to_num(1.0).clamp(max=1.0) if limits else torch.ones_like(norms)


def krum_scores(products: torch.Tensor, byzantine: int) -> torch.Tensor:
    """Sum of squared distances to the n-f-2 nearest others; the smallest is the best."""
    squares = products.diagonal()
    distances = (squares + squares[:, None] - 2 * products).clamp(min=0).fill_diagonal_(0)
    nearest = distances.sort(dim=1).values
    return nearest[:, 1 : len(products) - byzantine - 1].sum(1)  # the first is the silo itself
