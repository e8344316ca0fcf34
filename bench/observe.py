"""Watch a process tree: peak memory (PSS, so that shared pages count once) and CPU seconds over time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Observed:
    peak_pss: int
    samples: list[tuple[float, float]]  # wall clock, CPU seconds of the tree so far
    code: int

    def cpu_at(self, moment: float) -> float:
        return min(self.samples, key=lambda sample: abs(sample[0] - moment))[1]


def observe(command: Sequence[str], every: float = 0.25) -> Observed:
    """Run the command to its end. Sampling costs the same for whatever is watched."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    root, peak, cpu, samples = psutil.Process(child.pid), 0, {}, []
    while child.poll() is None:
        pss = 0
        try:
            tree = [root, *root.children(recursive=True)]
        except psutil.Error:
            break
        for process in tree:
            try:
                times = process.cpu_times()
                cpu[process.pid, process.create_time()] = times.user + times.system
                with Path(f"/proc/{process.pid}/smaps_rollup").open() as file:
                    pss += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
            except (psutil.Error, OSError, StopIteration):
                continue
        peak = max(peak, pss)
        samples.append((time.time(), sum(cpu.values())))
        time.sleep(every)
    return Observed(peak, samples, child.wait())
