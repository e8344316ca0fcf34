"""Processes that train have tcmalloc where it is installed, nobody else is touched, and no result depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from components import allocator
from tests.minio_server import skip_or_fail

ROOT = Path(__file__).parents[2]
ANY_LIBRARY = "libm.so.6"  # one that is everywhere and does no harm
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD is Linux's")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Puts the library where conda would."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(allocator.PRELOAD, raising=False)

    def put() -> Path:
        path = tmp_path / "lib" / allocator.LIBRARY
        path.parent.mkdir()
        path.touch()
        return path

    return put


def test_it_is_found_beside_python(place: Callable[[], Path]) -> None:
    path = place()
    assert allocator.installed() == path
    assert allocator.preloaded({}) == {"LD_PRELOAD": str(path)}


def test_what_somebody_chose_stays(place: Callable[[], Path]) -> None:
    place()
    assert allocator.preloaded({"LD_PRELOAD": "libjemalloc.so.2"}) == {}
    assert allocator.preloaded({"LD_PRELOAD": ""}) != {}


def test_another_system_has_none(place: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    place()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert allocator.installed() is None
    assert allocator.preloaded({}) == {}


def test_only_children_see_it(place: Callable[[], Path]) -> None:
    path = place()
    with pytest.raises(RuntimeError), allocator.for_children():
        assert os.environ["LD_PRELOAD"] == str(path)
        raise RuntimeError
    assert "LD_PRELOAD" not in os.environ


def python(code: str, *words: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != allocator.PRELOAD}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


RESTART = f"""
import os, sys
from pathlib import Path
from components import allocator
allocator.installed = lambda: Path("{ANY_LIBRARY}")
print(os.getpid(), os.environ.get("LD_PRELOAD"), *sys.argv[1:], flush=True)
allocator.restart_with_it()
print("goes on")
"""


@linux
def test_a_process_begins_anew_once_with_the_same_arguments() -> None:
    first, second, end = python(RESTART, "--name", "a b").splitlines()
    assert first.split()[1:] == ["None", "--name", "a", "b"]
    assert second.split() == [first.split()[0], ANY_LIBRARY, "--name", "a", "b"]
    assert end == "goes on"


@linux
def test_one_that_has_an_allocator_goes_on() -> None:
    assert len(python(RESTART, LD_PRELOAD=ANY_LIBRARY).splitlines()) == 2


NURSERY = """
import os, time
from multiprocessing import forkserver
from pathlib import Path
from pipelines.workers import _start_nursery
if __name__ == "__main__":
    _start_nursery()
    maps, until = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/maps"), time.monotonic() + 20
    while "tcmalloc" not in maps.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    print("tcmalloc" in maps.read_text(), "LD_PRELOAD" in os.environ)
"""
TRAIN = """
import torch
from components.wire import model_digest
from components.process import compute_with
from fl_algorithms.models import build_model
compute_with(1)
torch.manual_seed(0)
model = build_model("mobilenet-v3-large", 7, 3, 64).to(memory_format=torch.channels_last).train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.rand(8, 3, 64, 64)), torch.arange(8) % 7).backward()
    optimizer.step()
print(model_digest(model.state_dict()), "tcmalloc" in open("/proc/self/maps").read())
"""


def needs_the_library() -> str:
    library = allocator.installed()
    if library is None:
        skip_or_fail(f"ALLOCATOR TESTS: no {allocator.LIBRARY}; run tests/get-tcmalloc, as root on Debian")
    return str(library)


@linux
def test_workers_of_a_run_have_it_and_the_engine_has_not() -> None:
    needs_the_library()
    assert python(NURSERY).split() == ["True", "False"]


@linux
def test_not_a_bit_depends_on_it() -> None:
    library = needs_the_library()
    with_it, without = python(TRAIN, LD_PRELOAD=library).split(), python(TRAIN).split()
    assert [with_it[1], without[1]] == ["True", "False"]
    assert with_it[0] == without[0]
