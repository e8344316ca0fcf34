"""docs/reliability.md from docs/reliability.json: only what was run is in it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

HEADINGS = {
    "kill": "Killed",
    "store": "Store faults, on a real MinIO server",
    "silo": "Missing and late silos",
    "poison": "Poison",
    "fuzz": "Fuzzing",
    "load": "Load and age",
}
INTRODUCTION = """# Reliability

What was done to siloflow, how often, and what became of it. Written by `{command}`; every line was run, and a part says at
which commit. *Survived* means that the attempt ended as promised: with the same model, weights, losses and counts, bit for bit, as
the undisturbed run, or with a refusal of the right exit code and one line that says what to do. *Seconds* are those of the
command that brought the run to its end, its start included. No run was repaired by hand.
"""


def document(parts: Mapping[str, Mapping[str, Any]], command: str) -> str:
    sections = [_section(HEADINGS[name], parts[name]) for name in HEADINGS if name in parts]
    return "\n".join([INTRODUCTION.format(command=command), *sections])


def _section(heading: str, part: Mapping[str, Any]) -> str:
    rows: Sequence[Mapping[str, Any]] = part["rows"]
    tried, survived = (sum(row[key] for row in rows) for key in ("tried", "survived"))
    lines = [f"## {heading}", "", f"{survived} of {tried} survived, at commit {part['commit']}.", ""]
    lines += ["| fault | tried | survived | seconds: median | max | lost |", "|---|--:|--:|--:|--:|---|"]
    return "\n".join([*lines, *map(_line, rows), ""])


def _line(row: Mapping[str, Any]) -> str:
    seconds = row["seconds"]
    median, longest = (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("", "")
    late = f"not counted: {len(row['missed'])} over before it" if row.get("missed") else ""
    remarks = "; ".join(filter(None, [row["note"], late]))
    fault = row["fault"] + (f" ({remarks})" if remarks else "")
    cells = [fault, row["tried"], row["survived"], median, longest, "<br>".join(row["lost"]) or "nothing"]
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
