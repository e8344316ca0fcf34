"""Does `siloflow` know these words? Asked of the command line itself, without running anything."""

from __future__ import annotations

from typing import Any

import typer

from pipelines.cli import app

ROOT_COMMAND: Any = typer.main.get_command(app)


def parse(words: list[str]) -> str:
    """The whole name of the command. Raises what the command line would for an unknown command, option or value."""
    command, name, rest, parent = ROOT_COMMAND, "siloflow", words, None
    while hasattr(command, "commands"):
        context = command.make_context(name, list(rest), parent=parent)
        left = [*getattr(context, "_protected_args", []), *context.args]
        word, command, rest = command.resolve_command(context, left)
        name, parent = f"{name} {word}", context
    command.make_context(name, list(rest), parent=parent)
    return name


def check_mention(words: list[str]) -> None:
    """A command in running text may lack its arguments, or stand for several; what it names must exist."""
    command = ROOT_COMMAND
    for word in words:
        if hasattr(command, "commands"):
            if word.isupper() or word.startswith("-"):
                return
            assert word in command.commands, f"siloflow has no command {' '.join(words)}"
            command = command.commands[word]
        elif word.startswith("--"):
            known = {option for one in command.params for option in one.opts} | {"--help"}
            assert word.split("=")[0] in known, f"siloflow {' '.join(words)}: no option {word}"
