"""FederationSpec: everything that decides a run, validated once, up front, with errors that name the field.

Parsing needs no torch. `resolve` then asks the chosen algorithm and data set whether they can serve the federation.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from components.errors import InputError

MAX_SPEC_BYTES = 64 << 10  # the loader needs a second for 80 KB
MAX_NAMES = 30
BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSpec(Strict):
    """Which images. A plain name is short for a mapping with only `name`."""

    name: Annotated[str, Field(description="data set; `siloflow datasets` lists them")]
    path: Annotated[str | None, Field(description="folder with the files, for data sets that need one")] = None
    image_size: Annotated[int | None, Field(ge=8, le=1024, description="pixels; null: the data set's own")] = None
    protocol: Annotated[str | None, Field(description="variant of the data set, where it has several")] = None
    on_broken: Annotated[Literal["fail", "skip"], Field(description="a broken image ends the run, or is left out and counted")] = "fail"
    lists: Annotated[str | None, Field(description="folder with the list files, for data sets that have some")] = None
    split: Annotated[
        Literal["drawn", "listed"],
        Field(description="drawn: `validation` of every class is held out; listed: what the data set's own lists hold out"),
    ] = "drawn"
    target_subset: Annotated[
        Literal["all", "test"], Field(description="images of the target that count: all, or only those that `split` holds out")
    ] = "all"


class PartitionSpec(Strict):
    """How the source domains' training images are dealt to silos."""

    rule: Annotated[
        Literal["domain", "group", "dirichlet", "greedy", "lambda"],
        Field(
            description="domain: one domain a silo; group: the same, and no writer in two silos; "
            "greedy: the same as domain, large domains get more silos; dirichlet, lambda: domains mixed"
        ),
    ] = "domain"
    silos: Annotated[int | None, Field(ge=1, le=10_000, description="number of silos, for dirichlet, greedy and lambda")] = None
    alpha: Annotated[float, Field(gt=0, description="dirichlet: concentration; small is heterogeneous")] = 0.5
    heterogeneity: Annotated[float, Field(ge=0, le=1, description="lambda: 0 domain-pure silos, 1 homogeneous")] = 0.0


class FederationSpec(Strict):
    algorithm: Annotated[str, Field(description="algorithm or preset; `siloflow algorithms` lists them")] = "fedccrl"
    hyper: Annotated[dict[str, Any], Field(description="hyper-parameters of the algorithm; `siloflow algorithms NAME` lists them")] = {}
    dataset: Annotated[DataSpec, Field(description="the images")] = DataSpec(name="styled-digits")
    target: Annotated[str | None, Field(description="the domain no silo has; null: the data set's last")] = None
    sources: Annotated[tuple[str, ...] | None, Field(description="domains the silos have; null: all but the target")] = None
    backbone: Annotated[str, Field(description="network; `siloflow spec --backbones` lists them")] = "small-cnn"
    weights: Annotated[str | None, Field(description="file with initial weights (.safetensors, .pth); null: random")] = None
    rounds: Annotated[int, Field(ge=1, le=100_000, description="communication rounds")] = 10
    seed: Annotated[int, Field(ge=0, lt=2**63, description="root of every random stream")] = 0
    silos_per_domain: Annotated[int, Field(ge=1, le=10_000, description="silos among which a source domain is divided")] = 1
    partition: Annotated[PartitionSpec, Field(description="how images are dealt to silos")] = PartitionSpec()
    validation: Annotated[float, Field(gt=0, lt=1, description="share of a source domain kept for validation")] = 0.1
    evaluate_every: Annotated[int, Field(ge=1, description="rounds between two evaluations; the last round is always evaluated")] = 1
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="where silos train")] = "auto"
    threads: Annotated[
        int | None,
        Field(
            ge=1,
            description="CPU threads of a silo; null: cores / silos. Sums in another order differ in the last bits",
        ),
    ] = None
    store: Annotated[str | None, Field(description="exchange store, file:///dir or s3://host/prefix; null: inside the run folder")] = None
    deadline: Annotated[float, Field(gt=0, description="seconds a silo has for one exchange")] = 3600.0
    quorum: Annotated[float, Field(gt=0, le=1, description="share of the participants whose accepted update a round needs")] = 1.0
    keep_rounds: Annotated[
        int | None,
        Field(ge=1, description="rounds a silo may be late: models replaced longer ago, and counted with, are deleted; null: keep all"),
    ] = 3
    norm_bound: Annotated[
        float | None, Field(gt=0, description="largest L2 norm of an update's difference from the global model; null: any")
    ] = None
    samples_bound: Annotated[
        int, Field(ge=1, description="most training images a silo may say it has: its weight follows from that number")
    ] = 10**9

    @field_validator("dataset", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("target", mode="before")
    @classmethod
    def _domain_names_may_look_like_numbers(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the same for every way of writing the same spec."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ---- reading


def read_spec(path: Path) -> dict[str, Any]:
    return read_mapping(path, "spec", "`siloflow init` writes an example")


def read_mapping(path: Path, what: str, hint: str) -> dict[str, Any]:
    """The mapping in a YAML file, or an InputError that says what is wrong with the file."""
    try:
        if path.stat().st_size > MAX_SPEC_BYTES:
            raise InputError(f"{what} {path}: {path.stat().st_size} bytes, expected at most {MAX_SPEC_BYTES}; is this the right file?")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{what} {path}: cannot be read ({error.strerror}); {hint}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{what} {path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x} at offset {error.start}"
        ) from None
    return parse_mapping(text, f"{what} {path}", hint)


def parse_mapping(text: str, what: str, hint: str = "write field: value") -> dict[str, Any]:
    """The mapping in a YAML (or JSON) text, or an InputError that says what is wrong with it."""
    if len(text) > MAX_SPEC_BYTES:
        raise InputError(f"{what}: {len(text)} characters, expected at most {MAX_SPEC_BYTES}")
    try:
        values = _read_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InputError(f"{what}: not valid YAML{where}: {getattr(error, 'problem', None) or type(error).__name__}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        found = "nothing" if values is None else f"a {type(values).__name__}"
        raise InputError(f"{what}: expected a mapping of fields, found {found}; {hint}")
    return values


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'hyper': {'lr': 1}} -> {'hyper.lr': 1}"""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value})
    return result


class _PlainLoader(yaml.SafeLoader):
    """Without aliases: a few lines of them stand for gigabytes, or for themselves."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name); write the value out", problem_mark=self.peek_event().start_mark)
        return super().compose_node(parent, index)


