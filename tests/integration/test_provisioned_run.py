"""Whole federations with the keys that provisioning made, and nobody's but their own in anybody's hands."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from components import layout
from components.errors import StoreError
from components.manifest import BroadcastManifest, Stored, UpdateManifest
from components.store import open_store
from tests.federations import DOMAINS, Run, draw_pictures, values
from tests.integration.test_same_result import run
from tests.minio_server import MinioServer, running_minio, skip_or_fail
from tests.pipelines.commands import command, finish, invoke


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))


def provision(url: str, server: MinioServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the environment leads to the roles' keys and no longer to the administrator's."""
    file = folder / "silos.yaml"
    file.write_text(json.dumps({"store": url, "silos": [{"name": name} for name in DOMAINS]}))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    code, _, said = finish(command("store", "provision", file, "--credentials", folder / "keys"))
    assert code == 0, said
    for name in server.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SILOFLOW_CREDENTIALS", str(folder / "keys"))


def test_every_role_needs_no_more_than_it_has(
    s3_url: str, minio: MinioServer, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedCCRL, since it fills the inboxes."""
    spec = values(pictures, "fedccrl")
    provision(s3_url, minio, tmp_path, monkeypatch)
    assert run({**spec, "store": s3_url}, tmp_path / "s3")["digest"] == run(spec, tmp_path / "disk")["digest"]
    with pytest.raises(StoreError, match="prepare silo-dogwood failed after 1 attempt: AccessDenied"):
        open_store(s3_url, layout.SERVER).prepare([*layout.buckets(DOMAINS), "silo-dogwood"])


def test_an_update_changed_after_it_was_used_changes_nothing(
    s3_url: str, minio: MinioServer, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(s3_url, minio, tmp_path, monkeypatch)
    spec: dict[str, Any] = values(pictures, "fedavg", rounds=3)
    undisturbed = Run(spec, tmp_path / "disk" / "run").digest
    silo, changed = open_store(s3_url, "ash"), []

    def overwrite(broadcast: BroadcastManifest) -> None:
        payload_key, manifest_key = layout.update_keys("run", broadcast.round, broadcast.exchange)
        stored = silo.get(layout.silo_bucket("ash"), manifest_key)
        assert stored is not None
        manifest = UpdateManifest.decode(stored)
        forged = manifest.model_copy(update={"samples": manifest.samples + 1000, "payload": Stored(bytes=9, digest="blake3:" + "0" * 64)})
        silo.put(layout.silo_bucket("ash"), payload_key, [b"different"])
        silo.put(layout.silo_bucket("ash"), manifest_key, [forged.encode()])
        changed.append(broadcast.round)

    disturbed = Run({**spec, "store": s3_url}, tmp_path / "s3" / "run")
    disturbed.go(after_exchange=overwrite)
    assert changed == [0, 1, 2, 3]
    result = disturbed.finish()
    assert (result["digest"], result["rejected"]) == (undisturbed, [])


def test_tls_with_a_private_ca(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, certificates = certify(tmp_path)
    with running_minio(certificates=certificates) as server:
        url = f"s3://{server.endpoint}/fed?tls=true"
        monkeypatch.setenv("SILOFLOW_CA", str(ca))
        provision(url, server, tmp_path, monkeypatch)
        result = run({**values(pictures, "fedavg", rounds=1), "store": url}, tmp_path / "s3")
        assert result["history"][0]["participants"] == list(DOMAINS)
        monkeypatch.delenv("SILOFLOW_CA")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        answer = invoke("store", "provision", tmp_path / "silos.yaml", "--credentials", tmp_path / "keys")
        assert (answer.exit_code, answer.stderr.count("\n")) == (4, 1)
        assert "list users failed after 1 attempt: no TLS connection; set SILOFLOW_CA" in answer.stderr


def certify(folder: Path) -> tuple[Path, Path]:
    """A CA's certificate, and a folder with a certificate for 127.0.0.1 that it signed."""
    if not shutil.which("openssl"):
        skip_or_fail("TLS TEST: no openssl to make certificates with")
    made = folder / "certificates"
    made.mkdir()
    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    for line in (
        f"req -x509 {new_key} -days 2 -subj /CN=test-ca -keyout ca.key -out ca.crt",
        f"req {new_key} -subj /CN=store -keyout certificates/private.key -out store.csr",
        "x509 -req -in store.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san -out certificates/public.crt",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    return folder / "ca.crt", made
