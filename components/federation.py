"""One federation as every role sees it: the resolved spec, the algorithm, the store, the data a role may touch."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError

from components import layout
from components.errors import InputError
from components.spec import FederationSpec, PartitionSpec, allowed_range, explain, nearest
from components.store import Store, check_address, open_store
from fl_algorithms.contract import Algorithm, Exchange, Task
from fl_algorithms.data import DATASETS, DataSet, open_dataset
from fl_algorithms.data.partition import PartitionRule, Share, Split, listed_split, partition, silo_names, split
from fl_algorithms.device import prepare
from fl_algorithms.errors import Unusable
from fl_algorithms.models import MODELS
from fl_algorithms.registry import ALGORITHMS
from fl_algorithms.samples import Samples

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def resolve_hyper(algorithm: str, given: dict[str, Any]) -> dict[str, Any]:
    """All hyper-parameters of the algorithm, checked against its own declaration."""
    entry = ALGORITHMS[algorithm]
    hyper = entry.load().Hyper
    known = sorted(field.name for field in dataclasses.fields(hyper))
    for name in given:
        if name not in known:
            raise InputError(f"unknown field {f'hyper.{name}'[:80]!r} of {algorithm}: {nearest(name, known)}")
    try:
        values = dataclasses.asdict(TypeAdapter(hyper).validate_python({**entry.defaults, **given}))
    except ValidationError as error:
        bounds = allowed_range(get_type_hints(hyper, include_extras=True)[str(error.errors()[0]["loc"][0])])
        both = f" (allowed: {bounds})" if "," in bounds else ""  # the message itself names the one that was broken
        raise InputError(explain(error, None, "hyper") + both) from None
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"hyper.{name}: expected a finite number, found {value}")
    return values


def resolve(spec: FederationSpec, elsewhere: Sequence[str] = (), data_path: str | None = None) -> FederationSpec:
    """The spec with every default filled in and every name checked. What it returns needs no further choice.

    `elsewhere`: domains whose files this process does not see. `data_path`: where this process has its own.
    """
    if spec.backbone not in MODELS:
        raise InputError(f"backbone {spec.backbone[:80]!r}: {nearest(spec.backbone, sorted(MODELS))}")
    try:
        data = _open(spec, data_path)
        domains = tuple(sorted({*data.domains, *elsewhere})) if DATASETS[spec.dataset.name].own else data.domains
        target = spec.target if spec.target is not None else data.domains[-1]
        sources = spec.sources if spec.sources is not None else tuple(name for name in domains if name != target)
        for field, name in [("target", target), *(("sources", source) for source in sources)]:
            if name not in domains:
                raise InputError(f"{field} {name[:80]!r}: {nearest(name, domains)}")
        if target in sources:
            raise InputError(f"target '{target}': is also a source; the target must be a domain that no silo has")
        if not sources:
            raise InputError(f"sources: none left beside target '{target}'; data set {spec.dataset.name} has {len(data.domains)} domain")
        if spec.store is not None:
            check_address(spec.store)
        filled: dict[str, Any] = {"hyper": resolve_hyper(spec.algorithm, spec.hyper), "target": target, "sources": sources}
        if ALGORITHMS[spec.algorithm].load().centralised:
            filled |= _pooled(spec)
        resolved = spec.model_copy(update=filled)
        federation = Federation(resolved, "check", Path(), data_path=data_path)
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


def checked_run(run: str) -> str:
    """A run's name is part of keys in the store and of messages."""
    if not _RUN.fullmatch(run):
        found = f"{run[:80]!a}" + ("..." if len(run) > 80 else "")
        raise InputError(f"run {found}: expected 1 to 100 of A-Z a-z 0-9 . _ -, a letter or digit first; choose another --out")
    return run


def _open(spec: FederationSpec, path: str | None) -> DataSet:
    data = spec.dataset
    where = path or data.path if DATASETS[data.name].needs_path else data.path
    return open_dataset(data.name, where, data.image_size, data.on_broken, data.protocol, data.lists)


