"""Does the nightly benchmark's exact run have the same digest on another CPU? Prints JSON. `python -m bench.portable`

All roles in this process, so that it can be run under an emulator, which shows torch and MKL another CPU (some minutes):

    PYTHONPATH=.:.venv/lib/python3.11/site-packages qemu-x86_64 -cpu EPYC-v1 $(readlink -f .venv/bin/python) -m bench.portable
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pipelines.bench_lanes import PORTABLE


def main() -> None:
    os.environ.update(PORTABLE)  # before torch is loaded
    import torch

    from components.process import compute_with
    from pipelines.bench_file import read_bench, work_of
    from tests.federations import Run

    compute_with(1)
    (exact,) = (item for item in work_of(read_bench(Path("bench/nightly.yaml"))) if item.cell.exact)
    with tempfile.TemporaryDirectory() as folder:
        digest = Run(dict(exact.values), Path(folder) / "run").digest
    print(json.dumps({"digest": digest, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
