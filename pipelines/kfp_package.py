"""A compiled package as `siloflow submit` sees it: its name, its version, its run form, and what `--set` puts into that form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from components import VERSION
from components.errors import InputError
from components.form import form_values
from components.spec import apply_overrides, check_name, nearest, parse_spec, read_spec

MAX_PACKAGE_BYTES = 32 << 20  # what a KFP server takes
DEEPEST = 100
FIELDS = ("algorithm", "dataset", "target", "rounds", "seed", "overrides", "spec")  # of the run form, that are a spec
COMPILE = "`siloflow compile silos.yaml -o siloflow.yaml` makes one"
_COMPILED_BY = re.compile(r"siloflow (\S{1,40})\s*$")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, and a package is ten times a spec


@dataclass(frozen=True)
class Package:
    path: Path
    content: bytes
    spec: Mapping[str, Any]  # the pipeline, without the Kubernetes settings

    @property
    def name(self) -> str:
        return str(self.spec["pipelineInfo"]["name"])

    @property
    def version(self) -> str:
        """Name of the pipeline's version on the server: the same package is the same version."""
        return hashlib.sha256(self.content).hexdigest()[:12]

    @property
    def compiled_by(self) -> str | None:
        """Version of siloflow; None for a package of someone else."""
        found = _COMPILED_BY.search(str(self.spec["pipelineInfo"].get("description") or ""))
        return found[1] if found else None

    @property
    def form(self) -> dict[str, str]:
        """Type of each parameter of the run form."""
        return {name: str(mapping(entry).get("parameterType", "STRING")) for name, entry in self._declared.items()}

    @property
    def defaults(self) -> dict[str, Any]:
        """What the run form is filled with before anyone types."""
        found = {name: entry["defaultValue"] for name, entry in self._declared.items() if "defaultValue" in mapping(entry)}
        whole = [name for name in found if self.form[name] == "NUMBER_INTEGER" and isinstance(found[name], float)]
        return found | {name: int(found[name]) for name in whole}  # the compiler writes 2.0

    @property
    def _declared(self) -> Mapping[str, Any]:
        return mapping(mapping(mapping(self.spec.get("root")).get("inputDefinitions")).get("parameters"))

    @property
    def cached(self) -> list[str]:
        """Steps that KFP may skip because they ran before."""
        return sorted({name for name, task in tasks_of(self.spec) if mapping(task.get("cachingOptions")).get("enableCache")})


# ---- reading


