"""The `siloflow` command. Kept tiny: worker processes import it again when they start."""

from __future__ import annotations


def main() -> None:
    try:
        from pipelines.cli import app

        app()
    except KeyboardInterrupt:  # before or after the commands' own handling
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
