"""One engine drives a run at a time. The kernel lets go of the lock however the engine ends, so a dead one blocks nobody."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.errors import InputError


@contextmanager
def only_engine(folder: Path) -> Iterator[None]:
    """Hold the run folder, or refuse at once."""
    with (folder / ".engine").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"run folder {folder}: another process is at work on this run; wait for it, end it, or choose another --out"
            ) from None
        except OSError:
            pass  # a file system without locks must not keep anybody from running
        yield
