"""Fixtures shared by all tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.minio_server import MinioServer, Unavailable, running_minio, skip_or_fail


@pytest.fixture(scope="session")
def minio() -> Iterator[MinioServer]:
    """One real MinIO server per test process."""
    try:
        with running_minio() as server:
            yield server
    except Unavailable as reason:
        skip_or_fail(f"S3 TESTS: {reason}")


@pytest.fixture
def s3_url(minio: MinioServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of an empty s3 store; the keys to it are in the environment."""
    for name in ("SILOFLOW_CREDENTIALS", "SILOFLOW_CA", "SILOFLOW_STORE_ATTEMPTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in minio.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{minio.endpoint}/t{uuid.uuid4().hex[:12]}"
