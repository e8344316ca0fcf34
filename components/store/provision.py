"""Sets up a MinIO server for a federation: buckets, one user a role with keys of its own, one policy a user.

Safe to repeat, and to kill: what is there already is kept, what is missing is made. A role has one user: once it has new
keys, whoever else has its policy is removed. Nothing else ever is.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from minio import Minio, MinioAdmin
from minio.credentials.credentials import Credentials
from minio.credentials.providers import StaticProvider
from minio.error import MinioAdminException, S3Error
from urllib3.exceptions import ProtocolError

from components.errors import InputError
from components.layout import ADMIN, buckets
from components.store.access import keys_in, write_keys
from components.store.faults import diagnosis
from components.store.policies import check_names, policy, policy_name, roles
from components.store.s3 import S3Store

# On MinIO everybody may change their own secret and make further keys for themselves, unless that is denied.
_NO_KEYS_OF_ONES_OWN = {"Effect": "Deny", "Action": ["admin:*"]}

CREATED, UPDATED, UNCHANGED, ROTATED, DISABLED = "created", "updated", "unchanged", "rotated", "disabled, left so"


class Change(NamedTuple):
    kind: str
    name: str
    state: str


def provision(url: str, silos: Sequence[str], folder: Path, rotate: Collection[str] = (), adopt: bool = False) -> list[Change]:
    """Make the store fit for these silos; the keys of role `r` are then in `folder/r`.

    Keys in the folder are kept. Roles in `rotate` get new ones, and whatever the old ones opened is closed.
    With `adopt` somebody else makes the keys: those in the folder win over what the store knows, and all must be there.
    """
    unknown = sorted(set(rotate) - set(roles(silos)))
    if unknown:
        raise InputError(f"rotate {unknown[0]!r}: expected one of {', '.join(roles(silos))}")
    server = _Server(url, silos)
    users = server.users()
    if adopt:
        keys = {role: server.adopt_keys(role, users, folder) for role in roles(silos)}
    else:
        keys = {role: server.settle_keys(role, users, folder, role in rotate) for role in roles(silos)}
    # Into the folder first: a role that is refused from now on finds its new keys there.
    for role, pair in keys.items():
        if pair != keys_in(folder / role):
            write_keys(folder / role, pair)
    changes = [server.bucket(bucket) for bucket in buckets(silos)]
    for role, pair in keys.items():
        changes += [server.policy(role, silos), server.user(role, pair, users)]
    return changes


def _ordered(policy: dict[str, Any]) -> dict[str, Any]:
    """To be compared: to MinIO actions and resources are sets, which it returns in any order."""
    statements = [{key: sorted(value) if isinstance(value, list) else value for key, value in one.items()} for one in policy["Statement"]]
    return {**policy, "Statement": statements}


class _Server(S3Store):
    """The store as its administrator sees it."""

    def __init__(self, url: str, silos: Sequence[str]) -> None:
        super().__init__(url, ADMIN)
        check_names(self._address, silos)
        address = self._address
        self._admin = MinioAdmin(endpoint=address.host, secure=address.tls, credentials=self._keys, http_client=self._pool)

    def users(self) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            try:
                found: dict[str, Any] = json.loads(self._admin.user_list())
            except (OSError, ValueError):  # encrypted; what is cut short cannot be opened
                raise ProtocolError("damaged answer") from None
            return found

        return self._attempt("list users", ask)

    def settle_keys(self, role: str, users: dict[str, Any], folder: Path, rotate: bool) -> Credentials:
        """The keys the role will have. Where folder and store disagree, keys were rotated elsewhere, or belong to somebody else."""
        found, holders = keys_in(folder / role), self._holders(role, users)
        if rotate or (found is None and not holders):
            return Credentials(f"{policy_name(self._address, role)}-{secrets.token_hex(4)}", secrets.token_hex(20))
        wrong = None
        if found is None:
            wrong = "none"
        elif holders and found.access_key not in holders:
            wrong = "others"
        elif found.access_key in users and not holders and users[found.access_key].get("policyName"):
            wrong = "those of a user with another policy"
        elif found.access_key in users and users[found.access_key]["status"] == "enabled" and not self._accepted(found):
            wrong = "a wrong secret key"
        if found is None or wrong:
            raise InputError(
                f"{folder / role}: expected the keys of {role} in {self.url}, found {wrong}; "
                f"give the folder that has them, or make new ones with --rotate {role}"
            )
        return found

    def adopt_keys(self, role: str, users: dict[str, Any], folder: Path) -> Credentials:
        """The pair in the folder, unless it is somebody else's: a user of another policy, or a secret that is not the user's."""
        found = keys_in(folder / role)
        wrong = None
        if found is None:
            wrong = "none"
        elif found.access_key not in users:
            pass
        elif found.access_key not in self._holders(role, users) and users[found.access_key].get("policyName"):
            wrong = "those of a user with another policy"
        elif users[found.access_key]["status"] == "enabled" and not self._accepted(found):
            wrong = "the secret key of another access key"
        if found is None or wrong:
            raise InputError(f"{folder / role}: expected a key pair for {role} in {self.url}, found {wrong}; give it a new pair")
        return found

    def bucket(self, bucket: str) -> Change:
        name = self._name(bucket)
        made = self._attempt(f"create {name}", partial(self._create, name))
        return Change("bucket", name, CREATED if made else UNCHANGED)

    def policy(self, role: str, silos: Sequence[str]) -> Change:
        name, wanted = policy_name(self._address, role), policy(self._address, role, silos)
        wanted["Statement"].append(_NO_KEYS_OF_ONES_OWN)
        found = self._attempt(f"read policy {name}", partial(self._stored_policy, name))
        if found == _ordered(wanted):
            return Change("policy", name, UNCHANGED)
        self._attempt(f"write policy {name}", partial(self._admin.policy_add, name, policy=wanted))
        return Change("policy", name, CREATED if found is None else UPDATED)

    def _stored_policy(self, name: str) -> Any:
        try:
            return _ordered(json.loads(self._admin.policy_info(name)))
        except MinioAdminException as error:
            if diagnosis(error).cause == "XMinioAdminNoSuchPolicy":
                return None
            raise

    def user(self, role: str, keys: Credentials, users: dict[str, Any]) -> Change:
        """The role's one user, with its policy and no other. It is not woken up when somebody put it to sleep."""
        name, found, former = policy_name(self._address, role), users.get(keys.access_key), self._holders(role, users)
        if found is None:
            self._attempt(f"create user {keys.access_key}", partial(self._admin.user_add, keys.access_key, keys.secret_key))
        if found is None or found.get("policyName") != name:
            self._attempt(f"attach policy {name}", partial(self._admin.policy_set, name, user=keys.access_key))
        # With the user go the sessions it opened: they would outlive a mere change of its secret.
        for old in sorted(former - {keys.access_key}):
            self._attempt(f"remove user {old}", partial(self._admin.user_remove, old))
        if found is None:
            return Change("user", role, ROTATED if former else CREATED)
        if found["status"] == "disabled":
            return Change("user", role, DISABLED)
        return Change("user", role, UNCHANGED if found.get("policyName") == name and former == {keys.access_key} else UPDATED)

    def _holders(self, role: str, users: dict[str, Any]) -> set[str]:
        """Access keys of the users that have the role's policy: the name is ours, so they are."""
        name = policy_name(self._address, role)
        return {key for key, user in users.items() if name in user.get("policyName", "").split(",")}

    def _accepted(self, keys: Credentials) -> bool:
        """Whether the server knows the pair, whatever it may be used for."""
        address, pair = self._address, StaticProvider(keys.access_key, keys.secret_key)
        client = Minio(endpoint=address.host, secure=address.tls, region=address.region, credentials=pair, http_client=self._pool)

        def look() -> bool:
            try:
                client.list_buckets()
            except S3Error as error:
                if not diagnosis(error).denied:
                    raise
                return error.code == "AccessDenied"
            return True

        return self._attempt(f"try the keys of {keys.access_key}", look)
