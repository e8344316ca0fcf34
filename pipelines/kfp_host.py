"""Where Kubeflow Pipelines is and who we are there: options, KF_PIPELINES_* variables, the pod we are in, or a kubeconfig."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
import urllib3

from components.errors import InputError
from pipelines.kfp_client import API, Api, KfpError, one_line
from pipelines.kfp_options import Access

SERVICE = "ml-pipeline"
PORT = 8888
POD_TOKEN = Path("/var/run/secrets/kubeflow/pipelines/token")  # the kfp package's default for KF_PIPELINES_SA_TOKEN_PATH
POD_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLAIN_HTTP = re.compile(r"(localhost|127\.|\[::1\]|[^/:]*\.svc(\.|:|/|$))")


def connect(access: Access) -> Api:
    """A server that has answered. Where it serves many users, `namespace` is set."""
    host = access.host or os.environ.get("KF_PIPELINES_ENDPOINT") or _within_the_cluster(access)
    context = _context()
    token, cookie = _token(access), str(context.get("client_authentication_cookie") or "")

    def headers() -> dict[str, str]:
        bearer = token()
        return {**({"Authorization": f"Bearer {bearer}"} if bearer else {}), **({"Cookie": cookie} if cookie else {})}

    if host:
        base = _address(host)
        api = Api(_pool(access, base), base, base, headers)
    else:
        from pipelines.kfp_forward import forwarded

        api = Api(forwarded(access.kfp_namespace, SERVICE, PORT), "", f"service {SERVICE} of namespace {access.kfp_namespace}", headers)
    if api.get(f"{API}/healthz").get("multi_user"):
        api.namespace = access.namespace or str(context.get("namespace") or "") or _own_namespace()
        if not api.namespace:
            raise InputError(f"Kubeflow Pipelines at {api.shown}: serves many users; give --namespace, the one your runs are in")
    api.pods = api.namespace or access.kfp_namespace
    known = interface(access)
    if known:
        api.interface = Api(_pool(access, known), known, known, headers)
    return api


def interface(access: Access) -> str:
    """Address of the web UI, where it is known; the bare API has none."""
    host = access.host or os.environ.get("KF_PIPELINES_ENDPOINT") or ""
    known = os.environ.get("KF_PIPELINES_UI_ENDPOINT") or (host if host.rstrip("/").endswith("/pipeline") else "")
    return _address(known) if known else ""


def _pool(access: Access, base: str) -> urllib3.PoolManager:
    return urllib3.PoolManager(ssl_context=_trusted(access.ca) if access.ca or base.startswith("https") else None)


# ---- where


def _address(host: str) -> str:
    text = host.strip()
    if "://" not in text:
        text = ("http://" if _PLAIN_HTTP.match(text) else "https://") + text
    text = text.rstrip("/")
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or re.search(r"\s", text) or parts.username is not None:
        raise InputError(f"--host {one_line(host, 80)!r}: expected http(s)://name[:port][/path] without a user; e.g. http://localhost:8888")
    return text


def _within_the_cluster(access: Access) -> str:
    inside = os.environ.get("KUBERNETES_SERVICE_HOST") and (POD_ACCOUNT / "token").is_file()
    return f"http://{SERVICE}.{access.kfp_namespace}.svc.cluster.local:{PORT}" if inside else ""


def _own_namespace() -> str:
    try:
        return (POD_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _context() -> dict[str, Any]:
    """What the kfp package keeps of an earlier login: a namespace, a cookie. Of no importance where it cannot be read."""
    try:
        found = json.loads((Path.home() / ".config" / "kfp" / "context.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}


# ---- who


def _token(access: Access) -> Callable[[], str]:
    """Asked before every request: tokens in files are replaced while a run is watched."""
    if access.token:
        return lambda: _checked(access.token or "", "--token")
    named = os.environ.get("KF_PIPELINES_SA_TOKEN_PATH")
    file = access.token_file or (Path(named) if named else POD_TOKEN if POD_TOKEN.is_file() else None)
    if file is not None:
        return lambda: _read_token(file, "--token-file" if access.token_file else "KF_PIPELINES_SA_TOKEN_PATH")
    if os.environ.get("KF_PIPELINES_IAP_OAUTH2_CLIENT_ID"):
        bearer = _identity_aware_proxy()
        return lambda: bearer
    return lambda: ""


def _read_token(file: Path, option: str) -> str:
    try:
        return _checked(file.read_text(encoding="utf-8"), f"{option} {file}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {file}: cannot be read ({getattr(error, 'strerror', None) or 'no text'}); correct the path") from None


def _checked(token: str, source: str) -> str:
    found = token.strip()
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        raise InputError(f"{source}: expected one bearer token, found {'nothing' if not found else 'other characters in it'}")
    return found


def _identity_aware_proxy() -> str:
    """As the kfp package does it, with the same variables."""
    from kfp.client import auth

    names = ("KF_PIPELINES_IAP_OAUTH2_CLIENT_ID", "KF_PIPELINES_APP_OAUTH2_CLIENT_ID", "KF_PIPELINES_APP_OAUTH2_CLIENT_SECRET")
    try:
        token, _ = auth.get_auth_token(*(os.environ.get(name) for name in names))
    except Exception as error:  # whatever Google's libraries raise
        raise KfpError(f"Identity-Aware Proxy: no token ({one_line(str(error))}); give --token instead") from None
    return _checked(str(token or ""), "Identity-Aware Proxy")


def _trusted(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
    except OSError as error:
        raise InputError(f"--ca {ca}: expected a file of PEM certificates, found: {error.strerror or error}; correct the path") from None
    if ca is None:
        context.load_verify_locations(certifi.where())
    return context
