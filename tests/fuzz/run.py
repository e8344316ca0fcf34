"""Feeds damaged input to every target and counts what comes out: `python -m tests.fuzz.run 100000`."""

from __future__ import annotations

import contextlib
import functools
import json
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from components.spec import MAX_SPEC_BYTES, parse_mapping
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import Accepted, Bench, Target

HANG = 1.0  # seconds of this process's own time, on a machine that reads the longest spec in half of that
MOST_MEMORY = 200 << 20
SHOWN = 5  # finds of a kind that are kept


@dataclass
class Findings:
    """`kinds` counts how the inputs were answered: by the name of the refusal, or by what a target made of them."""

    target: str
    inputs: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    slowest: float = 0.0
    seconds: float = 0.0
    memory: int = 0  # bytes above the beginning, at most

    @property
    def clean(self) -> bool:
        return not (self.crashes or self.hangs or self.accepted) and self.memory <= MOST_MEMORY


class Hang(BaseException):
    """Not an Exception: the code under test must not handle it."""


def fuzz(target: Target, inputs: int, seed: str) -> Findings:
    """The corpus as it is, then damaged input."""
    findings, mutator = Findings(target.name), Mutator(target.corpus, f"{seed} {target.name}")
    _forget_peak()
    before, began = _memory(), time.monotonic()
    for number in range(inputs):
        data = target.corpus[number] if number < len(target.corpus) else mutator.next()
        _feed(target, data, findings)
    findings.seconds = round(time.monotonic() - began, 2)
    findings.memory = max(0, _peak() - before)
    return findings


def _feed(target: Target, data: bytes, findings: Findings) -> None:
    findings.inputs += 1
    began = time.process_time()
    try:
        with _limited():
            kind = target.feed(data)
    except target.answers as refusal:
        kind = getattr(refusal, "reason", type(refusal).__name__)
        if "\n" in str(refusal):
            _keep(findings.crashes, data, f"a message of several lines: {refusal}")
    except Accepted as error:
        kind = "accepted"
        _keep(findings.accepted, data, str(error))
    except Hang:
        kind = "hang"
        _keep(findings.hangs, data, f"more than {patience():.2g} s")
    except Exception as error:
        kind = "crash"
        _keep(findings.crashes, data, f"{type(error).__name__}: {error}")
    findings.kinds[kind] = findings.kinds.get(kind, 0) + 1
    findings.slowest = max(findings.slowest, round(time.process_time() - began, 3))


def _keep(finds: list[str], data: bytes, what: str) -> None:
    """What is needed to see it again: the input goes into the corpus, as a file."""
    if len(finds) < SHOWN:
        with tempfile.NamedTemporaryFile(prefix="siloflow-find-", delete=False) as file:
            file.write(data)
        finds.append(f"{file.name}: {what[:200]!a}")


@functools.cache
def patience() -> float:
    """HANG, or on a slower machine twice what the longest spec that is allowed takes to be read there."""
    began = time.process_time()
    parse_mapping("a: [" + "1," * (MAX_SPEC_BYTES // 2 - 4) + "1]", "longest")
    return max(HANG, 2 * (time.process_time() - began))


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """CPU time, since the machine may be busy with something else."""

    def expired(_: int, __: FrameType | None) -> None:
        raise Hang

    previous = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, patience())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # not on every system; then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@contextlib.contextmanager
def opened() -> Iterator[Bench]:
    """In memory, where there is such a folder: every input is written to a file, and a busy disk would take most of the time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="siloflow-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        yield Bench(Path(folder))


def campaign(inputs: int, seed: str) -> Iterator[Findings]:
    """Every target its share of the inputs."""
    with opened() as bench:
        for target in bench.targets():
            yield fuzz(target, round(inputs * target.share), seed)


if __name__ == "__main__":
    for findings in campaign(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "0"):
        print(json.dumps(asdict(findings)), flush=True)
