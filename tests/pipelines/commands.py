"""Ways to call `siloflow`: in this process, or as the installed command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from typer.testing import CliRunner, Result

from pipelines.cli import app

SILOFLOW = str(Path(sys.executable).with_name("siloflow"))


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def command(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """As from a terminal: a shell that starts the tests in the background lets them, and what they start, ignore Ctrl-C."""
    return subprocess.Popen(
        [SILOFLOW, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], timeout: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def pictures(root: Path, classes: tuple[str, ...] = ("cat", "dog"), domains: tuple[str, ...] = ("art", "photo", "sketch")) -> Path:
    for domain in domains:
        for number, name in enumerate(classes):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for shade in range(4):
                Image.new("RGB", (16, 16), (40 * shade, 100 * number, 90)).save(folder / f"{shade}.jpg")
    return root
