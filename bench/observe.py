"""Watch memory (PSS, so that shared pages count once) and CPU seconds: of a process tree from outside, of this process from inside."""

from __future__ import annotations

import bisect
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Observed:
    peak_pss: int
    samples: list[tuple[float, float]]  # wall clock, CPU seconds of the tree so far

    def cpu_at(self, moment: float) -> float:
        """Between two samples, on the line through them."""
        place = bisect.bisect([when for when, _ in self.samples], moment)
        (left, less), (right, more) = self.samples[max(place - 1, 0)], self.samples[min(place, len(self.samples) - 1)]
        return less if right == left else less + (more - less) * (moment - left) / (right - left)


def pss(process: int | str = "self", kind: str = "Pss") -> int:
    """Memory of a process in bytes, file pages it has mapped included; of kind `Anonymous`, only what it cannot give back."""
    with Path(f"/proc/{process}/smaps_rollup").open() as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{kind}:"))


def observe(command: Sequence[object], env: Mapping[str, str] | None = None, every: float = 0.25) -> Observed:
    """Run the command to its end. Sampling costs the same for whatever is watched. A command that fails is a RuntimeError."""
    words = list(map(str, command))
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said, env=env)
        observed = _watch(child, every)
        if child.wait():
            said.seek(0)
            raise RuntimeError(f"{' '.join(words[:4])} ...: ended with {child.returncode}: {said.read()[-2000:]}")
    return observed


def _watch(child: subprocess.Popen[bytes], every: float) -> Observed:
    root, peak, samples = psutil.Process(child.pid), 0, []
    cpu: dict[tuple[int, float], float] = {}
    while child.poll() is None:
        total = 0
        try:
            tree = [root, *root.children(recursive=True)]
        except psutil.Error:
            break
        for process in tree:
            try:
                times = process.cpu_times()
                cpu[process.pid, process.create_time()] = times.user + times.system
                total += pss(str(process.pid))
            except (psutil.Error, OSError, StopIteration):
                continue
        peak = max(peak, total)
        samples.append((time.time(), sum(cpu.values())))
        time.sleep(every)
    return Observed(peak, samples)


class Growth:
    """Bytes that this process grew by, at most, inside `growing`."""

    bytes = 0


@contextmanager
def growing(every: float = 0.002, kind: str = "Pss") -> Iterator[Growth]:
    """Looking costs a process of gigabytes milliseconds of its time: look less often where peaks last longer."""
    growth, before, stop = Growth(), pss(kind=kind), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            growth.bytes = max(growth.bytes, pss(kind=kind) - before)
            time.sleep(every)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield growth
    finally:
        stop.set()
        watcher.join()
