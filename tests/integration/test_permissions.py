"""Every role x bucket x action on a real MinIO server, with the keys and policies that the product's provisioning made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from minio import Minio, MinioAdmin
from minio.credentials import StaticProvider
from minio.error import MinioAdminException

from components.layout import EVALUATOR, GLOBAL, SERVER
from components.store.access import keys_in
from components.store.provision import provision
from tests.minio_server import MinioServer
from tests.permissions import ACTIONS, PLACES, ROLES, SILOS, actions, observed, rights

READ, WRITE = {"list", "get"}, {"list", "get", "put", "delete"}
# Written down here once more, by hand: a slip in the product's own table must not become the expectation.
EXPECTED = {
    "a": {(GLOBAL, ""): READ, ("silo-a", ""): WRITE, ("silo-a", "inbox"): WRITE},
    SERVER: {
        (GLOBAL, ""): WRITE,
        (EVALUATOR, ""): READ,
        ("silo-a", ""): READ,
        ("silo-a", "inbox"): WRITE,
        ("silo-b", ""): READ,
        ("silo-b", "inbox"): WRITE,
    },
    EVALUATOR: {(GLOBAL, ""): READ, (EVALUATOR, ""): WRITE},
}
NOTHING: set[str] = set()
NOBODY = "nobody"


@dataclass(frozen=True)
class Provisioned:
    server: MinioServer
    folder: Path

    def keys(self, role: str) -> dict[str, str]:
        pair = keys_in(self.folder / role)
        assert pair is not None
        return {"access_key": pair.access_key, "secret_key": pair.secret_key}

    def client(self, role: str) -> Minio:
        return Minio(endpoint=self.server.endpoint, secure=False, region="us-east-1", **({} if role == NOBODY else self.keys(role)))

    def admin(self, role: str | None = None) -> MinioAdmin:
        pair = self.keys(role) if role else {"access_key": self.server.access_key, "secret_key": self.server.secret_key}
        return MinioAdmin(endpoint=self.server.endpoint, secure=False, credentials=StaticProvider(**pair))

    @property
    def root(self) -> Minio:
        return Minio(endpoint=self.server.endpoint, secure=False, access_key=self.server.access_key, secret_key=self.server.secret_key)

    def observed(self, role: str, bucket: str, folder: str, prefix: str = "fed") -> dict[str, bool]:
        return observed(self.client(role), self.root, f"{prefix}-{bucket}", folder)


@pytest.fixture(scope="module")
def store(minio: MinioServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provisioned]:
    """Two federations with the same silos on one server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SILOFLOW_CREDENTIALS", raising=False)
        for name, value in minio.environment.items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("keys")
        for prefix in ("fed", "other"):
            provision(f"s3://{minio.endpoint}/{prefix}", SILOS, folder / prefix)
    yield Provisioned(minio, folder / "fed")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("bucket", "folder"), PLACES)
def test_every_cell(store: Provisioned, role: str, bucket: str, folder: str) -> None:
    expected = EXPECTED[role].get((bucket, folder), NOTHING)
    assert rights(role, bucket, folder) == expected, "the product's table"
    assert store.observed(role, bucket, folder) == actions(expected), "the server"


@pytest.mark.parametrize("bucket", [GLOBAL, EVALUATOR, "silo-a"])
@pytest.mark.parametrize("role", [*ROLES, NOBODY])
def test_no_door_to_another_federation_nor_without_keys(store: Provisioned, role: str, bucket: str) -> None:
    prefix = "fed" if role == NOBODY else "other"
    assert store.observed(role, bucket, "", prefix) == dict.fromkeys(ACTIONS, False)


def test_a_loosened_policy_is_noticed(store: Provisioned) -> None:
    """The proof that the cells above can fail: one more resource in a policy and they do."""
    strict = store.admin().policy_info("fed-silo-a")
    for right in ("get", "delete"):
        loose = json.loads(strict)
        next(one for one in loose["Statement"] if one.get("Sid") == right.title())["Resource"].append("arn:aws:s3:::fed-silo-b/*")
        try:
            store.admin().policy_add("fed-silo-a", policy=loose)
            found = store.observed("a", "silo-b", "")
        finally:
            store.admin().policy_add("fed-silo-a", policy=json.loads(strict))
        assert found == actions({right}) != actions(NOTHING)


def test_a_run_called_inbox_does_not_let_the_server_write_updates(store: Provisioned) -> None:
    found = store.observed(SERVER, "silo-a", "runs/inbox/rounds/1")
    assert found == actions(READ)


@pytest.mark.parametrize("role", ROLES)
def test_no_role_makes_keys_for_itself(store: Provisioned, role: str) -> None:
    """MinIO allows it to everybody, unless denied: keys that nobody knows of, or a secret that locks its owner out."""
    admin, access_key = store.admin(role), store.keys(role)["access_key"]
    for attempt in (
        lambda: admin.add_service_account(access_key="further-key", secret_key="further-secret"),
        lambda: admin.user_add(access_key, "another-secret"),
        lambda: admin.user_add("another-user", "another-secret"),
        lambda: admin.policy_set("readwrite", user=access_key),
        admin.user_list,
    ):
        with pytest.raises(MinioAdminException, match="AccessDenied"):
            attempt()