def read_package(path: Path) -> Package:
    try:
        if path.stat().st_size > MAX_PACKAGE_BYTES:
            raise InputError(f"package {path}: {path.stat().st_size} bytes, expected at most {MAX_PACKAGE_BYTES}; is this the right file?")
        content = path.read_bytes()
        documents = _documents(content.decode("utf-8"))
    except OSError as error:
        raise InputError(f"package {path}: cannot be read ({error.strerror}); {COMPILE}") from None
    except UnicodeDecodeError:
        raise InputError(f"package {path}: expected YAML, found no text; {COMPILE}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InputError(f"package {path}: not valid YAML{where}: {getattr(error, 'problem', None) or error}; {COMPILE}") from None
    found = next((entry for entry in documents if mapping(mapping(entry).get("pipelineInfo")).get("name")), None)
    if found is None or not mapping(found.get("root")):
        if any(mapping(entry).get("kind") == "PipelineVersion" for entry in documents):
            raise InputError(f"package {path}: is a Kubernetes manifest; apply it with kubectl, or compile without --kubernetes-manifest")
        raise InputError(f"package {path}: expected a compiled pipeline with pipelineInfo and root, found neither; {COMPILE}")
    return Package(path, content, found)


def _documents(text: str) -> list[Any]:
    """Those of a YAML stream. The fast loader ends the process on text that is nested deeply, so depth is looked at first."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST or isinstance(event, yaml.AliasEvent):
            what = "an alias" if isinstance(event, yaml.AliasEvent) else f"more than {DEEPEST} levels"
            raise ValueError(f"{what} in line {getattr(event.start_mark, 'line', 0) + 1}, which no compiled package has")
    loader, documents = _LOADER(text), []
    try:
        while loader.check_data():
            documents.append(loader.get_data())
    finally:
        loader.dispose()
    return documents


def mapping(value: Any) -> Mapping[str, Any]:
    """What should be a mapping in a file or an answer of someone else."""
    return value if isinstance(value, Mapping) else {}


def tasks_of(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every task of a pipeline, also of its loops, by the name that KFP gives it."""
    for component in (mapping(spec.get("root")), *map(mapping, mapping(spec.get("components")).values())):
        for name, task in mapping(mapping(component.get("dag")).get("tasks")).items():
            yield name, mapping(task)


def display_names(spec: Mapping[str, Any]) -> dict[str, str]:
    """What a person calls each task, by the name that KFP gives it: `silo-step-2` is hospital-b."""
    return {name: str(mapping(task.get("taskInfo")).get("name") or name) for name, task in tasks_of(spec)}


def warnings(package: Package, recurring: bool) -> Iterator[str]:
    if package.compiled_by is None:
        yield f"package {package.path}: not compiled by siloflow, or by a very old one; {COMPILE}"
    elif package.compiled_by != VERSION:
        yield f"package {package.path}: compiled by siloflow {package.compiled_by}, this is {VERSION}; compile it again"
    if recurring and package.cached:
        yield f"package {package.path}: KFP may skip {', '.join(package.cached[:5])} as done before; compile it with caching off"


# ---- the run form


def parameters(package: Package, settings: Sequence[str], spec: Path | None) -> dict[str, Any]:
    """The run form with `--spec` and `--set` filled in. What it has no field for goes into `overrides`."""
    form, values = package.form, {}
    if spec is not None:
        _needs(package, "spec", "--spec")
        read_spec(spec)
        values["spec"] = spec.read_text(encoding="utf-8")
    rest: list[str] = []
    for text in settings:
        name, found, value = text.partition("=")
        name = name.strip()
        if not found or not name:
            raise InputError(f"--set {text}: expected field=value, e.g. --set rounds=20 or --set hyper.lr=0.01")
        given = apply_overrides({}, [f"value={value}"])["value"] if name in form else None
        if name not in form or (form[name] == "STRING" and isinstance(given, dict)):
            rest.append(text)
        else:
            values[name] = _typed(form[name], given, value.strip(), text)
    if rest:
        _needs(package, "overrides", f"--set {rest[0]}")
        values["overrides"] = json.dumps(
            apply_overrides(form_values(overrides=values.get("overrides", package.defaults.get("overrides", ""))), rest)
        )
    if package.compiled_by == VERSION:
        _check({**package.defaults, **values})
    return {**package.defaults, **values}


def _needs(package: Package, parameter: str, option: str) -> None:
    if parameter not in package.form:
        name = option.removeprefix("--set ").partition("=")[0]
        hint = nearest(name, sorted(package.form)) if package.form else "its run form is empty"
        raise InputError(f"{option}: the run form of {package.path} has no such field and no `{parameter}`; {hint}")


def _typed(kind: str, value: Any, text: str, setting: str) -> Any:
    """The value as KFP wants it for a parameter of this type."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "STRING":
        return "" if value is None else value if isinstance(value, str) else text
    if kind == "LIST":
        return value if isinstance(value, list) else [part.strip() for part in text.split(",") if part.strip()]
    good = {
        "NUMBER_INTEGER": number and float(value).is_integer(),
        "NUMBER_DOUBLE": number,
        "BOOLEAN": isinstance(value, bool),
        "STRUCT": isinstance(value, dict),
    }
    if not good.get(kind, True):
        expected = {"NUMBER_INTEGER": "a whole number", "NUMBER_DOUBLE": "a number", "BOOLEAN": "true or false", "STRUCT": "a mapping"}
        raise InputError(f"--set {setting}: expected {expected[kind]}, found {text!r}")
    return int(value) if kind == "NUMBER_INTEGER" else value


def _check(values: Mapping[str, Any]) -> None:
    """Misspelt names and fields, before anything is sent: `plan` would say the same a minute later."""
    from fl_algorithms.registry import ALGORITHMS

    parse_spec(form_values(**{name: values[name] for name in FIELDS if name in values}))
    for name in values.get("algorithms") or ():
        check_name("algorithms", str(name), ALGORITHMS)


# ---- the calendar


def six_fields(cron: str) -> str:
    """KFP's cron has seconds first; people write five fields."""
    fields = cron.split()
    if len(fields) not in (5, 6) or not all(re.fullmatch(r"[0-9A-Za-z*/,?-]{1,80}", field) for field in fields):
        raise InputError(f"--cron {cron!r}: expected five fields (minute hour day month weekday), or six with seconds first, '0 3 * * *'")
    return " ".join(fields if len(fields) == 6 else ["0", *fields])
