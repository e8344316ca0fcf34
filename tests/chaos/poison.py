"""The poison campaign: one silo of three publishes a forged update. It must be rejected for the right reason and leave no trace."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from components.errors import QuorumError
from components.server import server_step
from components.silo import silo_step
from tests.chaos.rows import Row
from tests.federations import Run, draw_pictures, values
from tests.forgery import BAD, JOIN, JOIN_POISON, POISON, STEP, Forger

SAMPLE = 4  # a short campaign tries every so manieth kind
FAULTS = {
    "author": "an update in another's name", "digest": "other bytes than the manifest vouches for", "dtype": "tensors of another type",
    "keys": "missing, unknown or renamed tensors", "magnitude": "finite values too large to compute with",
    "malformed": "bytes that are no manifest or payload", "nonfinite": "NaN or infinity", "run": "an update of another run",
    "samples": "an impossible sample count", "shape": "shapes that broadcast or are empty", "size": "too many bytes",
    "spec": "an update made under another spec", "stale": "an update of another round or exchange", "variance": "a negative variance",
}  # fmt: skip
Kind = tuple[str, str, tuple[int, str], Callable[[Forger], object]]


def campaign(full: bool) -> Iterator[Row]:
    """A row per reason. Full: every kind, in a run that goes on without the bad silo and in one that needs every silo."""
    kinds: list[Kind] = [(str(p.id), p.values[0], step, p.values[1]) for step, ps in ((JOIN, JOIN_POISON), (STEP, POISON)) for p in ps]
    kinds = kinds if full else kinds[::SAMPLE]
    with tempfile.TemporaryDirectory(prefix="siloflow-poison-") as folder, bed(Path(folder)) as pictures:
        runs = {(step, quorum): published(pictures, Path(folder), step, quorum) for step in (JOIN, STEP) for quorum in (0.6, 1.0)}
        honest = {step: model_without(runs[step, 0.6], Path(folder), step) for step in (JOIN, STEP)}
        for reason in sorted({reason for _, reason, _, _ in kinds}):
            row = Row("poison", FAULTS[reason], note=f"reason: {reason}")
            for name, _, step, forge in (kind for kind in kinds if kind[1] == reason):
                for quorum in (0.6, 1.0) if full else (0.6,):
                    with copy_of(runs[step, quorum], Path(folder)) as run:
                        forge(Forger(run, step))
                        fault = consequence(run, step, reason, honest[step]) if quorum < 1 else refusal(run, step, reason)
                    row.attempt(not fault, lost=f"{name}: {fault}")
            yield row


@contextmanager
def bed(folder: Path) -> Iterator[Path]:
    with patch.dict(os.environ, SILOFLOW_CACHE=str(folder / "cache")):
        yield draw_pictures(folder / "pictures")


def published(pictures: Path, folder: Path, step: tuple[int, str], quorum: float) -> Run:
    """Every silo has published this step; the server has not looked yet."""
    run = Run(values(pictures, rounds=1, quorum=quorum), folder / f"{step[1]}-{quorum:g}" / "run")
    if step == STEP:
        run.go(until=JOIN)
    for silo in run.silos:
        silo_step(run.role(silo), *step)
    return run


@contextmanager
def copy_of(run: Run, folder: Path) -> Iterator[Run]:
    place = folder / "copy"
    shutil.copytree(run.folder, place / "run")
    yield Run.reopened(run, place / "run")
    shutil.rmtree(place)


def model_without(run: Run, folder: Path, step: tuple[int, str]) -> dict[str, Any]:
    """What the run ends with when the bad silo sends nothing in this step."""
    with copy_of(run, folder) as alone:
        Forger(alone, step).manifest.unlink()
        return ended(alone, step)


def ended(run: Run, step: tuple[int, str]) -> dict[str, Any]:
    broadcast = server_step(run.role("server"), *step)
    if step == JOIN:
        run.exchange(*STEP, broadcast.participants)
    return run.finish()


def consequence(run: Run, step: tuple[int, str], reason: str, honest: dict[str, Any]) -> str:
    """What is wrong with a run that went on without the bad silo; empty: nothing."""
    broadcast = server_step(run.role("server"), *step)
    found = [(item.silo, item.reason) for item in broadcast.rejected]
    if found != [(BAD, reason)]:
        return f"expected {BAD} rejected for {reason}, found {found or 'nothing rejected'}"
    return "" if ended(run, step)["digest"] == honest["digest"] else "the model is not that of the honest silos"


def refusal(run: Run, step: tuple[int, str], reason: str) -> str:
    """What is wrong with the end of a run that needs every silo; empty: nothing."""
    try:
        server_step(run.role("server"), *step)
    except QuorumError as error:
        return "" if f"rejected {BAD}: {reason} (" in str(error) and str(error).isprintable() else f"unclear: {error}"
    return "it went on"
