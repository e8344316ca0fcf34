"""Whether a store denies what it must: every role tries every right in every place, with its own keys and with none.

`policies.grants` says what must be allowed; all else must be refused. Works on any S3, changes nothing that was there.
"""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import urllib3
from minio import Minio
from minio.credentials.providers import StaticProvider

from components.errors import InputError, StoreError
from components.layout import EVALUATOR, GLOBAL, INBOX, silo_bucket
from components.store.access import Address, keys_in, parse_address, trusted_certificates
from components.store.faults import FAULTS, diagnosis
from components.store.policies import RIGHTS, check_names, grants, roles

NOBODY = "nobody"  # has no keys
_ATTEMPTS = 5


class Place(NamedTuple):
    bucket: str
    folder: str

    def __str__(self) -> str:
        return "/".join(filter(None, self))


class Cell(NamedTuple):
    """One role's right in one place: what the table says and what the store did."""

    role: str
    place: Place
    right: str
    expected: bool
    found: bool

    @property
    def wrong(self) -> bool:
        return self.expected != self.found


def places(silos: Sequence[str]) -> list[Place]:
    return [Place(GLOBAL, ""), Place(EVALUATOR, ""), *(Place(silo_bucket(silo), folder) for silo in silos for folder in ("", INBOX))]


def granted(role: str, place: Place, silos: Sequence[str]) -> set[str]:
    if role == NOBODY:
        return set()
    return {
        right
        for grant in grants(role, silos)
        if grant.bucket == place.bucket and grant.folder in ("", place.folder)
        for right in grant.rights
    }


def verify(url: str, silos: Sequence[str], folder: Path, only: Sequence[str] = ()) -> list[Cell]:
    """Every cell, tried for real with the keys in `folder/<role>`. `only`: where not all roles' keys are at hand."""
    address = parse_address(url)
    check_names(address, silos)
    unknown = sorted(set(only) - set(roles(silos)))
    if unknown:
        raise InputError(f"role {unknown[0]!r}: expected one of {', '.join(roles(silos))}")
    present = list(only) or roles(silos)
    if address.tls:
        _refuse_plain(address)
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=5, read=60),
        retries=False,
        ssl_context=trusted_certificates() if address.tls else None,
    )
    clients = {role: _Client(address, role, folder, pool) for role in [*present, NOBODY]}
    cells = []
    for place in places(silos):
        owner = next((clients[role] for role in present if {"put", "delete"} <= granted(role, place, silos)), None)
        with _Planted(owner, place) as planted:
            for role, client in clients.items():
                cells += planted.tried(client, role, granted(role, place, silos))
    return cells


def _refuse_plain(address: Address) -> None:
    """That the certificate is right shows at the first request; that nothing else is spoken on this port, only here."""
    host = address.host if ":" in address.host else f"{address.host}:443"
    try:
        answer = urllib3.request("GET", f"http://{host}/", retries=False, timeout=5, redirect=False)
    except FAULTS:
        return
    if answer.status != 400:
        raise StoreError(f"{address.url}: expected TLS only, found an answer to plain HTTP (status {answer.status}); turn that off")


def refuse_wrong(url: str, cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cell.wrong:
            wanted, found = ("allowed", "AccessDenied") if cell.expected else ("AccessDenied", "it allowed")
            count = sum(other.wrong for other in cells)
            raise StoreError(
                f"{url}: {cell.role}: {cell.right} in {cell.place}: expected {wanted}, found {found} "
                f"({count} of {len(cells)} tries are wrong); put the policies right with `siloflow store provision`"
            )


class _Client:
    """One role's way to the store."""

    def __init__(self, address: Address, role: str, folder: Path, pool: urllib3.PoolManager) -> None:
        self._address, self._role = address, role
        keys = None if role == NOBODY else keys_in(folder / role)
        if keys is None and role != NOBODY:
            raise InputError(f"{folder / role}: expected the files access_key and secret_key, found none; give the folder that has them")
        pair = None if keys is None else StaticProvider(keys.access_key, keys.secret_key)
        self._minio = Minio(endpoint=address.host, secure=address.tls, region=address.region, http_client=pool, credentials=pair)

    def allowed(self, what: str, place: Place, call: Callable[[Minio, str], Any]) -> bool:
        """Whether the store did it. A refusal for any other reason than the role's rights is no answer."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                call(self._minio, self._address.bucket_name(place.bucket))
                return True
            except FAULTS as error:
                fault = diagnosis(error)
            if not fault.passing:
                break
            time.sleep(attempt / 2)
        if fault.cause == "AccessDenied":
            return False
        raise StoreError(f"{self._address.url}: {what} {place} as {self._role} failed: {fault.cause}; {fault.advice}")


class _Planted:
    """An object of the place's owner while others try themselves on it: S3 says AccessDenied for what is not there to those
    who may read but not list, so that a forgotten right to read would not show."""

    def __init__(self, owner: _Client | None, place: Place) -> None:
        self._owner, self._place, self._token = owner, place, secrets.token_hex(8)
        self._left: set[str] = set()

    def __enter__(self) -> _Planted:
        self._plant()
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            for key in sorted(self._left):
                self._owner.allowed("delete", self._place, partial(_remove, key))

    def tried(self, client: _Client, role: str, rights: set[str]) -> list[Cell]:
        """Writes only what is its own; deletes that, or else what must be safe from it."""
        own, planted = self._key(role), self._key("object")
        victim = own if "delete" in rights and "put" in rights else planted
        tries: dict[str, Callable[[Minio, str], Any]] = {
            "list": lambda minio, bucket: list(minio.list_objects(bucket, prefix=self._key(""))),
            "get": partial(_read, planted),
            "put": partial(_write, own),
            "delete": partial(_remove, victim),
        }
        cells = []
        for right in RIGHTS:
            cell = Cell(role, self._place, right, right in rights, client.allowed(right, self._place, tries[right]))
            cells.append(cell)
            if cell.found and right == "put":
                self._left.add(own)
            if cell.found and right == "delete" and victim == planted:
                self._plant()
        return cells

    def _plant(self) -> None:
        key = self._key("object")
        if self._owner is not None and self._owner.allowed("put", self._place, partial(_write, key)):
            self._left.add(key)

    def _key(self, name: str) -> str:
        return "/".join(filter(None, [self._place.folder, "verify", self._token, name]))


def _write(key: str, minio: Minio, bucket: str) -> None:
    minio.put_object(bucket, key, io.BytesIO(b"verify"), 6)


def _remove(key: str, minio: Minio, bucket: str) -> None:
    minio.remove_object(bucket, key)


def _read(key: str, minio: Minio, bucket: str) -> None:
    try:
        response = minio.get_object(bucket, key)
    except FAULTS as error:
        if diagnosis(error).cause == "NoSuchKey":  # who is told that may read
            return
        raise
    response.close()
    response.release_conn()
