"""What only the s3 store does: credentials, TLS, its names, objects that were not made by this code."""

from __future__ import annotations

import gzip
import io
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from minio import Minio

from components.errors import InputError, StoreError
from components.store import open_store
from components.store.access import parse_address
from tests.minio_server import MinioServer, running_minio, skip_or_fail


def test_fetch_without_files_in_memory(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(s3_url)
    store.prepare(["global"])
    store.put("global", "key", [b"content"])
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = store.fetch("global", "key", limit=7)
    assert found is not None
    with found:
        assert found.path.parent == tmp_path
        assert found.path.read_bytes() == b"content"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StoreError, match="fetch global/key failed on this machine: No such file or directory; check its"):
        store.fetch("global", "key", limit=7)


def test_wrong_keys_fail_at_once_and_stay_secret(
    minio: MinioServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for access_key, cause in ((minio.access_key, "SignatureDoesNotMatch"), ("canary-access", "InvalidAccessKeyId")):
        monkeypatch.setenv("SILOFLOW_ACCESS_KEY", access_key)
        monkeypatch.setenv("SILOFLOW_SECRET_KEY", "canary-secret")
        store = open_store(f"s3://{minio.endpoint}/fed")
        with pytest.raises(StoreError, match=f"get global/key failed after 1 attempt: {cause}; check the access key") as error:
            store.get("global", "key")
        with pytest.raises(StoreError, match="prepare global failed after 1 attempt: AccessDenied"):
            store.prepare(["global"])
        assert "canary" not in str(error.value) + caplog.text
        assert minio.access_key not in str(error.value) + caplog.text


def test_rotated_keys_are_read_again(minio: MinioServer, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CREDENTIALS", str(tmp_path))
    (tmp_path / "access_key").write_text(minio.access_key + "\n")
    (tmp_path / "secret_key").write_text("outdated")
    store = open_store(s3_url)
    with pytest.raises(StoreError):
        store.prepare(["global"])
    (tmp_path / "secret_key").write_text(minio.secret_key + "\n")
    store.prepare(["global"])
    store.put("global", "model", [bytes(20_000_000)])
    (tmp_path / "secret_key").write_text("wrong again")
    assert store.size("global", "model") == 20_000_000, "keys that work are kept"


def test_a_role_has_its_own_keys_before_all_others(
    minio: MinioServer, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILOFLOW_CREDENTIALS", str(tmp_path))
    monkeypatch.setenv("SILOFLOW_ACCESS_KEY", "nobody")
    monkeypatch.setenv("SILOFLOW_SECRET_KEY", "nothing")
    for name, value in (("access_key", minio.access_key), ("secret_key", minio.secret_key)):
        (tmp_path / "silo-a").mkdir(exist_ok=True)
        (tmp_path / "silo-a" / name).write_text(value)
    open_store(s3_url, role="silo-a").prepare(["global"])
    with pytest.raises(StoreError, match="InvalidAccessKeyId"):
        open_store(s3_url, role="silo-b").get("global", "key")
    with pytest.raises(InputError):
        open_store(s3_url, role="../silo-a")


def test_no_keys_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for family in ("SILOFLOW_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "MINIO_ACCESS_KEY"):
        monkeypatch.delenv(family, raising=False)
    monkeypatch.setenv("SILOFLOW_CREDENTIALS", str(tmp_path))
    with pytest.raises(StoreError, match=r"found none; set SILOFLOW_CREDENTIALS .* SILOFLOW_SECRET_KEY"):
        open_store("s3://127.0.0.1:1/fed")


def test_an_object_labelled_as_compressed_is_not_unpacked(minio: MinioServer, s3_url: str) -> None:
    store = open_store(s3_url)
    store.prepare(["silo-a"])
    bomb = gzip.compress(bytes(5_000_000))
    client = Minio(endpoint=minio.endpoint, access_key=minio.access_key, secret_key=minio.secret_key, secure=False)
    client.put_object(s3_url.rpartition("/")[2] + "-silo-a", "bomb", io.BytesIO(bomb), len(bomb), metadata={"Content-Encoding": "gzip"})
    assert store.get("silo-a", "bomb", limit=10_000) == bomb


def test_names_that_s3_cannot_hold(s3_url: str) -> None:
    store = open_store(s3_url)
    for bucket in ("silo-A", "silo_a", "silo.a", "silo-", "s" * 60):
        with pytest.raises(InputError, match="3 to 63 of a-z 0-9 -"):
            store.prepare([bucket])


def test_attempts_must_be_a_number(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_STORE_ATTEMPTS", "many")
    with pytest.raises(InputError, match="SILOFLOW_STORE_ATTEMPTS"):
        open_store(s3_url)


def test_tls_with_a_private_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_url: str) -> None:
    if not shutil.which("openssl"):
        skip_or_fail("TLS TEST: no openssl to make a certificate with")
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=siloflow-test"
    subprocess.run(
        ["openssl", *f"{request} -addext subjectAltName=IP:127.0.0.1 -keyout private.key -out public.crt".split()],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    with running_minio(certificates=tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{server.endpoint}/fed"
        with pytest.raises(StoreError, match="1 attempt: BadRequest; correct host, port, region or"):
            open_store(url).prepare(["global"])
        with pytest.raises(StoreError, match="1 attempt: no TLS connection; set SILOFLOW_CA"):
            open_store(url + "?tls=true").prepare(["global"])
        monkeypatch.setenv("SILOFLOW_CA", str(tmp_path / "public.crt"))
        store = open_store(url + "?tls=true")
        store.prepare(["global"])
        store.put("global", "model", [bytes(20_000_000)])
        assert store.size("global", "model") == 20_000_000
    with pytest.raises(StoreError, match="1 attempt: no TLS connection"):
        open_store(s3_url + "?tls=true").prepare(["global"])  # a server that speaks plain HTTP
    monkeypatch.setenv("SILOFLOW_CA", str(tmp_path / "missing.crt"))
    with pytest.raises(InputError, match="SILOFLOW_CA"):
        open_store(url + "?tls=true")


def test_tls_is_the_default_away_from_the_loopback() -> None:
    assert parse_address("s3://store.example:9000/fed").tls
    assert not parse_address("s3://store.example:9000/fed?tls=false").tls
    assert parse_address("s3://10.0.0.1/fed").tls
    for host in ("localhost:9000", "127.0.0.2", "[::1]:9000"):
        assert not parse_address(f"s3://{host}/fed").tls
