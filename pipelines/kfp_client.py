"""Kubeflow Pipelines over its v2beta1 REST interface: every answer checked, every failure one line that says what to do.

The client of the kfp package is not used: it prints, writes into the home folder and asks five times before it says 401.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.util import Retry, Timeout

from components.errors import InputError, StoreError

API = "/apis/v2beta1"
LONGEST_REASON = 300
MAX_ANSWER = 64 << 20  # a run of hundreds of rounds is some megabytes
PATIENCE = Timeout(connect=10, read=60)
GENTLY = Retry(
    total=2, connect=1, read=1, other=0, redirect=0, status_forcelist=(502, 503, 504), backoff_factor=0.3, allowed_methods=("GET",)
)
_SCHEMA = re.compile(r"unknown field|InvalidInput|spec is invalid|template creation error")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class KfpError(StoreError):
    """Kubeflow Pipelines is unreachable or refused us: for a script the same as a store that does."""


class NotFoundError(InputError):
    """The server does not know the object that was asked for."""


def one_line(text: str, longest: int = LONGEST_REASON) -> str:
    """Text of a server or a pod, fit for a terminal."""
    flat = " ".join(_CONTROL.sub(" ", text).split())
    return flat if len(flat) <= longest else flat[: longest - 4].rstrip() + " ..."


def printable(text: str) -> str:
    """The same lines, without codes that would steer the terminal."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


class Api:
    """One Kubeflow Pipelines server. `namespace` is where runs are, on servers with many users, else empty."""

    def __init__(
        self, pool: urllib3.PoolManager | urllib3.HTTPConnectionPool, base: str, shown: str, headers: Callable[[], dict[str, str]]
    ) -> None:
        self._pool, self._base, self.shown, self._headers = pool, base, shown, headers
        self.namespace = ""
        self.pods = ""  # namespace in which pods run
        self.interface = self  # the server of the web UI, which often serves the API too

    # ---- calls

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._json(self._send("GET", path, fields={key: str(value) for key, value in (query or {}).items() if value != ""}))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json(self._send("POST", path, body=json.dumps(body).encode(), headers={"Content-Type": "application/json"}))

    def delete(self, path: str) -> None:
        self._json(self._send("DELETE", path))

    def upload(self, path: str, query: Mapping[str, str], package: bytes) -> dict[str, Any]:
        target = f"{path}?{urlencode({key: value for key, value in query.items() if value != ''})}"
        return self._json(self._send("POST", target, fields={"uploadfile": ("package.yaml", package, "application/yaml")}))

    def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """A plain text answer: a log. Bytes that are no UTF-8 are marked, not fatal."""
        return self._send("GET", path, fields=dict(query or {})).decode("utf-8", errors="replace")

    def pages(self, path: str, field: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of a list, page after page."""
        token = ""
        while True:
            answer = self.get(path, {**query, "page_token": token})
            yield from (item for item in answer.get(field) or () if isinstance(item, dict))
            following = str(answer.get("next_page_token") or "")
            if not following or following == token:
                return
            token = following

    # ---- what comes back

    def _send(self, method: str, path: str, **content: Any) -> bytes:
        headers = {"Accept": "application/json, text/plain", **self._headers(), **content.pop("headers", {})}
        try:
            answer = self._pool.request(
                method,
                self._base + path,
                headers=headers,
                timeout=PATIENCE,
                retries=GENTLY,
                redirect=False,
                preload_content=False,
                **content,
            )
            try:
                body = answer.read(MAX_ANSWER + 1, decode_content=True)
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KfpError(f"Kubeflow Pipelines at {self.shown}: {self._why(error)}") from None
        if len(body) > MAX_ANSWER:
            raise KfpError(
                f"Kubeflow Pipelines at {self.shown}: more than {MAX_ANSWER} bytes for {path.split('?')[0]}; is this the server?"
            )
        if answer.status >= 300:
            self._refused(answer.status, path, body)
        return body

    def _why(self, error: Exception) -> str:
        cause = getattr(error, "reason", None)
        cause = cause if isinstance(cause, Exception) else error
        text = one_line(str(cause))
        if isinstance(cause, urllib3.exceptions.SSLError) or "CERTIFICATE" in text:
            return f"the TLS connection failed ({text}); give --ca FILE with the certificate of its CA, or correct http/https in --host"
        if isinstance(cause, urllib3.exceptions.NameResolutionError):
            return "no such host; correct --host"
        if "refused" in text:
            return "connection refused; is it running, and is the port forwarded? Correct --host"
        if isinstance(cause, urllib3.exceptions.TimeoutError):
            return f"no answer in time ({text}); is it reachable from here?"
        return f"no connection ({text}); is it reachable from here?"

    def _refused(self, status: int, path: str, body: bytes) -> None:
        who, said = f"Kubeflow Pipelines at {self.shown}", reason(body)
        if "/upload" in path and _SCHEMA.search(body.decode("utf-8", errors="replace")):
            raise InputError(
                f"{who}: does not understand the package ({said}); a package for a newer server has fields it does not know: "
                "compile it again with `siloflow compile --server 2.14`"
            )
        if status < 400:
            raise KfpError(f"{who}: wants a login (HTTP {status}); give --token or --token-file, or the address of the API itself")
        if status == 401:
            raise KfpError(f"{who}: does not accept who we are (401: {said}); give a valid --token or --token-file")
        if status == 403:
            raise KfpError(f"{who}: we are not allowed to do this (403: {said}); ask for access, or give another --namespace or --token")
        if status == 404:
            raise NotFoundError(f"{who}: found nothing at {path.split('?')[0]} (404: {said}); correct the name, or --host")
        if status in (400, 409, 413, 422):
            raise InputError(f"{who}: refused the request ({status}: {said})")
        raise KfpError(f"{who}: failed ({status}: {said}); the log of its ml-pipeline pod says more")

    def _json(self, body: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise KfpError(
                f"Kubeflow Pipelines at {self.shown}: expected JSON, found {one_line(body[:40].decode('utf-8', 'replace'))!r}; "
                "give the address of its API in --host (port 8888 of ml-pipeline, or the UI's address with /pipeline)"
            )
        return answer


def reason(body: bytes) -> str:
    """What the server says went wrong, without its call stack."""
    text = body.decode("utf-8", errors="replace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        text = str(answer.get("error_message") or answer.get("message") or answer.get("error") or "no reason given")
    elif "<html" in text[:500].lower():
        text = "an HTML page"
    return one_line(text) or "no reason given"
