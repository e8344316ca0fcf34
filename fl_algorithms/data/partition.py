"""Who has which pictures: train/validation split and partition over silos (PROTOCOLS sections 3 and 4).

The split is drawn first, per domain, so that validation pictures do not depend on how many silos there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fl_algorithms.errors import Unusable
from fl_algorithms.randomness import numpy_stream, permutation

RULES = ("domain", "group", "greedy", "dirichlet", "lambda")

Split = tuple[np.ndarray, np.ndarray]  # indices of training and validation pictures of a domain


@dataclass(frozen=True)
class PartitionRule:
    """How the source domains are dealt to silos.

    - `domain`: each domain is cut into `silos_per_domain` equal parts (FedCCRL); one silo per domain is the usual case.
    - `group`: the same, but the pictures of a group (FEMNIST: a writer) stay in one silo. As many silos as there are groups
      makes every writer a silo.
    - `greedy`: `silos` silos of one domain each; the next silo goes to the domain with most pictures per silo (FedIIR).
    - `dirichlet`: every domain is spread over all `silos` in Dirichlet(`alpha`) proportions; small is uneven.
    - `lambda`: from one domain per silo (`heterogeneity` 0) to the same mixture everywhere (1), in between linear.
    """

    name: Literal["domain", "group", "greedy", "dirichlet", "lambda"] = "domain"
    silos_per_domain: int = 1
    silos: int = 1
    alpha: float = 1.0
    heterogeneity: float = 0.0

    def __post_init__(self) -> None:
        checks = (
            ("silos_per_domain", self.silos_per_domain >= 1, "1 or more"),
            ("silos", self.silos >= 1, "1 or more"),
            ("alpha", 0 < self.alpha < float("inf"), "a number above 0"),
            ("heterogeneity", 0 <= self.heterogeneity <= 1, "a number from 0 to 1"),
            ("name", self.name in RULES, ", ".join(RULES)),
        )
        for field, holds, expected in checks:
            if not holds:
                raise Unusable(f"partition.{field}: expected {expected}, found {getattr(self, field)!r}")

    @property
    def owns_domain(self) -> bool:
        """Whether a silo's name tells its one domain, so that it need not see any other."""
        return self.name in ("domain", "group")


@dataclass(frozen=True)
class Share:
    """What one silo has: indices into the domain's pictures. Domains of which it has none are left out."""

    train: dict[str, np.ndarray]
    validation: dict[str, np.ndarray]


def split(labels: np.ndarray, fraction: float, seed: int, domain: str, groups: np.ndarray | None = None) -> Split:
    """Shuffled training and validation indices; `fraction` of every class is for validation, at least one is not.

    Pictures of one group stay together; then it is groups that are counted, of any class if they hold several. Depends
    on nothing but its arguments.
    """
    if not 0 <= fraction < 1:
        raise Unusable(f"validation fraction: expected a number from 0 to below 1, found {fraction}")
    members = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    units = int(members.max()) + 1 if len(labels) else 0
    unit_labels = np.zeros(units, np.int64)
    unit_labels[members] = labels
    if (unit_labels[members] != labels).any():  # writers, for instance: there is no class to keep in proportion
        unit_labels[:] = 0
    order = permutation(units, seed, "split", domain)
    held_out = np.zeros(units, bool)
    for label in np.unique(unit_labels):
        of_class = order[unit_labels[order] == label]
        # round() is half-to-even: on PACS it gives exactly the sizes of FedCCRL's unstratified 90/10 split.
        held_out[of_class[: min(round(fraction * len(of_class)), len(of_class) - 1)]] = True
    position = np.empty(units, np.int64)
    position[order] = np.arange(units)
    shuffled = np.argsort(position[members], kind="stable")
    for_validation = held_out[members[shuffled]]
    return shuffled[~for_validation], shuffled[for_validation]


def listed_split(held_out: np.ndarray, seed: int, domain: str) -> Split:
    """The split of the data set's own lists, each side shuffled."""
    if not 0 < held_out.sum() < len(held_out):
        raise Unusable(f"dataset.split: expected pictures in both lists of {domain}, found {held_out.sum()} held out of {len(held_out)}")
    order = permutation(len(held_out), seed, "split", domain)
    return order[~held_out[order]], order[held_out[order]]


