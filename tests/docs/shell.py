"""Commands of a page, typed into a shell as its reader would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.docs.pages import Command, File

PATIENCE = 240  # seconds for one command; on an idle machine the slowest takes ten
NOT_OURS = re.compile(r"SILOFLOW_|KF_PIPELINES_|KUBE|MINIO_")


class Desk:
    """The folder in which a page is followed, from its first command to its last."""

    def __init__(self, folder: Path, cache: Path, **more: str) -> None:
        own = {name: value for name, value in os.environ.items() if not NOT_OURS.match(name)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
        fixed = {"PATH": path, "SILOFLOW_CACHE": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "140", "NO_COLOR": "1"}
        self.folder, self._environment = folder, {**own, **fixed, **more}

    def follow(self, step: Command | File) -> str:
        """Writes a file, or runs a command and fails if it ends or prints otherwise than the page says. Returns what it printed."""
        if isinstance(step, File):
            (self.folder / step.name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / step.name).write_text(step.text, encoding="utf-8")
            return ""
        code, printed = self._type(step)
        assert code == step.exit_code, f"{step.where}: {step.text}\nexit code {code}\n{printed}"
        if step.expected is not None:
            shown = "\n".join(line for line in step.expected if line != "^C")
            assert matches(shown, printed), f"{step.where}: {step.text}\nthe page shows\n{shown}\nit printed\n{printed}"
        return printed

    def _type(self, step: Command) -> tuple[int, str]:
        log = self.folder / ".printed"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"set -o pipefail; {step.text}"], cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
            try:
                if "^C" in (step.expected or ()):
                    self._interrupt(process, "\n".join(step.expected or ()).partition("^C")[0].rstrip(), log)
                return process.wait(PATIENCE), _plain(log)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"{step.where}: {step.text}\nstill there after {PATIENCE} s\n{_plain(log)}") from None

    def _interrupt(self, process: subprocess.Popen[bytes], shown: str, log: Path) -> None:
        end = time.monotonic() + PATIENCE
        while not matches(shown + "...", _plain(log)):
            assert process.poll() is None and time.monotonic() < end, f"the page shows\n{shown}\nit printed\n{_plain(log)}"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)


def _plain(log: Path) -> str:
    return "\n".join(line.rstrip() for line in log.read_text(encoding="utf-8").splitlines())


def matches(shown: str, printed: str) -> bool:
    """`...` stands for anything, also for several lines."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
