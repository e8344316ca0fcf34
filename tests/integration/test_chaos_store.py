"""Whole runs on a real MinIO server that fails. `make chaos` tries more faults, and each several times."""

from __future__ import annotations

import pytest

from tests.chaos.processes import Bed
from tests.chaos.store import FAULTS
from tests.minio_server import Unavailable, cached_binary, skip_or_fail

SAMPLE = (
    "every seventh answer is cut in half",
    "keys rotated mid-run",
    "nothing but 503: exit 4, then resumed",
    "expired key: exit 4, then resumed",
)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Bed:
    try:
        cached_binary()
    except Unavailable as reason:
        skip_or_fail(f"S3 TESTS: {reason}")
    return Bed(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("fault", SAMPLE)
def test_gets_through_or_says_what_to_check(fault: str, bed: Bed) -> None:
    assert FAULTS[fault](bed)[1] == ""
