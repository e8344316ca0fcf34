"""One federation as every role sees it: the resolved spec, the algorithm, the store, the data a role may touch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from components.errors import InputError
from components.spec import FederationSpec, PartitionSpec, explain, nearest
from components.store import open_store
from fl_algorithms.contract import Algorithm, Exchange, Task
from fl_algorithms.data import DataSet, open_dataset
from fl_algorithms.data.partition import PartitionRule, Share, partition, silo_names, split
from fl_algorithms.errors import Unusable
from fl_algorithms.models import MODELS
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples


def resolve_hyper(algorithm: str, given: dict[str, Any]) -> dict[str, Any]:
    """All hyper-parameters of the algorithm, checked against its own declaration."""
    entry = ALGORITHMS[algorithm]
    hyper = entry.load().Hyper
    known = sorted(field.name for field in dataclasses.fields(hyper))
    for name, value in given.items():
        if name not in known:
            raise InputError(f"unknown field 'hyper.{name}' of {algorithm}: {nearest(name, known)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"hyper.{name}: expected a finite number, found {value}")
    try:
        return dataclasses.asdict(TypeAdapter(hyper).validate_python({**entry.defaults, **given}))
    except ValidationError as error:
        raise InputError(explain(error, None, "hyper")) from None


def resolve(spec: FederationSpec) -> FederationSpec:
    """The spec with every default filled in and every name checked. What it returns needs no further choice."""
    if spec.backbone not in MODELS:
        raise InputError(f"backbone '{spec.backbone}': {nearest(spec.backbone, sorted(MODELS))}")
    try:
        data = _open(spec)
        target = spec.target if spec.target is not None else data.domains[-1]
        sources = spec.sources if spec.sources is not None else tuple(name for name in data.domains if name != target)
        for field, name in [("target", target), *(("sources", source) for source in sources)]:
            if name not in data.domains:
                raise InputError(f"{field} '{name}': {nearest(name, data.domains)}")
        if target in sources:
            raise InputError(f"target '{target}': is also a source; the target must be a domain that no silo has")
        if not sources:
            raise InputError(f"sources: none left beside target '{target}'; data set {spec.dataset.name} has {len(data.domains)} domain")
        filled: dict[str, Any] = {"hyper": resolve_hyper(spec.algorithm, spec.hyper), "target": target, "sources": sources}
        if ALGORITHMS[spec.algorithm].load().centralised:
            filled |= _pooled(spec)
        resolved = spec.model_copy(update=filled)
        federation = Federation(resolved, "check", Path())
        federation.algorithm.refuse(federation.silos)
    except Unusable as error:
        raise InputError(str(error)) from None
    return resolved


def _pooled(spec: FederationSpec) -> dict[str, Any]:
    """One silo that has every source domain, whatever the partition of the federation it is compared with."""
    if spec.store is not None and "://" in spec.store and not spec.store.startswith("file://"):
        raise InputError(
            f"algorithm '{spec.algorithm}': pools the images of all silos, expected a file:// store, found one for separate silos; "
            "leave store out, or choose a federated algorithm"
        )
    return {"partition": PartitionSpec(rule="dirichlet", silos=1), "silos_per_domain": 1}


def _open(spec: FederationSpec) -> DataSet:
    data = spec.dataset
    return open_dataset(data.name, data.path, data.image_size, data.on_broken, data.protocol)


class Federation:
    """Cheap to make: data and networks are touched when first asked for, so a role loads only what it needs."""

    def __init__(self, spec: FederationSpec, run: str, folder: Path, role: str | None = None) -> None:
        self.spec, self.run, self.folder = spec, run, folder
        self.digest = spec.digest()
        self.store = open_store(spec.store or (folder / "store").absolute().as_uri(), role)

    @cached_property
    def data(self) -> DataSet:
        return _open(self.spec)

    @cached_property
    def device(self) -> torch.device:
        wanted = self.spec.device
        if wanted == "cuda" and not torch.cuda.is_available():
            raise InputError("device 'cuda': this machine has no usable CUDA device; set device=cpu, or see `siloflow doctor`")
        return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")

    @cached_property
    def task(self) -> Task:
        data = self.data
        spec, sources = self.spec, self.spec.sources or ()
        return Task(spec.backbone, len(data.classes), data.channels, data.image_size, data.mean, data.std, spec.weights, len(sources))

    @cached_property
    def algorithm(self) -> Algorithm:
        cls = ALGORITHMS[self.spec.algorithm].load()
        return cls(cls.Hyper(**{**self.spec.hyper, **_tuples(self.spec.hyper)}), self.task)

    @cached_property
    def silos(self) -> list[str]:
        return sorted(silo_names(self._rule, sorted(self.spec.sources or ())))

    @cached_property
    def _rule(self) -> PartitionRule:
        rule = self.spec.partition
        return PartitionRule(
            rule.rule, self.spec.silos_per_domain, rule.silos or len(self.spec.sources or ()), rule.alpha, rule.heterogeneity
        )

    # ---- the order of steps

    def exchange(self, round: int, name: str) -> Exchange:
        return next(exchange for exchange in self.algorithm.exchanges(round) if exchange.name == name)

    def step_before(self, round: int, name: str) -> tuple[int, str] | None:
        names = [exchange.name for exchange in self.algorithm.exchanges(round)]
        at = names.index(name)
        if at > 0:
            return round, names[at - 1]
        return (round - 1, self.last_exchange(round - 1)) if round > 0 else None

    def step_after(self, round: int, name: str) -> tuple[int, str] | None:
        names = [exchange.name for exchange in self.algorithm.exchanges(round)]
        at = names.index(name) + 1
        if at < len(names):
            return round, names[at]
        return (round + 1, self.algorithm.exchanges(round + 1)[0].name) if round < self.spec.rounds else None

    def last_exchange(self, round: int) -> str:
        """The broadcast of this exchange is the round's result."""
        return self.algorithm.exchanges(round)[-1].name

    # ---- the images of one role

    def shares(self, domains: Sequence[str]) -> dict[str, Share]:
        """Who has which image, as far as these domains tell. A silo with one domain needs no other's files."""
        images = {domain: self.data.domain(domain) for domain in domains}
        splits = {domain: split(one.labels, self.spec.validation, self.spec.seed, domain, one.groups) for domain, one in images.items()}
        return partition(self._rule, splits, self.spec.seed)

    def share(self, silo: str) -> Share:
        sources = self.spec.sources or ()
        own = [domain for domain in sources if silo in silo_names(self._rule, [domain])] if self._rule.name == "domain" else sources
        return self.shares(own)[silo]

    def samples(self, rows: dict[str, Any]) -> Samples:
        """Images of these rows of these domains, on the training device."""
        rows = rows or {(self.spec.sources or ())[0]: []}
        sources = [(self.data.domain(domain), index) for domain, index in sorted(rows.items())]
        order = [*sorted(self.spec.sources or ()), self.spec.target]
        numbers = [order.index(domain) for domain in sorted(rows)]
        parts = [(images.pixels, images.labels, index) for images, index in sources]
        return Samples(parts, self.data.mean, self.data.std, self.device, numbers)

    @cached_property
    def target_samples(self) -> Samples:
        assert self.spec.target is not None
        return self.samples({self.spec.target: range(len(self.data.domain(self.spec.target)))})


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON and YAML know no tuples; frozen hyper-parameters do."""
    return {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
