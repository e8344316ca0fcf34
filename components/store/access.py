"""Where an s3 store is and who we are there: its address, the role's keys, the certificates it is trusted by."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import certifi
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider

from components.errors import InputError, StoreError
from components.store import checked_bucket
from components.store.file import write_file

_PREFIX = re.compile(r"[a-z0-9][a-z0-9-]*")
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_KEY_FILES = ("access_key", "secret_key")
_KEY_VARIABLES = (
    ("SILOFLOW_ACCESS_KEY", "SILOFLOW_SECRET_KEY"),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY"),
)


@dataclass(frozen=True)
class Address:
    """`url` is safe to show: an address that could hold a password is refused, and not repeated in the refusal."""

    url: str
    host: str
    prefix: str
    tls: bool
    region: str | None

    def bucket_name(self, bucket: str) -> str:
        """What the bucket is called on the server, once that is known to be a name it can have."""
        name = f"{self.prefix}-{checked_bucket(bucket)}"
        if not _BUCKET_NAME.fullmatch(name):
            raise InputError(
                f"bucket {name!r}: expected 3 to 63 of a-z 0-9 -, found {len(name)} characters; rename the silo or the prefix of the store"
            )
        return name


def parse_address(url: str) -> Address:
    """Plain HTTP is the default on the loopback only; anywhere else it has to be asked for with `?tls=false`."""
    expected = "expected s3://host[:port]/prefix[?tls=true|false&region=...]"
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        valid = False
    if not valid or "@" in url:
        raise InputError(f"store 's3://...': {expected}, found another form; keep keys in the environment or in files")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - {"tls", "region"})
    if unknown:
        raise InputError(f"store s3://{parts.netloc}: {expected}, found option {unknown[0]!r}; remove it")
    prefix = parts.path.strip("/")
    if not _PREFIX.fullmatch(prefix):
        raise InputError(f"store s3://{parts.netloc}: {expected}, found prefix {prefix!r}; use a-z 0-9 -, no leading -")
    loopback = _is_loopback(parts.hostname or "")
    tls = options.get("tls", "false" if loopback else "true")
    if tls not in ("true", "false"):
        raise InputError(f"store s3://{parts.netloc}: expected tls=true or tls=false, found tls={tls!r}")
    # A known region saves a GetBucketLocation request, which a policy would have to allow; Amazon's hosts differ.
    region = options.get("region") or (None if ".amazonaws." in parts.netloc else "us-east-1")
    return Address(url, parts.netloc, prefix, tls == "true", region)


class RoleKeys(Provider):
    """The role's keys, from the first place that has them; read again by `renew`, since a mounted Secret may rotate."""

    def __init__(self, store: str, role: str | None) -> None:
        self._store = store
        self._role = None if role is None else checked_bucket(role)
        self._current = self._read()

    def retrieve(self) -> Credentials:
        return self._current

    def renew(self) -> Credentials:
        self._current = self._read()
        return self._current

    def _read(self) -> Credentials:
        mounted = os.environ.get("SILOFLOW_CREDENTIALS")
        if mounted:
            for folder in ([Path(mounted, self._role)] if self._role else []) + [Path(mounted)]:
                found = keys_in(folder)
                if found is not None:
                    return found
        for access_name, secret_name in _KEY_VARIABLES:
            access_key, secret_key = os.environ.get(access_name), os.environ.get(secret_name)
            if access_key and secret_key:
                return Credentials(access_key, secret_key)
        raise StoreError(
            f"{self._store}: expected credentials, found none; set SILOFLOW_CREDENTIALS to a folder with the files "
            "access_key and secret_key, or set SILOFLOW_ACCESS_KEY and SILOFLOW_SECRET_KEY"
        )


def keys_in(folder: Path) -> Credentials | None:
    """The pair in a role's folder; None unless both are there."""
    access_key, secret_key = (_line(folder / name) for name in _KEY_FILES)
    return Credentials(access_key, secret_key) if access_key and secret_key else None


def _line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError):
        raise StoreError(f"expected a key in {path}, found an unreadable file; check its permissions and content") from None


def write_keys(folder: Path, keys: Credentials) -> None:
    """For `keys_in`, in a folder and in files that only their owner can read."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, key in zip(_KEY_FILES, (keys.access_key, keys.secret_key), strict=True):
            write_file(folder / name, [f"{key}\n".encode()], mode=0o600)
    except OSError as error:
        raise InputError(f"credentials folder {folder}: cannot be written ({error.strerror}); choose another one") from None


def trusted_certificates() -> ssl.SSLContext:
    """Who may have signed the store's certificate: SILOFLOW_CA alone, or else the CAs of the system and of certifi."""
    ca = os.environ.get("SILOFLOW_CA")
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise InputError(
            f"SILOFLOW_CA={ca}: expected a file of PEM certificates, found: {error.strerror or error}; correct the path"
        ) from None
    if not ca:
        context.load_verify_locations(certifi.where())
    return context


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