def partition(
    rule: PartitionRule, splits: Mapping[str, Split], seed: int, groups: Mapping[str, np.ndarray | None] | None = None
) -> dict[str, Share]:
    """Silo name -> share. Every picture goes to exactly one silo; a silo without training pictures is refused.

    `groups` of every domain are asked for by rule `group` only.
    """
    domains = sorted(splits)
    sizes = {domain: len(splits[domain][0]) for domain in domains}
    names = silo_names(rule, domains)
    portions = _portions(rule, sizes, seed)
    shares = {name: Share({}, {}) for name in names}
    for domain in domains:
        for kind, indices in zip(("train", "validation"), splits[domain], strict=True):
            of_domain = (groups or {}).get(domain) if rule.name == "group" else None
            if rule.name == "group" and of_domain is None:
                raise Unusable(f"partition.rule: expected groups of pictures in {domain}, found none; set partition.rule=domain")
            parts = _cut(indices, portions[domain]) if of_domain is None else _cut_groups(indices, portions[domain], of_domain)
            for name, part in zip(names, parts, strict=True):
                if len(part):
                    getattr(shares[name], kind)[domain] = part
    empty = [name for name, share in shares.items() if not share.train]
    if empty:
        raise Unusable(
            f"partition {rule.name}: expected training pictures in every silo, found none for {empty[0]} "
            f"({len(empty)} of {len(names)} silos are empty); ask for fewer silos or a more even rule"
        )
    return shares


def _portions(rule: PartitionRule, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """For each domain which fraction of it goes to which silo; each sums to 1."""
    if rule.owns_domain:
        return _owned(dict.fromkeys(sizes, rule.silos_per_domain))
    if rule.name == "dirichlet":
        alphas = np.full(rule.silos, rule.alpha)
        return {domain: numpy_stream(seed, "partition", domain).dirichlet(alphas) for domain in sizes}
    pure = _owned(_greedy(sizes, rule.silos))
    if rule.name == "greedy":
        return pure
    mixed = rule.heterogeneity / rule.silos
    return {domain: (1 - rule.heterogeneity) * portion + mixed for domain, portion in pure.items()}


def _owned(counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Consecutive silos own a domain in equal parts."""
    owners = np.repeat(np.arange(len(counts)), list(counts.values()))
    return {domain: (owners == i) / count for i, (domain, count) in enumerate(counts.items())}


def _greedy(sizes: Mapping[str, int], silos: int) -> dict[str, int]:
    if silos < len(sizes):
        raise Unusable(f"partition.silos: expected at least one silo for each of {len(sizes)} domains, found {silos}")
    counts = dict.fromkeys(sizes, 1)
    for _ in range(silos - len(sizes)):
        largest = max(sizes, key=lambda domain: sizes[domain] / counts[domain])
        counts[largest] += 1
    return counts


def _cut(indices: np.ndarray, portions: np.ndarray) -> list[np.ndarray]:
    """Consecutive parts. Rounding the running total loses nothing and leaves equal portions within 1 of each other."""
    ends = np.floor(np.cumsum(portions)[:-1] * len(indices) + 0.5).astype(np.int64)
    return np.split(indices, ends)


def _cut_groups(indices: np.ndarray, portions: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    """Consecutive parts of whole groups, which `split` has left adjacent; it is groups that are counted."""
    starts = np.flatnonzero(np.diff(groups[indices], prepend=-1))
    firsts = np.cumsum([len(part) for part in _cut(starts, portions)], dtype=np.int64)[:-1]
    return np.split(indices, np.append(starts, len(indices))[firsts])


def silo_names(rule: PartitionRule, domains: list[str]) -> list[str]:
    """DNS-1123 labels, since silos become buckets, pods and services."""
    if not rule.owns_domain:
        return [f"silo-{number:02d}" for number in range(1, rule.silos + 1)]
    made: dict[str, str] = {}
    for domain in domains:
        name = re.sub(r"[^a-z0-9]+", "-", domain.lower()).strip("-")
        longest = 63 - len(f"-{rule.silos_per_domain}")
        if not name or len(name) > longest:
            raise Unusable(
                f"domain {domain!r}: expected a name that gives 1 to {longest} letters, digits or '-' for its silo, "
                f"found {name!r}; rename the domain"
            )
        if name in made:
            raise Unusable(f"domains {made[name]!r} and {domain!r}: expected two silo names, found {name!r} for both; rename one")
        made[name] = domain
    count = rule.silos_per_domain
    return [name if count == 1 else f"{name}-{number}" for name in made for number in range(1, count + 1)]
