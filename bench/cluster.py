"""Puts what `make test-cluster` printed into docs/performance.json and the page.

    make test-cluster | tee log
    python -m bench.cluster log --about 'kind, Kubernetes 1.35, KFP 2.14, 2 cores of ...'

The tests print one JSON object a line among much else; those with the keys of MEASURED count.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench import page
from bench.machine import commit, today
from bench.sections import CLUSTER

ROOT = Path(__file__).parents[1]
MEASURED = ("pods", "tasks", "seconds", "seconds_per_task", "bytes_per_step")
EXIT_INPUT = 2


def printed(log: str) -> dict[str, Any]:
    """The figures among the lines; a figure that is printed twice counts as it was printed last."""
    found: dict[str, Any] = {}
    for line in log.splitlines():
        start = line.find("{")
        try:
            told = json.loads(line[start:]) if start >= 0 else None
        except ValueError:
            continue
        if isinstance(told, dict):
            found |= {key: value for key, value in told.items() if key in MEASURED}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description="the figures that make test-cluster printed, into docs")
    parser.add_argument("log", type=Path, help="what it printed")
    parser.add_argument("--about", required=True, help="the cluster, for the page")
    options = parser.parse_args()
    found = printed(options.log.read_text())
    if missing := [key for key in MEASURED if key not in found]:
        print(f"error: {options.log}: expected the output of make test-cluster, found no {missing[0]!r}; run it again", file=sys.stderr)
        return EXIT_INPUT
    about = {"date": today(), "commit": commit(), "machine": {"about": options.about}, "source": "Read from its output"}
    page.keep(ROOT, {CLUSTER: {**about, "measured": found}})
    page.write(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
