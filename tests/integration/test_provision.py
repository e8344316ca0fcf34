"""`siloflow store provision` on a real MinIO server: repeatable, careful with what it finds, and quiet about secrets."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from minio import Minio, MinioAdmin
from minio.credentials import AssumeRoleProvider, StaticProvider
from minio.error import S3Error
from typer.testing import Result

from components.store.access import keys_in
from tests.minio_server import MinioServer
from tests.pipelines.commands import invoke


@dataclass
class Site:
    """A silos.yaml, a folder for the keys and a prefix of its own on the server."""

    server: MinioServer
    url: str
    root: Path
    silos: Sequence[str] = ("a", "b")

    @property
    def prefix(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def folder(self) -> Path:
        return self.root / "keys"

    @property
    def admin(self) -> MinioAdmin:
        return MinioAdmin(
            endpoint=self.server.endpoint, secure=False, credentials=StaticProvider(self.server.access_key, self.server.secret_key)
        )

    def provision(self, *words: str | Path, code: int = 0) -> Result:
        file = self.root / "silos.yaml"
        file.write_text(json.dumps({"store": self.url, "silos": [{"name": name} for name in self.silos]}))
        answer = invoke("store", "provision", file, "--credentials", self.folder, *words)
        assert answer.exit_code == code, answer.output
        return answer

    def states(self, *words: str) -> dict[tuple[str, str], str]:
        """What it printed: (kind, name) -> state."""
        rows = [line.split(None, 2) for line in self.provision(*words).stdout.splitlines()]
        return {(kind, name.removeprefix(f"{self.prefix}-")): state.strip() for kind, name, state in rows}

    def refused(self, code: int, *words: str) -> str:
        """The one line of a failure, after which nothing is different."""
        before = self.snapshot()
        answer = self.provision(*words, code=code)
        assert self.snapshot() == before
        assert answer.stdout == ""
        assert answer.stderr.count("\n") == 1
        return answer.stderr

    def users(self) -> dict[str, Any]:
        return {name: user for name, user in json.loads(self.admin.user_list()).items() if name.startswith(self.prefix)}

    def snapshot(self) -> Any:
        policies = {name: _sets(value) for name, value in json.loads(self.admin.policy_list()).items() if name.startswith(self.prefix)}
        buckets = [(one.name, one.creation_date) for one in self.client().list_buckets() if one.name.startswith(self.prefix)]
        files = {path: path.read_text() for path in sorted(self.folder.rglob("*_key"))}
        return self.users(), policies, buckets, files

    def client(self, role: str | None = None) -> Minio:
        pair = keys_in(self.folder / role) if role else None
        access_key, secret_key = (pair.access_key, pair.secret_key) if pair else (self.server.access_key, self.server.secret_key)
        return Minio(endpoint=self.server.endpoint, access_key=access_key, secret_key=secret_key, secure=False, region="us-east-1")

    def works(self, client: Minio) -> str:
        try:
            list(client.list_objects(f"{self.prefix}-global"))
        except S3Error as error:
            return str(error.code)
        return "works"


def _sets(document: Any) -> Any:
    """MinIO returns actions and resources in any order."""
    if isinstance(document, dict):
        return {key: _sets(value) for key, value in document.items()}
    return sorted(map(_sets, document), key=str) if isinstance(document, list) else document


@pytest.fixture
def site(minio: MinioServer, s3_url: str, tmp_path: Path) -> Site:
    return Site(minio, s3_url, tmp_path)


def test_the_second_time_changes_nothing(site: Site) -> None:
    first = site.states()
    assert set(first.values()) == {"created"}
    assert len(first) == 4 + 4 + 4
    before = site.snapshot()
    assert set(site.states().values()) == {"unchanged"}
    assert site.snapshot() == before
    assert {site.works(site.client(role)) for role in ("a", "b", "server", "evaluator")} == {"works"}


def test_one_more_silo_leaves_the_others_alone(site: Site) -> None:
    site.provision()
    users, policies, buckets, files = site.snapshot()
    site.silos = ("a", "b", "c")
    changed = {what: state for what, state in site.states().items() if state != "unchanged"}
    created = dict.fromkeys([("bucket", "silo-c"), ("policy", "silo-c"), ("user", "c")], "created")
    assert changed == {**created, ("policy", "server"): "updated"}, "the server reads one bucket more"
    now = site.snapshot()
    assert now[0].items() >= users.items()
    assert {name for name in policies if now[1][name] != policies[name]} == {f"{site.prefix}-server"}
    assert set(now[2]) > set(buckets)
    assert now[3].items() > files.items()
    site.silos = ("a",)
    site.provision()
    assert site.snapshot()[0].keys() == now[0].keys(), "a silo that left the file keeps its user until somebody removes it"


def test_a_rotation_closes_what_the_old_keys_opened(site: Site) -> None:
    site.provision()
    before = site.snapshot()
    old, others = site.client("a"), [site.client("b"), site.client("server")]
    pair = keys_in(site.folder / "a")
    assert pair is not None
    provider = AssumeRoleProvider(
        sts_endpoint=f"http://{site.server.endpoint}", access_key=pair.access_key, secret_key=pair.secret_key, region="us-east-1"
    )
    opened = provider.retrieve()
    session = Minio(
        endpoint=site.server.endpoint,
        secure=False,
        region="us-east-1",
        credentials=StaticProvider(opened.access_key, opened.secret_key, opened.session_token),
    )
    assert [site.works(client) for client in (old, session, *others)] == ["works"] * 4
    changed = {what: state for what, state in site.states("--rotate", "a").items() if state != "unchanged"}
    assert changed == {("user", "a"): "rotated"}
    assert site.works(old) == "InvalidAccessKeyId"
    assert site.works(session) in ("AccessDenied", "InvalidAccessKeyId"), "a session must not outlive the keys it came from"
    assert [site.works(client) for client in (site.client("a"), *others)] == ["works"] * 3
    assert len(site.users()) == len(before[0])
    assert set(site.states().values()) == {"unchanged"}


def test_a_rotation_that_was_killed_is_finished(site: Site) -> None:
    """Killed before the old user was removed: both are there, and the folder has the new keys."""
    site.provision()
    old = site.client("a")
    site.admin.user_add(f"{site.prefix}-new", "new-secret-of-a")
    site.admin.policy_set(f"{site.prefix}-silo-a", user=f"{site.prefix}-new")
    (site.folder / "a" / "access_key").write_text(f"{site.prefix}-new")
    (site.folder / "a" / "secret_key").write_text("new-secret-of-a")
    changed = {what: state for what, state in site.states().items() if state != "unchanged"}
    assert changed == {("user", "a"): "updated"}
    assert (site.works(old), site.works(site.client("a"))) == ("InvalidAccessKeyId", "works")


def test_what_was_changed_by_hand_is_put_right(site: Site) -> None:
    site.provision()
    before = site.snapshot()
    wide = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}]}
    site.admin.policy_add(f"{site.prefix}-silo-a", policy=wide)
    user = next(name for name in site.users() if "-silo-b" in name)
    site.admin.policy_set(f"{site.prefix}-silo-b,readwrite", user=user)
    changed = {what: state for what, state in site.states().items() if state != "unchanged"}
    assert changed == {("policy", "silo-a"): "updated", ("user", "b"): "updated"}
    without_dates = [{name: (user["policyName"], user["status"]) for name, user in users.items()} for users in (before[0], site.users())]
    assert without_dates[0] == without_dates[1]
    assert site.snapshot()[1] == before[1]


def test_a_disabled_user_stays_so(site: Site) -> None:
    site.provision()
    site.admin.user_disable(next(name for name in site.users() if "-silo-a" in name))
    assert site.states()["user", "a"] == "disabled, left so"
    assert site.works(site.client("a")) != "works"


def test_keys_may_come_from_elsewhere_and_are_for_their_owner_only(site: Site) -> None:
    (site.folder / "a").mkdir(parents=True)
    (site.folder / "a" / "access_key").write_text(f"{site.prefix}-hospital\n")
    (site.folder / "a" / "secret_key").write_text("chosen-by-the-hospital\n")
    printed = site.provision()
    assert site.works(site.client("a")) == "works"
    assert f"{site.prefix}-hospital" in site.users()
    assert {path.stat().st_mode & 0o777 for path in (site.folder / "b").iterdir()} == {0o600}
    assert (site.folder / "b").stat().st_mode & 0o777 == 0o700
    secrets = [path.read_text().strip() for path in site.folder.rglob("secret_key")] + [site.server.secret_key]
    assert len(secrets) == 5
    assert not any(secret in printed.output for secret in secrets)


def test_folder_and_store_that_disagree(site: Site, tmp_path: Path) -> None:
    """Keys that were rotated elsewhere must not come back to life, nor those of everybody be replaced by mistake."""
    site.provision()
    secret, access = site.folder / "a" / "secret_key", site.folder / "a" / "access_key"
    kept = access.read_text(), secret.read_text()
    secret.write_text("another-secret")
    assert "found a wrong secret key; give the folder that has them, or make new ones with --rotate a" in site.refused(2)
    access.write_text(f"{site.prefix}-older")
    assert "found others" in site.refused(2)
    access.unlink()
    assert "found none" in site.refused(2)
    access.write_text(kept[0])
    secret.write_text(kept[1])
    site.admin.user_add(f"{site.prefix}-clerk", "secret-of-the-clerk")
    site.admin.policy_set("readonly", user=f"{site.prefix}-clerk")
    site.silos = ("a", "b", "c")
    (site.folder / "c").mkdir()
    (site.folder / "c" / "access_key").write_text(f"{site.prefix}-clerk")
    (site.folder / "c" / "secret_key").write_text("secret-of-the-clerk")
    assert "found those of a user with another policy" in site.refused(2)


def test_wrong_input_and_wrong_keys(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.root / "file").write_text("")
    assert "cannot be written (Not a directory)" in site.refused(2, "--credentials", str(site.root / "file" / "keys"))
    site.provision()
    assert "rotate 'z': expected one of server, evaluator, a, b" in site.refused(2, "--rotate", "z")
    with monkeypatch.context() as patch:
        patch.setenv("SILOFLOW_SECRET_KEY", "canary-secret")
        said = site.refused(4)
        assert "list users failed after 1 attempt: SignatureDoesNotMatch; check the access key" in said
        assert "canary" not in said
    pair = keys_in(site.folder / "a")
    assert pair is not None
    with monkeypatch.context() as patch:
        patch.setenv("SILOFLOW_ACCESS_KEY", pair.access_key)
        patch.setenv("SILOFLOW_SECRET_KEY", pair.secret_key)
        assert "list users failed after 1 attempt: AccessDenied" in site.refused(4)


def test_a_store_that_is_not_there(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_STORE_ATTEMPTS", "2")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        site.url = f"s3://127.0.0.1:{closed.getsockname()[1]}/fed"
        answer = site.provision(code=4)
    assert "list users failed after 2 attempts: cannot connect; check that the server runs" in answer.stderr
    assert not site.folder.exists()


def test_the_administrators_keys_may_be_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in site.server.environment:
        monkeypatch.delenv(name)
    assert "expected credentials, found none" in site.provision(code=4).stderr
    mounted = site.root / "mounted" / "admin"
    mounted.mkdir(parents=True)
    (mounted / "access_key").write_text(site.server.access_key)
    (mounted / "secret_key").write_text(site.server.secret_key)
    monkeypatch.setenv("SILOFLOW_CREDENTIALS", str(mounted.parent))
    assert set(site.states().values()) == {"created"}
