"""The campaigns behind docs/reliability.md. JSON on stdout, progress on stderr, exit code 1 if anything was lost."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.chaos.table import HEADINGS, document

DOCUMENT = Path("docs/reliability.json")


def main() -> int:
    options = _options()
    ran = {name: _run(name, options.full) for name in options.only}
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        parts = {name: part for name in HEADINGS if (part := ran.get(name) or known.get(name))}
        options.json.write_text(json.dumps(parts, indent=1) + "\n")
        options.json.with_suffix(".md").write_text(document(parts, "make chaos"))
    print(json.dumps(ran))
    return int(any(row["lost"] for part in ran.values() for row in part["rows"]))


def _options() -> argparse.Namespace:
    there = [name for name in HEADINGS if Path(__file__).with_name(f"{name}.py").exists()]
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every fault many times; otherwise a few of them")
    parser.add_argument("--only", type=lambda text: text.split(","), default=there, help=f"some of {','.join(there)}")
    parser.add_argument(
        "--json", type=Path, help=f"also write there, and a table beside it; parts that do not run are kept. Full: {DOCUMENT}"
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.only) - set(there)):
        parser.error(f"no campaign {unknown[0]!r}; there are {', '.join(there)}")
    options.json = options.json or (DOCUMENT if options.full else None)
    return options


def _run(name: str, full: bool) -> dict[str, Any]:
    rows = []
    for row in importlib.import_module(f"tests.chaos.{name}").campaign(full):
        print(f"{name}: {row.fault}: {row.survived} of {row.tried}", *row.lost, sep="\n  ", file=sys.stderr)
        rows.append(row.as_json())
    return {"commit": _commit(), "rows": rows}


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" and changes after it" if git("status", "--porcelain", "--untracked-files=no") else "")


if __name__ == "__main__":
    sys.exit(main())