def _read_yaml(text: str) -> Any:
    # not the C loader: it overflows the stack on deeply nested text, and that ends the process
    return yaml.load(text, Loader=_PlainLoader)


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`a.b=c` texts on top of a spec; the value is read as YAML, so numbers, lists and null work."""
    result = json.loads(json.dumps(dict(values), default=str))
    for text in overrides:
        name, found, value = text.partition("=")
        if not found or not name:
            raise InputError(f"--set {text}: expected field=value, e.g. --set rounds=20 or --set hyper.lr=0.01")
        *parents, last = name.strip().split(".")
        place = result
        for parent in parents:
            inner = place.get(parent)
            if isinstance(inner, str) and parent == "dataset":
                inner = {"name": inner}
            place[parent] = inner if isinstance(inner, dict) else {}
            place = place[parent]
        try:
            place[last] = _read_yaml(value)
        except (yaml.YAMLError, RecursionError, ValueError):
            raise InputError(f"--set {text}: the value is not valid YAML") from None
        if isinstance(place[last], str):
            place[last] = _number_or_text(place[last])
    return result


def _number_or_text(text: str) -> float | str:
    """YAML 1.1 reads 1e-3 as text; a person who types it means the number."""
    try:
        return float(text) if text[:1] in "+-.0123456789" else text
    except ValueError:
        return text


def parse_spec(values: Mapping[str, Any]) -> FederationSpec:
    """Types, ranges and names; one line for the first thing that is wrong."""
    from fl_algorithms.data import DATASETS
    from fl_algorithms.registry import ALGORITHMS

    try:
        spec = FederationSpec.model_validate(values)
    except ValidationError as error:
        raise InputError(explain(error, FederationSpec)) from None
    check_name("algorithm", spec.algorithm, ALGORITHMS)
    check_name("dataset", spec.dataset.name, DATASETS)
    return spec


def check_name(field: str, found: str, allowed: Iterable[str]) -> None:
    names = sorted(allowed)
    if found not in names:
        raise InputError(f"{field} {found[:80]!r}: {nearest(found, names)}")


def nearest(found: str, names: Sequence[str]) -> str:
    """A hint for a misspelt name: the closest one, and the others as long as they fit into a line."""
    close = difflib.get_close_matches(found, names, n=1, cutoff=0.6)
    shown = ", ".join(names[:MAX_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > MAX_NAMES else "")
    if not close:
        return f"expected one of {shown}"
    return f"did you mean '{close[0]}'?" + (f" (known: {shown})" if len(names) <= MAX_NAMES else "")


def allowed_range(hint: Any) -> str:
    """`> 0, <= 1`, from `Annotated[type, bounds...]`; empty where no bounds are declared."""
    declared = getattr(hint, "__metadata__", ())
    return ", ".join(f"{sign} {getattr(item, name):g}" for item in declared for name, sign in BOUNDS.items() if hasattr(item, name))


def explain(error: ValidationError, model: Any, prefix: str = "") -> str:
    """The first validation error as one line: field, what was found, what is allowed."""
    errors = error.errors(include_url=False)
    # A misspelt field is also a missing one; that it is misspelt is what helps.
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    where = ".".join([prefix, *(str(part) for part in first["loc"])]).strip(".")
    if first["type"] == "extra_forbidden":
        owner = model
        for part in first["loc"][:-1]:
            owner = get_args(owner)[0] if isinstance(part, int) else owner.model_fields[part].annotation
            owner = get_args(owner)[0] if type(None) in get_args(owner) else owner  # of `Model | None` the model
        return f"unknown field {where[:80]!r}: {nearest(str(first['loc'][-1]), sorted(owner.model_fields))}"
    found = str(first["input"])
    reason = first["msg"].removeprefix("Value error, ")
    return (
        f"{where}: {reason[:1].lower() + reason[1:]}, found {found[:80]!r}"
        if first["type"] != "missing"
        else f"{where}: missing; it is required"
    )
