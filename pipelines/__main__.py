"""The `siloflow` command. Kept tiny: worker processes import it again when they start."""

from __future__ import annotations

import sys

from components.allocator import restart_with_it


def main() -> None:
    if sys.argv[1:2] == ["silo"]:
        restart_with_it()  # this process trains itself; a run's workers are started with it
    try:
        from pipelines.cli import app

        app()
    except KeyboardInterrupt:  # before or after the commands' own handling
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
