"""Fixtures of the tests of the pages."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decoded images, shared by all pages as by all runs of a reader's machine."""
    return tmp_path_factory.mktemp("cache")
