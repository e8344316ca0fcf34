"""docs/performance.md and its figures, made of what was measured and of nothing else."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from bench import chart, sections
from bench.sections import Known

UNDER_LOAD = 0.25  # cores that others keep busy, from which on the page says so
HEAD = """# Performance

Made by `make bench` from [performance.json](performance.json) and [performance-algorithms.json](performance-algorithms.json): no figure
is typed by hand. A part can be measured again alone, `make bench ARGS='--only {example}'`; the others stay as they were. The parts:
{parts}.

Below each part stand the machine, the load average of the last minute, and how many cores *others* kept busy just before and
just after. CPU seconds, and ratios of two things that took turns, bear company; wall seconds do not, and are then upper bounds.
"""


def keep(root: Path, found: Known) -> None:
    """Puts these parts into docs/performance.json and leaves the others as they are."""
    file = root / "docs" / "performance.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, **found}, indent=1) + "\n")


def read(root: Path) -> Known:
    """All that is known: our own file, and the steps of the algorithms from theirs."""
    own, steps = root / "docs" / "performance.json", root / "docs" / "performance-algorithms.json"
    known: Known = json.loads(own.read_text()) if own.exists() else {}
    if steps.exists():
        known["algorithms"] = {"measured": json.loads(steps.read_text())}
    return known


def files(known: Known) -> dict[str, str]:
    """Every file to be written, by its path in docs."""
    figures = {f"img/performance-{name}.svg": text for name, text in chart.figures(known).items()}
    return {**figures, "performance.md": document(known, set(figures))}


def write(root: Path) -> None:
    for path, text in files(read(root)).items():
        (root / "docs" / path).parent.mkdir(exist_ok=True, parents=True)
        (root / "docs" / path).write_text(text)


def document(known: Known, figures: set[str]) -> str:
    names = [section.part for section in sections.SECTIONS]
    text = HEAD.format(example=names[0], parts=", ".join(f"`{name}`" for name in names if name != sections.CLUSTER))
    for section in sections.SECTIONS:
        text += f"\n## {section.title}\n\n"
        part = known.get(section.part)
        if part is None:
            text += f"Not measured yet: {section.command}.\n"
            continue
        if section.figure in figures:
            text += f"![{section.title}]({section.figure})\n\n"
        text += wrapped(section.write(part["measured"]).strip()) + "\n"
        text += about(part, section.command)
    return text


def wrapped(text: str) -> str:
    """Paragraphs in lines of the usual length; tables as they are."""
    blocks = [block if block.startswith(("|", "<")) else textwrap.fill(block, 132, break_on_hyphens=False) for block in text.split("\n\n")]
    return "\n\n".join(blocks)


def about(part: dict[str, Any], command: str) -> str:
    if "machine" not in part:  # its own page says it
        return ""
    where = part["machine"]
    when = f"{command[:1].upper()}{command[1:]}, {part['date']}, commit {part['commit']}"
    if "about" in where:
        return f"\n<sub>{when}. {where['about']}. {part['source']}.</sub>\n"
    before, after = where["before"], where["after"]
    others = [before["cores_of_others"], after["cores_of_others"]]
    text = f"{where['cpu']}, {where['cores']} cores, {where['vectors']}, {where['memory_gb']} GB, no GPU used; "
    text += f"Python {where['python']}, torch {where['torch']}. Load {before['load']} before and {after['load']} after; "
    text += f"others kept {others[0]} and {others[1]} cores busy"
    if max(others) > UNDER_LOAD:
        text += ": **measured under load**"
    return f"\n<sub>{when}, {part['seconds']} s. {text}.</sub>\n"
