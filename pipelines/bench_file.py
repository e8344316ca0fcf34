"""The file of a benchmark: algorithms x targets x seeds on top of one common spec, and what a cell of that grid runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from components.errors import InputError
from components.spec import Strict, apply_overrides, check_name, explain, nearest, parse_spec, read_mapping
from fl_algorithms.registry import ALGORITHMS

GRID = ("algorithm", "target", "seed")  # fields of a spec that the grid sets
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class BenchFile(Strict):
    name: Annotated[str, Field(description="of the benchmark: its history and its tables are kept under it")]
    algorithms: Annotated[tuple[str, ...], Field(min_length=1, description="rows of the table: algorithms or presets")]
    targets: Annotated[tuple[str, ...], Field(min_length=1, description="columns of the table: domains, each in turn the unseen one")]
    seeds: Annotated[tuple[int, ...], Field(min_length=1, description="repetitions of every cell")] = (0, 1, 2)
    spec: Annotated[dict[str, Any], Field(description="what all cells share: fields of a federation's spec")]
    per_algorithm: Annotated[
        dict[str, dict[str, Any]], Field(default_factory=dict, description="fields of the spec for one algorithm only")
    ]
    exact: Annotated[dict[str, Any] | None, Field(description="a tiny spec whose final digest must never change")] = None


@dataclass(frozen=True, order=True)
class Cell:
    algorithm: str
    target: str
    seed: int
    exact: bool = False

    @property
    def place(self) -> str:
        """Of its accuracy in the table, whatever the seed."""
        return f"{self.algorithm}/{self.target}"

    def __str__(self) -> str:
        return f"{self.place}/{self.seed}" + (" (exact)" if self.exact else "")


@dataclass(frozen=True)
class Work:
    """One cell and the values of its spec."""

    cell: Cell
    values: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of what was asked for: a row counts only for the same."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def run_name(self, of: str) -> str:
        """Names every night's runs apart: a shared store would otherwise hand out the result of the night before."""
        name = f"{of}-{self.cell.algorithm}-{self.cell.target}-{self.cell.seed}" + ("-exact" if self.cell.exact else "")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-100:].lstrip("._-")


def read_bench(path: Path, settings: Sequence[str] = ()) -> BenchFile:
    """`settings`: FIELD=VALUE on top of the common spec."""
    values = read_mapping(path, "benchmark", "it needs name, algorithms, targets and spec")
    if isinstance(values.get("targets"), list):  # a domain may look like a number
        values["targets"] = [str(target) for target in values["targets"]]
    try:
        file = BenchFile.model_validate(values)
    except ValidationError as error:
        raise InputError(f"benchmark {path}: {explain(error, BenchFile)}") from None
    if not _NAME.fullmatch(file.name):
        raise InputError(f"benchmark {path}: name: expected 1 to 40 of A-Z a-z 0-9 . _ -, found {file.name[:80]!r}")
    for name in [*file.algorithms, *file.per_algorithm]:
        check_name("algorithms", name, ALGORITHMS)
    for field in GRID:
        if field in file.spec:
            raise InputError(f"benchmark {path}: spec.{field}: is set by the grid; remove it there and use `{field}s`")
    return file.model_copy(update={"spec": apply_overrides(file.spec, settings)})


def work_of(file: BenchFile) -> list[Work]:
    """All cells, checked before any of them runs. Seeds outermost: after the first there is a whole table.

    Loads the algorithms, and with them torch, to know which of the common hyper-parameters each has.
    """
    _refuse_unknown_hyper(file)
    grid = [Cell(algorithm, target, seed) for seed in file.seeds for algorithm in file.algorithms for target in file.targets]
    work = [Work(cell, _values(file, cell)) for cell in grid]
    if file.exact is not None:
        exact = {"seed": 0, "threads": 1, **file.exact}
        spec = parse_spec(exact)
        work.insert(0, Work(Cell(spec.algorithm, spec.target or "last", spec.seed, exact=True), exact))
    for item in work:
        try:
            parse_spec(item.values)
        except InputError as error:
            raise InputError(f"cell {item.cell}: {error}") from None
    return work


def chosen(work: Sequence[Work], only: Sequence[str]) -> list[Work]:
    """The cells of these algorithms in the table."""
    for name in only:
        check_name("--only", name, {item.cell.algorithm for item in work if not item.cell.exact})
    return [item for item in work if item.cell.algorithm in only and not item.cell.exact]


def _values(file: BenchFile, cell: Cell) -> dict[str, Any]:
    """The common spec, less the hyper-parameters that this algorithm does not have, plus its own.

    One thread unless said otherwise: the number of threads changes the last bits, and a cell may get any number of cores.
    """
    own = dict(file.per_algorithm.get(cell.algorithm, {}))
    known = _hyper_names(cell.algorithm)
    hyper = {name: value for name, value in (file.spec.get("hyper") or {}).items() if name in known}
    hyper |= own.pop("hyper", None) or {}
    return {"threads": 1, **file.spec, **own, "algorithm": cell.algorithm, "target": cell.target, "seed": cell.seed, "hyper": hyper}


def _hyper_names(algorithm: str) -> set[str]:
    return {field.name for field in dataclasses.fields(ALGORITHMS[algorithm].load().Hyper)}


def _refuse_unknown_hyper(file: BenchFile) -> None:
    """A common hyper-parameter that nobody has is misspelt, and would silently do nothing."""
    known = sorted(set().union(*map(_hyper_names, file.algorithms)))
    for name in file.spec.get("hyper") or {}:
        if name not in known:
            raise InputError(f"spec.hyper.{name}: no algorithm of this benchmark has it; {nearest(name, known)}")
    for algorithm, own in file.per_algorithm.items():
        for name in own.get("hyper") or {}:
            if name not in _hyper_names(algorithm):
                names = sorted(_hyper_names(algorithm))
                raise InputError(f"per_algorithm.{algorithm}.hyper.{name}: unknown to {algorithm}; {nearest(name, names)}")
