"""What a page tells its reader to type: commands, the output it promises, and the files it shows.

A fenced block of commands is `sh`, or has no language and begins a line with a program; `console` is commands after `$ ` with what they
print, where `...` stands for anything and `^C` is typed when what stands above it has been printed; below a
heading `Exit code N` they end with that code. A `yaml` or `python` block that
begins with `# NAME` is the file of that name. Commands that a test cannot run say why where the reader sees it: in a comment on the
line, in a comment line above it, or in the paragraph or heading above the block (MARK). `...` and words in capitals are left to the reader.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = {"siloflow", "make", "python", "helm", "kubectl", "docker", "kind", "curl", "export", "pip", "git"}
MARK = re.compile(r"needs (a cluster|a store|docker|a browser)|takes (a|some|\d+) (minute|hour)s?|takes (minutes|hours)", re.IGNORECASE)
CLUSTER_HEADING = re.compile(r"^## On (a cluster|Kubeflow Pipelines)\b")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(siloflow [^`\n]+)`(?!`)")
EXIT_CODE_HEADING = re.compile(r"^#+ Exit code (\d+)\b")


@dataclass(frozen=True)
class Command:
    """One line to type. `mark`: why it is only parsed; None: it is run."""

    where: str
    text: str
    mark: str | None = None
    expected: list[str] | None = None
    exit_code: int = 0

    def calls(self) -> Iterator[list[str]]:
        """The words of every call of siloflow in it."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                while words and re.match(r"\w+=", words[0]):
                    words.pop(0)
                if words[:1] == ["siloflow"]:
                    yield words[1 : words.index(">") if ">" in words else None]
                words = []
            else:
                words.append(word)


@dataclass(frozen=True)
class File:
    """A file that the page shows, to be written before the commands below it."""

    name: str
    text: str


@dataclass(frozen=True)
class Page:
    path: Path
    steps: list[Command | File] = field(default_factory=list)
    mentions: list[Command] = field(default_factory=list)  # in running text

    @property
    def commands(self) -> list[Command]:
        return [step for step in self.steps if isinstance(step, Command)]


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    page = Page(path)
    for block in FENCE.finditer(text):
        where = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, block.start()) + 1}"
        page.steps.extend(steps_of(block, text[: block.start()], where))
    prose = FENCE.sub("", text)
    page.mentions.extend(Command(str(path.relative_to(ROOT)), found) for found in INLINE.findall(prose))
    return page


def steps_of(block: re.Match[str], above: str, where: str) -> Iterator[Command | File]:
    """What a fenced block asks for, below the text `above`."""
    language, lines = block["language"], [line.removeprefix(block["indent"]) for line in block["text"].splitlines()]
    if language in ("yaml", "python", "json") and re.fullmatch(r"# [\w./-]+\.\w+", lines[0]):
        yield File(lines[0].removeprefix("# "), "\n".join(lines) + "\n")
    elif language == "console":
        yield from _session(lines, above, where)
    elif language == "sh" or (not language and any(_program(line) in PROGRAMS for line in lines)):
        yield from _script(lines, above, where)


def _program(line: str) -> str:
    return line.split(" ")[0]


def _script(lines: list[str], above: str, where: str) -> Iterator[Command]:
    standing = _mark_above(above)
    for line in lines:
        command, comment = _split(line)
        if command:
            yield Command(where, command, _mark(comment) or standing or _left_open(command))
        else:
            standing = _mark(comment) or standing


def _session(lines: list[str], above: str, where: str) -> Iterator[Command]:
    heading = _heading(above)
    code = EXIT_CODE_HEADING.match(heading)
    for part in re.split(r"^\$ ", "\n".join(lines), flags=re.MULTILINE)[1:]:
        command, *expected = part.rstrip("\n").split("\n")
        yield Command(where, command, None, expected, int(code[1]) if code else 0)


def _split(line: str) -> tuple[str, str]:
    """The command and its comment."""
    found = re.match(r"^((?:'[^']*'|\"[^\"]*\"|[^'\"#]|(?<=\S)#)*)(#.*)?$", line)
    assert found, f"a quote without its end: {line}"
    return found[1].strip(), found[2] or ""


def _mark(text: str) -> str | None:
    found = MARK.search(text)
    return found[0] if found else None


def _mark_above(above: str) -> str | None:
    paragraph = above.rstrip().rpartition("\n\n")[2]
    return _mark(paragraph) or ("needs a cluster" if CLUSTER_HEADING.match(_heading(above)) else None)


def _heading(above: str) -> str:
    return next((line for line in reversed(FENCE.sub("", above).splitlines()) if line.startswith("#")), "")


def _left_open(command: str) -> str | None:
    left = re.search(r"\.\.\.|(?<=[ =/])[A-Z]{3,}\b", command)
    return f"{left[0]} is the reader's" if left else None
