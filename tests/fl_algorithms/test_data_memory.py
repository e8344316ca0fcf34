"""A silo's memory does not grow with the size of its data, neither while it decodes nor while it reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Private pages are this process's own; those of the mapped cache are shared with the page cache and given up under pressure.
READ = """
import sys
import numpy as np
from fl_algorithms.data.cache import Source, cached
from fl_algorithms.data.partial import Block
blocks = int(sys.argv[1])
peaks = []
def block(number):
    if number % 10 == 0:
        peaks.append(private())
    return Block(np.full((64, 128, 128, 3), number % 251, np.uint8), np.full(64, number % 2))
def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("Private_Dirty", "Swap:"))) / 1024
images = cached("made-up", "photo", ("a", "b"), Source({"blocks": blocks}, block, blocks), None)
assert len(images) == 64 * blocks
for start in range(0, len(images), 32):
    batch = images.pixels[start : start + 32].astype(np.float32)
    assert batch[0, 0, 0, 0] == start // 64 % 251
    if start % 640 == 0:
        peaks.append(private())
print(max(peaks))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_ten_times_the_data_takes_the_same_memory(tmp_path: Path) -> None:
    peak = {}
    for blocks in (13, 130):  # 41 MB and 409 MB of pixels
        done = subprocess.run(
            [sys.executable, "-c", READ, str(blocks)],
            cwd=ROOT, env={"SILOFLOW_CACHE": str(tmp_path / str(blocks)), "PATH": "", "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        peak[blocks] = float(done.stdout)
    assert peak[130] - peak[13] < 20
