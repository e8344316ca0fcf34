"""Every guard is needed: without any single `raise` of theirs, poison that was rejected is accepted, mistaken or fatal."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from components import guards, manifest, received, server, wire
from components.manifest import BroadcastManifest
from components.received import read_broadcast
from components.silo import nothing_yet, silo_step
from tests.federations import Run, values
from tests.forgery import BAD, JOIN, JOIN_POISON, POISON, STEP, Forger, poison, spoil

GUARDS: list[tuple[types.ModuleType, str]] = [
    (guards, "check_manifest"), (guards, "check_tensors"), (guards, "check_values"), (guards, "check_norm"),
    (server, "_checked"), (received, "open_payload"), (manifest, "Manifest.decode"), (wire, "Payload.__init__"), (wire, "_unique"),
]  # fmt: skip
KINDS = [
    *((STEP, kind) for kind in [*POISON, poison("norm", lambda f: f.tensors(spoil(1000.0)), "large")]),
    *((JOIN, kind) for kind in JOIN_POISON),
]
NOT_BY_POISON = {
    "raise absent from None": "the payload is deleted between two calls",
    'raise Malformed(f"header: expected at most': "safetensors refuses it too; ours is only a clearer message",
}


def function_of(module: types.ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    return getattr(found, "__func__", found)


def raises_of(module: types.ModuleType, name: str) -> Iterator[tuple[int, str]]:
    """Line and text of each `raise` in the function that poison can reach."""
    function = function_of(module, name)
    first = function.__code__.co_firstlineno
    last = first + len(inspect.getsource(function).splitlines())
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Raise) and first <= node.lineno < last and not ast.unparse(node).startswith(tuple(NOT_BY_POISON)):
            yield node.lineno, ast.unparse(node)


MUTATIONS = [
    pytest.param(module, name, line, text, id=f"{name}:{text[6:46]}") for module, name in GUARDS for line, text in raises_of(module, name)
]


class Without(ast.NodeTransformer):
    """The same code, but nothing happens where this line would raise."""

    def __init__(self, line: int) -> None:
        self.line = line

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if node.lineno == self.line else node


def code_without(module: types.ModuleType, name: str, line: int) -> types.CodeType:
    tree = ast.fix_missing_locations(Without(line).visit(ast.parse(inspect.getsource(module))))
    original, waiting = function_of(module, name).__code__, [compile(tree, str(module.__file__), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if (code.co_name, code.co_firstlineno) == (original.co_name, original.co_firstlineno):
            return code
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    raise LookupError(name)


@pytest.fixture(scope="module")
def published(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Everybody has joined and published round 1."""
    run = Run(values(pictures, rounds=1, quorum=0.6, norm_bound=100.0), tmp_path_factory.mktemp("published") / "run")
    run.go(until=JOIN)
    for silo in run.silos:
        silo_step(run.role(silo), *STEP)
    return run


def outcome(published: Run, folder: Path, step: tuple[int, str], forge: Callable[[Forger], object]) -> str:
    """Why the server rejects the bad silo's update, or what happens instead."""
    shutil.copytree(published.folder, folder / "run")
    run = Run.reopened(published, folder / "run")
    forge(Forger(run, step))
    role = run.role("server")
    before = role.federation.step_before(*step)
    previous: BroadcastManifest | None = nothing_yet(role.federation) if before is None else read_broadcast(role.federation, *before)
    assert previous is not None
    try:
        found = server.collect(role, *step, previous, role.received(previous, None))
    except Exception as error:
        return f"crash: {type(error).__name__}"
    finally:
        shutil.rmtree(folder / "run")
    return next((item.reason for item in found.rejected if item.silo == BAD), "accepted")


def test_the_walk_sees_every_guard() -> None:
    assert len(MUTATIONS) >= 20
    functions = {
        node.name
        for node in ast.walk(ast.parse(inspect.getsource(guards)))
        if isinstance(node, ast.FunctionDef) and "Rejected(" in ast.unparse(node)
    }
    assert functions == {name for module, name in GUARDS if module is guards}


def test_the_honest_update_is_accepted_and_a_large_one_is_not(published: Run, tmp_path: Path) -> None:
    assert outcome(published, tmp_path, STEP, lambda _: None) == "accepted"
    assert outcome(published, tmp_path, STEP, lambda f: f.tensors(spoil(1000.0))) == "norm"


@pytest.mark.parametrize(("module", "name", "line", "text"), MUTATIONS)
def test_without_this_guard_poison_gets_through(
    published: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: types.ModuleType, name: str, line: int, text: str
) -> None:
    monkeypatch.setattr(function_of(module, name), "__code__", code_without(module, name, line))
    reasons = re.findall(r"Rejected\('(\w+)'", text) or ["digest", "malformed"]
    concerned = [(step, kind.values) for step, kind in KINDS if kind.values[0] in reasons]
    assert any(outcome(published, tmp_path, step, forge) != reason for step, (reason, forge) in concerned)
