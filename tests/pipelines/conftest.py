"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Workers inherit the environment of the process they are forked from, so it is set before the first of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
