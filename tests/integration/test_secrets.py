"""No secret in anything a run leaves behind: a canary is planted in every credential, then everything is searched for it."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from minio import Minio
from minio.credentials import Credentials

from components.layout import EVALUATOR, SERVER
from components.store.access import write_keys
from tests.federations import DOMAINS, draw_pictures, values
from tests.minio_server import MinioServer
from tests.pipelines.commands import command, finish, invoke

CANARY = "canary" + secrets.token_hex(8)
EVERY_ROLE = (SERVER, EVALUATOR, *DOMAINS)


def leaks(texts: Iterable[tuple[str, bytes]], planted: Iterable[bytes]) -> list[str]:
    """Names of the texts with something planted in them."""
    needles = list(planted)
    return [name for name, text in texts if any(needle in text for needle in needles)]


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    return ((str(path), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file())


def objects(server: MinioServer, prefix: str) -> Iterator[tuple[str, bytes]]:
    root = Minio(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key, secure=False)
    for bucket in root.list_buckets():
        if bucket.name.startswith(prefix):
            for found in root.list_objects(bucket.name, recursive=True):
                yield f"{bucket.name}/{found.object_name}", root.get_object(bucket.name, str(found.object_name)).read()


@contextmanager
def command_lines() -> Iterator[dict[str, bytes]]:
    """Of every process that is there at some time during the block, as any user of the machine can read them."""
    seen: dict[str, bytes] = {}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    text = path.read_bytes()
                except OSError:  # ended meanwhile
                    continue
                seen[text.replace(b"\0", b" ").decode(errors="replace")] = text

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


@pytest.fixture
def keys(tmp_path: Path, minio: MinioServer, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys with a canary in each secret, in the folder that provisioning keeps them in, and in every variable it reads besides."""
    monkeypatch.setenv("SILOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SILOFLOW_DEBUG", "1")
    for role in EVERY_ROLE:
        write_keys(tmp_path / "keys" / role, Credentials(f"{s3_url.rpartition('/')[2]}-{role}", f"{CANARY}-{role}"))
    write_keys(tmp_path / "keys" / "admin", Credentials(minio.access_key, minio.secret_key))
    monkeypatch.setenv("SILOFLOW_CREDENTIALS", str(tmp_path / "keys"))
    for name in ("SILOFLOW_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "MINIO_SECRET_KEY"):
        monkeypatch.setenv(name, f"{CANARY}-{name}")
    return tmp_path / "keys"


def test_no_secret_is_left_behind(keys: Path, s3_url: str, minio: MinioServer, tmp_path: Path) -> None:
    planted = [CANARY.encode(), minio.secret_key.encode()]
    spec = {**values(draw_pictures(tmp_path / "pictures"), "fedccrl", rounds=1), "store": s3_url}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    (tmp_path / "silos.yaml").write_text(json.dumps({"store": s3_url, "silos": [{"name": name} for name in DOMAINS]}))
    said: list[tuple[str, bytes]] = []

    def call(expected: int, *words: str | Path) -> str:
        code, out, err = finish(command(*words))
        assert code == expected, err
        said.append((f"output of {words[0]}", (out + err).encode()))
        return err

    with command_lines() as seen:
        call(0, "store", "provision", tmp_path / "silos.yaml", "--credentials", keys)
        call(0, "run", tmp_path / "spec.yaml", "--json", "--out", tmp_path / "runs" / "good")
        write_keys(keys / "birch", Credentials(f"{s3_url.rpartition('/')[2]}-birch", f"{CANARY}-wrong"))
        assert "SignatureDoesNotMatch" in call(4, "run", tmp_path / "spec.yaml", "--out", tmp_path / "runs" / "silo-refused")
        call(2, "store", "provision", tmp_path / "silos.yaml", "--credentials", keys)
        write_keys(keys / SERVER, Credentials(f"{CANARY}-server", f"{CANARY}-wrong"))
        call(4, "run", tmp_path / "spec.yaml", "--out", tmp_path / "runs" / "server-refused")
    stored, left = list(objects(minio, s3_url.rpartition("/")[2])), list(files(tmp_path / "runs"))
    # Nothing was searched in vain: what was to be searched is there, debug messages of the S3 client included.
    names = {Path(name).name for name, _ in left}
    assert {"result.json", "spec.yaml", "plan.json", "model.safetensors", "server.log", "ash.log", "birch.log", "evaluator.log"} <= names
    assert any(b"DEBUG" in text and b"/runs/good/" in text for name, text in left if name.endswith("ash.log"))
    assert {"broadcast.json", "update.json", "inbox.json", "plan.json"} <= {name.rpartition("/")[2] for name, _ in stored}
    assert any("siloflow run" in line for line in seen)
    assert leaks(files(keys), planted), "the search can find"
    assert leaks([*said, *stored, *left, *seen.items()], planted) == []


def test_keys_in_an_address_are_refused_and_not_repeated(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"store: s3://someone:{CANARY}@store.example/fed\n")
    code, out, err = finish(command("run", spec, "--out", tmp_path / "run"))
    answers = [(code, out + err), *((answer.exit_code, answer.output) for answer in (invoke("spec", spec), invoke("doctor", spec)))]
    for code, text in answers:
        unwrapped = "".join(text.split())
        assert code == 2
        assert "expecteds3://host" in unwrapped
        assert CANARY not in unwrapped
    assert not (tmp_path / "run").exists()
