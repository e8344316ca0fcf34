"""The rules of the house that no single module can break unnoticed."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_algorithms.registry import ALGORITHMS

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {"fl_algorithms": set(), "components": {"fl_algorithms"}, "pipelines": {"components", "fl_algorithms"}}
NOT_IN_THE_SCIENCE = {"pydantic", "minio", "yaml", "typer", "rich", "kfp", "kubernetes", "prometheus_client"}
SERIALISERS_THAT_RUN_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
LONGEST_FILE = 400
MODULES = sorted(path.relative_to(ROOT) for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))
NAMES = [str(path) for path in MODULES]
BENCHMARKS = sorted(path.relative_to(ROOT) for path in (ROOT / "bench").rglob("*.py"))


def tree(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def imported(module: Path) -> Iterator[str]:
    """Top-level packages that the module imports anywhere, also inside functions and by name."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide which package is meant"
            yield str(node.module).split(".")[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__"):
            first = node.args[0]
            text = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(text, ast.Constant):
                yield str(text.value).split(".")[0]


def test_the_walk_sees_the_packages() -> None:
    assert {path.parts[0] for path in MODULES} == set(MAY_IMPORT)
    assert "torch" in set(imported(Path("fl_algorithms/fedavg.py")))
    assert "fl_algorithms" in set(imported(Path("fl_algorithms/registry.py")))


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_imports_point_one_way(module: Path) -> None:
    others = set(MAY_IMPORT) - {module.parts[0]}
    assert set(imported(module)) & others <= MAY_IMPORT[module.parts[0]]
    assert "tests" not in set(imported(module))


@pytest.mark.parametrize("module", [path for path in MODULES if path.parts[0] == "fl_algorithms"], ids=str)
def test_the_science_knows_nothing_of_stores_and_clusters(module: Path) -> None:
    assert not set(imported(module)) & NOT_IN_THE_SCIENCE


def runs_foreign_code(code: ast.AST) -> Iterator[str]:
    """What in it could run code that is hidden in a file. The pipes between own processes are not files."""
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module in ("torch", "numpy", "yaml"):
            yield from (f"from {node.module} import {alias.name}" for alias in node.names if "load" in alias.name or alias.name == "save")
        if not isinstance(node, ast.Call):
            continue
        called, options = ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        safe = {
            "torch.load": options.get("weights_only") == "True",
            "yaml.load": options.get("Loader") in ("_PlainLoader", "yaml.SafeLoader"),
            "np.load": "allow_pickle" not in options,
            "numpy.load": "allow_pickle" not in options,
            **dict.fromkeys(("eval", "exec", "torch.save", "torch.jit.load", "torch.hub.load"), False),
            **dict.fromkeys(("yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all", "yaml.load_all"), False),
        }
        if not safe.get(called, True):
            yield called


@pytest.mark.parametrize("module", [*MODULES, *BENCHMARKS], ids=str)
def test_nothing_is_read_that_could_run_code(module: Path) -> None:
    assert not set(imported(module)) & SERIALISERS_THAT_RUN_CODE
    assert list(runs_foreign_code(tree(module))) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=chosen)",
        "from torch import load",
        "torch.jit.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.UnsafeLoader)",
        "yaml.unsafe_load(text)",
        "eval(text)",
    ],
)
def test_what_could_run_code_is_noticed(line: str) -> None:
    assert list(runs_foreign_code(ast.parse(line)))


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_files_stay_short_and_say_what_they_are(module: Path) -> None:
    source = (ROOT / module).read_text(encoding="utf-8")
    assert len(source.splitlines()) < LONGEST_FILE
    if source.strip():
        assert ast.get_docstring(tree(module)), f"{module}: no docstring"
        # KFP reads the annotations of what it decorates, and takes no strings for types
        assert ("from __future__ import annotations" in source) != ("@dsl." in source)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_explains_itself(name: str) -> None:
    entry = ALGORITHMS[name]
    cls = entry.load()
    assert entry.summary
    assert cls.__doc__
    assert "arXiv" in cls.paper or "http" in cls.paper
    assert "model" in cls.leaves_silo
    assert dataclasses.is_dataclass(cls.Hyper)
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.load().Hyper(**entry.defaults).lr = 1.0
    hints = typing.get_type_hints(cls.Hyper, include_extras=True)
    for field in dataclasses.fields(cls.Hyper):
        described = [text for text in getattr(hints[field.name], "__metadata__", ()) if isinstance(text, str)]
        assert len(described) == 1, field.name
        assert len(described[0]) > 5, field.name
        assert field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING, field.name


LIST_LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{name.split(".")[0] for name in sys.modules})
"""


def loaded_by(*modules: str) -> set[str]:
    """Top-level packages in a fresh interpreter that has imported these modules."""
    answer = subprocess.run([sys.executable, "-c", LIST_LOADED, *modules], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return set(answer.stdout.split())


def test_the_process_that_drives_a_run_never_loads_torch() -> None:
    """`nursery` is loaded by the process that workers are forked from, and by nothing else."""
    modules = [".".join(path.with_suffix("").parts) for path in MODULES if path.parts[0] == "pipelines" and path.stem != "nursery"]
    assert {"pipelines.cli", "pipelines.local"} <= set(modules)
    assert not loaded_by(*modules) & {"torch", "torchvision", "sklearn", "scipy", "matplotlib", "kfp"}


TRAIN = """
import sys
import torch
from fl_algorithms.training import make_optimizer, optimizer_slots, restore_slots
from fl_algorithms.uncompiled import take_step

def trained(kind, step):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = make_optimizer(kind, model.parameters(), 0.9, 1e-4)
    for _ in range(3):
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(3, 4)).square().sum().backward()
        step(optimizer)
    restore_slots(optimizer, optimizer_slots(optimizer))
    return model.weight.detach()

ours = [trained(kind, take_step) for kind in ("adam", "sgd")]
assert "torch._dynamo" not in sys.modules
theirs = [trained(kind, lambda optimizer: optimizer.step()) for kind in ("adam", "sgd")]
assert all(map(torch.equal, ours, theirs))
"""


def test_training_never_loads_torchs_compiler_and_steps_as_torch_does() -> None:
    subprocess.run([sys.executable, "-c", TRAIN], cwd=ROOT, timeout=120, check=True)


def test_a_silo_on_one_machine_never_loads_the_s3_client() -> None:
    loaded = loaded_by("components.worker")
    assert "torch" in loaded
    assert not loaded & {"minio", "urllib3", "sklearn", "scipy", "matplotlib", "kfp", "typer", "rich"}
