"""Everything behind docs/performance.md: `python -m bench [--only PART ...]`, which is what `make bench` runs.

Each part runs in a process of its own and prints JSON; what it printed is kept in docs/performance.json beside the machine, the date and
the commit, and page and figures are made from that file alone. Parts that do not run now stay as they were.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import page
from bench.machine import busy, commit, machine, today

ROOT = Path(__file__).parents[1]
STEPS = "algorithms"  # keeps its figures in a file of its own, with a page of its own
PARTS = ("exchange", "scaling", "workers", "memory", "s3", "pipelines", "scrape", STEPS)
EXIT_FAILED = 1


def measured(part: str) -> dict[str, Any]:
    """One part now; CalledProcessError if it fails."""
    before, started = busy(), time.monotonic()
    output = subprocess.run([sys.executable, "-m", f"bench.{part}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    seconds = round(time.monotonic() - started)
    about = {"date": today(), "commit": commit(), "machine": {**machine(), "before": before, "after": busy()}, "seconds": seconds}
    return {**about, "measured": json.loads(output)}


def measure_steps() -> None:
    """By its own target, with its own arguments: those of this call are not for it. It writes its own page and data."""
    clean = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES")}
    subprocess.run(["make", "bench-algorithms", "ARGS=--write"], cwd=ROOT, env=clean, stdout=subprocess.DEVNULL, check=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="what docs/performance.md shows, measured again")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--print", action="store_true", help="print what was measured and write nothing")
    how.add_argument("--page", action="store_true", help="measure nothing: write page and figures from what is known")
    return parser.parse_args()


def main() -> int:
    chosen, found, failed = options(), {}, []
    if chosen.print and STEPS in chosen.only:
        chosen.only = [part for part in chosen.only if part != STEPS]  # `make bench-algorithms` prints it
    for part in () if chosen.page else chosen.only:
        print(f"bench: {part}", file=sys.stderr)
        try:
            if part == STEPS:
                measure_steps()
            else:
                found[part] = measured(part)
        except subprocess.CalledProcessError as error:
            failed.append(part)
            print(f"error: {part}: ended with {error.returncode}; what is known of it stays", file=sys.stderr)
        if not chosen.print:
            page.keep(ROOT, found)
    if not chosen.print:
        page.write(ROOT)
    if not chosen.page:
        print(json.dumps(found, indent=1))
    return EXIT_FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
