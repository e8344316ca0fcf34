"""A release of the chart in a namespace of its own on a real cluster, and ways to look at it.

SILOFLOW_IMAGE and SILOFLOW_MINIO_IMAGE name the images as the cluster knows them (default localhost/siloflow:dev and
localhost/siloflow-minio:dev); SILOFLOW_MINIO_BUILD is the command that builds the latter from images/minio, where it is not there yet.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from minio import Minio, MinioAdmin
from minio.credentials import StaticProvider

from tests.helm.chart import CHART, ROOT
from tests.minio_server import skip_or_fail

IMAGE = os.environ.get("SILOFLOW_IMAGE", "localhost/siloflow:dev")
MINIO_IMAGE = os.environ.get("SILOFLOW_MINIO_IMAGE", "localhost/siloflow-minio:dev")
MINIO_BUILD = shlex.split(os.environ.get("SILOFLOW_MINIO_BUILD", ""))
PATIENCE = 300.0  # seconds; the node may be busy
T = TypeVar("T")
REACH = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        print(place, "reached", flush=True)
    except OSError as error:
        print(place, "not", flush=True)
"""
WAIT_AND_REACH = "import time; time.sleep(10)" + REACH  # a new pod is unprotected for a moment on some clusters


def require_cluster() -> None:
    if not os.environ.get("KUBECONFIG") or not shutil.which("kubectl") or not shutil.which("helm"):
        skip_or_fail("CHART TESTS: no kubectl or helm on PATH, or KUBECONFIG is not set")
    if MINIO_BUILD:
        answer = subprocess.run(MINIO_BUILD, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
        assert answer.returncode == 0, answer.stderr[-2000:]


def call(*words: str | Path, text: str | None = None, code: int | None = 0, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(list(map(str, words)), input=text, capture_output=True, text=True, timeout=seconds, check=False)
    assert code in (None, answer.returncode), f"{words}: {answer.returncode}\n{answer.stdout[-3000:]}\n{answer.stderr[-3000:]}"
    return answer


def kubectl(*words: str, text: str | None = None, code: int | None = 0) -> str:
    return call("kubectl", *words, text=text, code=code).stdout


def until(look: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
    """What `look` finds, as soon as it is something."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if found := look():
            return found
        time.sleep(1)
    raise AssertionError(f"{what}: not within {seconds:g} s")


@contextmanager
def namespace(name: str, enforce: str = "restricted") -> Iterator[str]:
    made = f"{name}-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", made)
    kubectl("label", "namespace", made, f"pod-security.kubernetes.io/enforce={enforce}")
    try:
        yield made
    finally:
        kubectl("delete", "namespace", made, "--wait=false")


@dataclass
class Release:
    """`values` are given anew at each install and upgrade."""

    space: str
    values: dict[str, Any] = field(default_factory=dict)
    name: str = "siloflow"
    chart: Path = CHART

    def everything(self) -> str:
        images = {"image": {"name": IMAGE}, "embeddedStore": {"image": _reference(MINIO_IMAGE), "storage": {"size": "1Gi"}}}
        return json.dumps(_merged(images, self.values))

    def helm(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        verb, *rest = words
        given = ("-f", "-") if verb in ("install", "upgrade") else ()
        chart = (self.chart,) if given else ()
        return call("helm", verb, self.name, *chart, "-n", self.space, *given, *rest, text=self.everything() if given else None, code=code)

    def install(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.helm("install", "--wait", "--timeout", "5m", *words, code=code)

    def upgrade(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.helm("upgrade", "--wait", "--timeout", "5m", *words, code=code)

    def test(self, code: int = 0) -> str:
        answer = self.helm("test", "--timeout", "5m", code=code)
        return answer.stdout + answer.stderr

    def get(self, kind: str, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(kubectl("-n", self.space, "get", kind, "-o", "json", *words))["items"]
        return found

    def names(self, kind: str) -> set[str]:
        return {one["metadata"]["name"] for one in self.get(kind)}

    def versions(self, *kinds: str) -> dict[tuple[str, str], str]:
        """Changes when the object does."""
        return {(one["kind"], one["metadata"]["name"]): one["metadata"]["uid"] + _content(one) for kind in kinds for one in self.get(kind)}

    def keys(self, secret: str) -> dict[str, str]:
        data = json.loads(kubectl("-n", self.space, "get", "secret", secret, "-o", "json"))["data"]
        return {name: base64.b64decode(data[name]).decode() for name in ("access_key", "secret_key")}

    @contextmanager
    def store(self) -> Iterator[str]:
        with forward(self.space, f"svc/{self.name}-store", 9000) as endpoint:
            yield endpoint

    def client(self, endpoint: str, **keys: str) -> Minio:
        return Minio(endpoint=endpoint, secure=False, region="us-east-1", **(keys or self.keys(f"{self.name}-store-admin")))

    def admin(self, endpoint: str) -> MinioAdmin:
        return MinioAdmin(endpoint=endpoint, secure=False, credentials=StaticProvider(**self.keys(f"{self.name}-store-admin")))


def _content(one: dict[str, Any]) -> str:
    return json.dumps([one.get("spec"), one.get("data")], sort_keys=True)


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(first[key], second[key]) for key in first.keys() & second.keys() if isinstance(second[key], dict)}
    return {**first, **second, **both}


def _reference(image: str) -> dict[str, str]:
    repository, _, tag = image.rpartition(":")
    return {"repository": repository, "tag": tag}


@contextmanager
def forward(space: str, target: str, port: int) -> Iterator[str]:
    """host:port on the loopback that leads to a pod or service, for as long as the block lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()[1]
    command = ["kubectl", "-n", space, "port-forward", target, f"{local}:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(local), f"port-forward to {target}", 60)
        yield f"127.0.0.1:{local}"
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def pod(name: str, labels: dict[str, str], *words: str) -> dict[str, Any]:
    """A pod of the product's image that runs a Python program, as restricted as the chart's."""
    security = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "main", "image": IMAGE, "command": ["python3", *words], "securityContext": security}
    whole = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": whole, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def reached_by(release: Release, asking: dict[str, Any]) -> set[str]:
    """Which of the places that the pod was given it could reach."""
    name = asking["metadata"]["name"]
    asking["spec"]["restartPolicy"] = "Never"
    kubectl("-n", release.space, "apply", "-f", "-", text=json.dumps(asking))
    log = until(lambda: _log(release, name), f"pod {name}")
    return {line.split()[0] for line in log.splitlines() if line.endswith("reached")}


def _log(release: Release, name: str) -> str | None:
    phase = kubectl("-n", release.space, "get", "pod", name, "-o", "jsonpath={.status.phase}")
    return kubectl("-n", release.space, "logs", name) if phase in ("Succeeded", "Failed") else None
