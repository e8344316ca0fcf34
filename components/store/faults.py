"""What a failure of an S3 service is called, whether it may pass, and what to check."""

from __future__ import annotations

import json
import ssl
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from xml.etree.ElementTree import ParseError

from minio import time
from minio.error import InvalidResponseError, MinioAdminException, MinioException, S3Error, ServerError
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

FAULTS = (HTTPError, MinioException, MinioAdminException, ParseError)

_ALLOWED_SKEW = timedelta(minutes=15)  # of S3
_PASSING_CODES = {
    "SlowDown",
    "RequestTimeout",
    "OperationAborted",
    # Damaged on the way; the object is sent again as a whole.
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "InvalidPart",
    "NoSuchUpload",
}
_DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_NETWORK = {
    NameResolutionError: "unknown host",
    NewConnectionError: "cannot connect",
    ConnectTimeoutError: "no connection in time",
    ReadTimeoutError: "no answer in time",
    ParseError: "unreadable answer",
}
_UNTRUSTED = "no TLS connection"
_NOT_S3 = "not an answer of an S3 service"
_NOT_MINIO = "not an answer of a MinIO server"
_ADVICE = {
    "NoSuchBucket": "prepare the store first, or correct the prefix in its address",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "AuthorizationHeaderMalformed": "add ?region=... to the store's address",
    "BadRequest": "correct host, port, region or ?tls= in the store's address",
    _NOT_S3: "correct host, port or ?tls= in the store's address",
    _NOT_MINIO: "correct host, port or ?tls= in the store's address; on any other S3, apply what `siloflow store policies` prints",
    _UNTRUSTED: "set SILOFLOW_CA to the certificate of the store's CA, or correct ?tls= in its address",
}
_KEYS_ADVICE = "check the access key, the secret key and what they may do in this bucket"
_SERVER_ADVICE = "check that the server runs, is reachable from here and has free space"


class Fault(NamedTuple):
    cause: str  # a few words, no foreign text
    passing: bool

    @property
    def denied(self) -> bool:
        return self.cause in _DENIED

    @property
    def advice(self) -> str:
        return _KEYS_ADVICE if self.denied else _ADVICE.get(self.cause, _SERVER_ADVICE)


def diagnosis(error: Exception) -> Fault:
    """Of one of FAULTS."""
    if isinstance(error, S3Error):
        status = error.response.status
        code = error.code if error.code and error.code.isalnum() else f"HTTP status {status}"
        if code == "AccessDenied" and _is_skewed(error.response.headers.get("Date", "")):
            code = "RequestTimeTooSkewed"
        return Fault(code, code in _PASSING_CODES or _is_passing(status))
    if isinstance(error, (ServerError, InvalidResponseError)):
        # The client keeps to itself the status of an answer in HTML, which is what a proxy in between sends.
        status = error.status_code if isinstance(error, ServerError) else error._code
        return Fault(f"HTTP status {status}", True) if _is_passing(status) else Fault(_NOT_S3, False)
    if isinstance(error, MinioAdminException):
        passing = _is_passing(int(error._code))
        return Fault(_admin_code(error._body) or (f"HTTP status {error._code}" if passing else _NOT_MINIO), passing)
    if isinstance(error, SSLError):
        return Fault(_UNTRUSTED, isinstance(error.args[0], ssl.SSLEOFError))
    return Fault(next((cause for kind, cause in _NETWORK.items() if isinstance(error, kind)), "connection broken"), True)


def _admin_code(body: str) -> str | None:
    try:
        code = json.loads(body)["Code"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return code if isinstance(code, str) and code.isalnum() else None


def _is_skewed(date: str) -> bool:
    """The refusal of a HEAD request has no body that would tell a wrong clock from a wrong key."""
    try:
        return abs(parsedate_to_datetime(date) - time.utcnow()) > _ALLOWED_SKEW
    except (TypeError, ValueError):
        return False


def _is_passing(status: int) -> bool:
    return status == 429 or status >= 500
