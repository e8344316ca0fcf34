"""Just enough of a Dockerfile and an ignore file to ask questions about them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Stage:
    """`base` is another stage or an image; an instruction is its word and the rest of its line."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [rest for found, rest in self.instructions if found == word]


class Dockerfile:
    def __init__(self, text: str) -> None:
        self.arguments: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}
        stage: Stage | None = None
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        for line in re.sub(r"\\\n\s*", "", lines).splitlines():
            word, _, rest = line.strip().partition(" ")
            if word == "FROM":
                base, _, name = rest.partition(" AS ")
                stage = self.stages[name] = Stage(name, base)
            elif word and stage:
                stage.instructions.append((word, rest))
            elif word == "ARG":
                name, _, default = rest.partition("=")
                self.arguments[name] = default

    def made_of(self, target: str) -> list[Stage]:
        """The stages whose file system the target has, first to last; the first one's base is an image."""
        chain = [self.stages[target]]
        while chain[0].base in self.stages:
            chain.insert(0, self.stages[chain[0].base])
        return chain

    def last(self, target: str, word: str) -> str:
        """What the instruction says in the end."""
        return [rest for stage in self.made_of(target) for rest in stage.all(word)][-1]


def ignored(path: str, patterns: list[str]) -> bool:
    """As Docker decides: the last pattern that matches the path or a folder above it wins."""
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    answer = False
    for line in patterns:
        pattern = line.removeprefix("!")
        if any(_matches(candidate, pattern) for candidate in above):
            answer = not line.startswith("!")
    return answer


def _matches(path: str, pattern: str) -> bool:
    """`*` stays within one name, a leading `**/` is any folder."""
    if pattern.startswith("**/"):
        rest = pattern[3:]
        return any(_matches("/".join(path.split("/")[start:]), rest) for start in range(path.count("/") + 1))
    names, wanted = path.split("/"), pattern.split("/")
    return len(names) == len(wanted) and all(map(fnmatchcase, names, wanted))


def ignore_patterns() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