class Federation:
    """Cheap to make: data and networks are touched when first asked for, so a role loads only what it needs."""

    def __init__(
        self,
        spec: FederationSpec,
        run: str,
        folder: Path,
        role: str | None = None,
        store_url: str | None = None,
        data_path: str | None = None,
    ) -> None:
        """`store_url`, `data_path`: how this process reaches the store and its images, where that differs from the spec."""
        self.spec, self.run, self.folder = spec, checked_run(run), folder
        self.digest = spec.digest()
        self._role, self._store_url, self._data_path = role, store_url, data_path
        self._shares: dict[tuple[str, ...], dict[str, Share]] = {}

    def beside(self, role: str) -> Federation:
        """The same federation for another silo that this process plays: what was read of the data serves both, keys do not."""
        _ = self.data, self.silos  # first, so that the copy has them too
        other = copy.copy(self)
        other._role = role
        other.__dict__.pop("store", None)
        other.algorithm = self.algorithm.beside()
        return other

    @cached_property
    def store(self) -> Store:
        """Opened with the role's own keys, which who only looks at the spec need not have."""
        return open_store(self._store_url or self.spec.store or (self.folder / "store").absolute().as_uri(), self._role)

    @cached_property
    def data(self) -> DataSet:
        return _open(self.spec, self._data_path)

    @cached_property
    def device(self) -> torch.device:
        wanted = self.spec.device
        if wanted == "cuda" and not torch.cuda.is_available():
            raise InputError("device 'cuda': this machine has no usable CUDA device; set device=cpu, or see `siloflow doctor`")
        device = torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")
        prepare(device)
        return device

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
        names = sorted(silo_names(self._rule, sorted(self.spec.sources or ())))
        for name in names:
            if name in layout.RESERVED:
                raise InputError(f"silo '{name}': expected another name than {', '.join(layout.RESERVED)}; rename its domain")
        return names

    @cached_property
    def _rule(self) -> PartitionRule:
        rule = self.spec.partition
        return PartitionRule(
            rule.rule, self.spec.silos_per_domain, rule.silos or len(self.spec.sources or ()), rule.alpha, rule.heterogeneity
        )

    # ---- the order of steps

    def steps(self) -> Iterator[tuple[int, str]]:
        """Every exchange of the run, first to last."""
        return ((round, exchange.name) for round in range(self.spec.rounds + 1) for exchange in self.algorithm.exchanges(round))

    def counts(self, round: int) -> bool:
        """Whether right answers are counted with this round's model."""
        return round > 0 and (round == self.spec.rounds or round % self.spec.evaluate_every == 0)

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
        if tuple(domains) not in self._shares:
            groups = {domain: self.data.domain(domain).groups for domain in domains}
            splits = {domain: self._split(domain) for domain in domains}
            self._shares[tuple(domains)] = partition(self._rule, splits, self.spec.seed, groups)
        return self._shares[tuple(domains)]

    def _split(self, domain: str) -> Split:
        images, spec = self.data.domain(domain), self.spec
        if spec.dataset.split == "drawn":
            return split(images.labels, spec.validation, spec.seed, domain, images.groups)
        if images.held_out is None:
            raise Unusable(f"dataset.split: expected lists of {spec.dataset.name}, found it has none here; set dataset.split=drawn")
        return listed_split(images.held_out, spec.seed, domain)

    def share(self, silo: str) -> Share:
        sources = self.spec.sources or ()
        own = [domain for domain in sources if silo in silo_names(self._rule, [domain])] if self._rule.owns_domain else sources
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
    def target_rows(self) -> list[int]:
        """The images that accuracy on the target is counted over."""
        target = str(self.spec.target)
        chosen = self._split(target)[1] if self.spec.dataset.target_subset == "test" else range(len(self.data.domain(target)))
        return sorted(map(int, chosen))

    @cached_property
    def target_samples(self) -> Samples:
        return self.samples({str(self.spec.target): self.target_rows})


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON and YAML know no tuples; frozen hyper-parameters do."""
    return {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
