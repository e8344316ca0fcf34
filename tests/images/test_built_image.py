"""The image itself, built for real and run as pods of a cluster, under the strictest pod security standard.

SILOFLOW_IMAGE names it as the cluster knows it (default localhost/siloflow:dev); SILOFLOW_BUILD is the command that builds it and hands
it to the cluster, for example `images/build --tag siloflow:dev`. Without that the image must be there already.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images.dockerfile import ROOT
from tests.minio_server import skip_or_fail

pytestmark = pytest.mark.cluster
IMAGE = os.environ.get("SILOFLOW_IMAGE", "localhost/siloflow:dev")
BUILD = shlex.split(os.environ.get("SILOFLOW_BUILD", ""))
GPU_ONLY = ("cuda-", "nvidia-", "triton")
START_SECONDS = 300  # a busy node; the image is on it
TORCH_SECONDS = 30  # with bytecode some 2 s on an idle core; without it several times that


def kubectl(*words: str, text: str | None = None, check: bool = True) -> str:
    answer = subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, timeout=120, check=False)
    assert not check or answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def built() -> None:
    """Built twice: the second time only the thin layer could have changed."""
    if not BUILD:
        return
    for _ in range(2):
        answer = subprocess.run(BUILD, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
        assert answer.returncode == 0, answer.stderr[-2000:]


@pytest.fixture(scope="module")
def namespace(built: None) -> Iterator[str]:
    if not os.environ.get("KUBECONFIG") or not shutil.which("kubectl"):
        skip_or_fail("IMAGE TESTS: no kubectl on PATH, or KUBECONFIG is not set")
    name = f"siloflow-image-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def run(namespace: str, *arguments: str, command: list[str] | None = None) -> tuple[int, str]:
    """Exit code and output of a pod with a read-only root and an empty /tmp."""
    name = f"p-{uuid.uuid4().hex[:8]}"
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": list(arguments),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if command:
        container["command"] = command
    volumes = [{"name": "tmp", "emptyDir": {}}]
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container], "volumes": volumes}
    kubectl(
        "-n", namespace, "apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    )
    end, status = time.monotonic() + START_SECONDS, {}
    while not status.get("terminated"):
        assert time.monotonic() < end, f"{name}: {status}"
        time.sleep(0.5)
        found = json.loads(kubectl("-n", namespace, "get", "pod", name, "-o", "json"))["status"]
        status = (found.get("containerStatuses") or [{"state": {}}])[0]["state"]
        assert "Unschedulable" not in str(found), f"{name}: {found}"
        assert "ImageNeverPull" not in str(status), f"{IMAGE} is not in the cluster; build it, or set SILOFLOW_BUILD"
        assert "ErrImage" not in str(status), f"{IMAGE} is not in the cluster; build it, or set SILOFLOW_BUILD"
    return status["terminated"]["exitCode"], kubectl("-n", namespace, "logs", name)


@pytest.fixture(scope="module")
def found(namespace: str) -> dict[str, Any]:
    """What the probe saw inside."""
    code, output = run(namespace, "-c", (Path(__file__).parent / "probe.py").read_text(encoding="utf-8"), command=["python3"])
    assert code == 0, output
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def test_no_secret_cache_or_test_is_in_it(found: dict[str, Any]) -> None:
    assert found["secrets"] == []
    assert found["caches"] == []
    assert found["tests"] == []


def test_nothing_to_build_or_download_with_is_in_it(found: dict[str, Any]) -> None:
    assert found["tools"] == []


def test_it_runs_as_a_nobody_that_can_write_only_where_it_must(found: dict[str, Any]) -> None:
    assert (found["uid"], found["gid"]) == (10001, 10001)
    assert found["writable"] == {"/": False, "/opt/siloflow": False, "/tmp": True}  # HOME and the working folder are /tmp
    assert found["folders"] == ["/state", "/data", "/credentials"]


def test_every_process_has_the_allocator(found: dict[str, Any]) -> None:
    assert found["allocator"]


def test_kubeflow_finds_the_python_it_expects(found: dict[str, Any], namespace: str) -> None:
    assert found["python"] == "/opt/siloflow/bin/python3"
    assert found["siloflow"] == "/opt/siloflow/bin/siloflow"
    code, output = run(
        namespace, "-c", "d=$(mktemp -d) && python3 -m kfp.dsl.executor_main --help > $d/help && cat $d/help", command=["sh"]
    )
    assert code == 0
    assert "--component_module_path" in output


def test_it_holds_the_pinned_versions_and_no_others(found: dict[str, Any]) -> None:
    lines = (ROOT / "images" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    installed = {
        name.lower().replace("_", "-").replace(".", "-"): version.partition("+")[0] for name, version in found["installed"].items()
    }
    assert installed.pop("siloflow")
    gpu = any(name.startswith(GPU_ONLY) for name in installed)
    assert installed == {name: version for name, version in pinned.items() if gpu or not name.startswith(GPU_ONLY)}


def test_it_starts_fast(found: dict[str, Any]) -> None:
    assert found["without_bytecode"] == []
    assert found["seconds"]["torch"] < TORCH_SECONDS


def test_the_doctor_is_content(namespace: str) -> None:
    code, output = run(namespace, "doctor", "--json")
    answer = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert (code, answer["ok"]) == (0, True), output


def test_it_trains(namespace: str) -> None:
    code, output = run(namespace, "run", "--set", "rounds=1", "--set", "algorithm=fedavg", "--set", "hyper.epochs=1", "--json")
    assert code == 0, output
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))  # a pod's log is both outputs
    assert len(result["history"]) == 1
    assert len(result["digest"]) == 64
