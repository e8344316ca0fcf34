"""The `siloflow` command. Kept tiny: worker processes import it again when they start."""

from __future__ import annotations


def main() -> None:
    from pipelines.cli import app

    app()


if __name__ == "__main__":
    main()
