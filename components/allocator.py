"""The allocator of a process that trains: tcmalloc, where it is installed.

A network asks for maps of many sizes, aligned, and gives them back in another order. glibc keeps the crumbs of aligning between them
(its bug 30723, mended in newer ones), so that a hole does not even fit what it was: a silo with MobileNetV3-Large grows to half as much
again as it needs. tcmalloc keeps crumbs apart. It must be there before Python starts, hence `LD_PRELOAD`. Not a bit of any result
depends on it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LIBRARY = "libtcmalloc_minimal.so.4"
PACKAGE = "libtcmalloc-minimal4 (Debian, Ubuntu) or gperftools"
PRELOAD = "LD_PRELOAD"


def installed() -> Path | None:
    """Where the library is on this machine."""
    if not sys.platform.startswith("linux"):
        return None
    folders = [Path(sys.prefix, "lib"), Path("/usr/local/lib"), Path("/usr/lib64"), Path("/usr/lib")]
    folders.append(Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "."))
    return next((path for folder in folders if (path := folder / LIBRARY).exists()), None)


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a process so that it has the allocator; nothing if there is none or another was chosen."""
    library = installed()
    return {} if environment.get(PRELOAD) or library is None else {PRELOAD: str(library)}


@contextmanager
def for_children() -> Iterator[None]:
    """Programs started inside have the allocator."""
    added = preloaded(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def restart_with_it() -> None:
    """Let this process begin anew with the allocator, unless it has one or there is none. Same pid, same arguments."""
    added = preloaded(os.environ)
    if added:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})
