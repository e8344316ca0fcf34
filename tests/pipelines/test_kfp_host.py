"""Where Kubeflow Pipelines is found and who we say we are: in a pod, behind a proxy, behind TLS, behind a cluster."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.errors import InputError
from pipelines import kfp_forward, kfp_host
from pipelines.kfp_client import KfpError
from pipelines.kfp_host import connect
from pipelines.kfp_options import Access
from tests.minio_server import skip_or_fail
from tests.pipelines.commands import invoke
from tests.pipelines.kfp_server import KfpServer, running_kfp

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.fixture
def in_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(kfp_host, "POD_ACCOUNT", tmp_path)
    monkeypatch.setattr(kfp_host, "POD_TOKEN", tmp_path / "kfp-token")
    (tmp_path / "token").write_text("for kubernetes only", encoding="utf-8")
    (tmp_path / "namespace").write_text("team\n", encoding="utf-8")
    (tmp_path / "kfp-token").write_text("s3cr3t", encoding="utf-8")
    return tmp_path


def test_in_a_pod_the_service_of_the_cluster_is_meant(in_a_pod: Path) -> None:
    with pytest.raises(KfpError, match=r"http://ml-pipeline\.kf\.svc\.cluster\.local:8888: no such host"):
        connect(Access(kfp_namespace="kf"))


def test_in_a_pod_we_are_its_service_account(in_a_pod: Path, kfp: KfpServer) -> None:
    kfp.token, kfp.user = "s3cr3t", True
    assert connect(Access(host=kfp.url)).namespace == "team"
    (in_a_pod / "kfp-token").write_text("n3w", encoding="utf-8")
    api = connect(Access(host=kfp.url, token="s3cr3t"))
    kfp.token = "n3w"
    with pytest.raises(KfpError, match="401"):
        api.get("/apis/v2beta1/healthz")


def test_a_token_in_a_file_is_read_again(kfp: KfpServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old", encoding="utf-8")
    kfp.token = "old"
    api = connect(Access(host=kfp.url, token_file=file))
    kfp.token = "new"
    file.write_text("new", encoding="utf-8")
    assert "multi_user" in api.get("/apis/v2beta1/healthz")


def test_the_identity_aware_proxy(kfp: KfpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def get_auth_token(*given: Any) -> tuple[str, bool]:
        asked.append(given)
        return "from-google", True

    monkeypatch.setitem(sys.modules, "kfp.client", SimpleNamespace(auth=SimpleNamespace(get_auth_token=get_auth_token)))
    for name, value in (("IAP_OAUTH2_CLIENT_ID", "a"), ("APP_OAUTH2_CLIENT_ID", "b"), ("APP_OAUTH2_CLIENT_SECRET", "c")):
        monkeypatch.setenv(f"KF_PIPELINES_{name}", value)
    kfp.token = "from-google"
    connect(Access(host=kfp.url))
    assert asked == [("a", "b", "c")]
    monkeypatch.setitem(sys.modules, "kfp.client", SimpleNamespace(auth=SimpleNamespace(get_auth_token=lambda *_: 1 / 0)))
    with pytest.raises(KfpError, match="Identity-Aware Proxy"):
        connect(Access(host=kfp.url))


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("localhost:8888", "http://localhost:8888"),
        ("127.0.0.1:8888/", "http://127.0.0.1:8888"),
        ("ml-pipeline.kubeflow.svc:8888", "http://ml-pipeline.kubeflow.svc:8888"),
        ("kubeflow.example/pipeline", "https://kubeflow.example/pipeline"),
        ("http://[::1]:8888", "http://[::1]:8888"),
    ],
)
def test_addresses(given: str, address: str) -> None:
    assert kfp_host._address(given) == address


# ---- TLS


def test_a_certificate_needs_its_ca(tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        skip_or_fail("TLS TEST: no openssl to make a certificate with")
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=siloflow-test"
    words = f"{request} -addext subjectAltName=IP:127.0.0.1 -keyout private.key -out public.crt".split()
    subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)
    certificate = tmp_path / "public.crt"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "private.key")
    with running_kfp(context) as server:
        assert server.url.startswith("https://")
        refused = invoke("runs", "--host", server.url)
        assert refused.exit_code == 4
        assert "give --ca FILE" in refused.stderr
        assert invoke("runs", "--host", server.url, "--ca", certificate).exit_code == 0


# ---- a kubeconfig


class Refusal(Exception):
    def __init__(self, status: int) -> None:
        self.status, self.reason = status, "Forbidden"


def test_a_cluster_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Refusal(status)

    monkeypatch.setattr(kfp_forward, "cluster", lambda: SimpleNamespace(read_namespaced_service=refuse))
    status = 403
    with pytest.raises(KfpError, match=r"refused us \(403 Forbidden\); give --host"):
        connect(Access())
    status = 404
    with pytest.raises(InputError, match="no service ml-pipeline in namespace kubeflow"):
        connect(Access())


@pytest.mark.parametrize("content", ["", "nonsense", json.dumps({"contexts": []}), "a: [1"])
def test_kubeconfigs_that_are_none(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(file))
    result = invoke("runs")
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert "give --host URL" in line
