"""A federation in the namespace of a real Kubeflow Pipelines: the chart's store and keys, a volume per silo, runs that are waited for."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.release import IMAGE, Release, kubectl
from tests.pipelines.commands import command, finish

SPACE, PREFIX = os.environ.get("KFP_NAMESPACE", "kubeflow"), "siloflow"
SILOS = ("chalk", "neon", "paper")
SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
SPEC: dict[str, Any] = {
    "dataset": "styled-digits", "target": "pencil", "sources": list(SILOS), "rounds": 2, "deadline": 900.0,
    "hyper": {"epochs": 1, "steps_per_epoch": 5},
}  # fmt: skip
HYPER = {"csac": {"acquisition_epochs": 1, "acquisition_steps": 5}}
SECONDS = 2400  # for one run on a busy machine
ENDED = ("SUCCEEDED", "FAILED", "CANCELED")


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}


def silos_file(**changes: Any) -> dict[str, Any]:
    """Each silo with a Secret and a volume of its own, one with its keys as variables."""
    silos = [{"name": name, "state": {"claim": f"state-{name}"}, "secret": f"{PREFIX}-{name}", "resources": SMALL} for name in SILOS]
    silos[1]["secret_as"] = "env"
    return {
        "store": f"s3://{PREFIX}-store.{SPACE}.svc:9000/fed?tls=false", "image": {"name": IMAGE}, "silos": silos,
        "server": {"state": {"claim": "state-server"}, "secret": f"{PREFIX}-server", "resources": SMALL},
        "evaluator": {"secret": f"{PREFIX}-evaluator", "resources": SMALL}, **changes,
    }  # fmt: skip


@contextmanager
def installed() -> Iterator[Release]:
    """Store, buckets, users and keys by the chart; volumes by hand."""
    names = [*(f"state-{role}" for role in (*SILOS, "server")), *(f"images-{role}" for role in (*SILOS, "evaluator"))]
    kubectl("apply", "-f", "-", text="\n---\n".join(json.dumps(claim(name)) for name in names))
    release = Release(SPACE, {**silos_file(), "networkPolicy": {"enabled": False}}, PREFIX)
    release.install()
    try:
        yield release
    finally:
        release.helm("uninstall", code=None)
        kubectl("-n", SPACE, "delete", "pvc", "--wait=false", *names, f"data-{PREFIX}-store-0", code=None)


def compiled(folder: Path, kind: str, silos: dict[str, Any] | None = None, name: str = "package") -> Path:
    (folder / "silos.yaml").write_text(json.dumps(silos or silos_file()))
    (folder / "spec.yaml").write_text(json.dumps({"algorithm": "fedavg", **SPEC}))
    out = folder / f"{name}-{kind}.yaml"
    code, _, said = finish(command("compile", folder / "silos.yaml", "--spec", folder / "spec.yaml", "--pipeline", kind, "-o", out))
    assert code == 0, said
    return out


def local_digest(folder: Path, algorithm: str) -> str:
    """What the local engine ends with for the same spec."""
    spec = {**SPEC, "algorithm": algorithm, "hyper": {**SPEC["hyper"], **HYPER.get(algorithm, {})}}
    file = folder / f"{algorithm}.yaml"
    file.write_text(json.dumps(spec))
    words = ("run", file, "--json", "--no-report", "--out", folder / f"local-{algorithm}")
    code, out, said = finish(command(*words, env={**os.environ, "SILOFLOW_CACHE": str(folder / "cache")}), SECONDS)
    assert code == 0, said
    return str(json.loads(out)["digest"])


class RunOnCluster:
    """A run of a package, started by `siloflow submit`."""

    def __init__(self, package: Path, algorithm: str = "fedavg", *words: str) -> None:
        self.host = os.environ["KFP_HOST"]
        hyper = [f"hyper.{name}={value}" for name, value in HYPER.get(algorithm, {}).items()]
        settings = [word for text in (f"algorithm={algorithm}", *hyper) for word in ("--set", text)]
        code, out, said = finish(command("submit", package, "--host", self.host, "--json", *settings, *words), SECONDS)
        assert code == 0, said
        self.id, self.started = str(json.loads(out)["run_id"]), time.monotonic()

    def state(self) -> str:
        return next((str(run["state"]) for run in self._runs() if run["run_id"] == self.id), "unknown")

    def _runs(self) -> list[dict[str, Any]]:
        code, out, said = finish(command("runs", "--host", self.host, "--json"), SECONDS)
        assert code == 0, said
        found: list[dict[str, Any]] = json.loads(out)["runs"]
        return found

    def wait(self, *states: str) -> str:
        give_up = time.monotonic() + SECONDS
        while (state := self.state()) not in (states or ENDED):
            assert time.monotonic() < give_up, f"run {self.id}: {state} after {SECONDS} s"
            time.sleep(5)
        return state

    def logs(self, *words: str) -> str:
        code, out, said = finish(command("logs", self.id, "--host", self.host, *words), SECONDS)
        assert code == 0, said
        return out

    def digest(self) -> str:
        found = re.search(r"digest ([0-9a-f]{64})", self.logs())
        assert found, "no digest in the log of the task evaluate"
        return found[1]

    def pods(self, *words: str) -> list[dict[str, Any]]:
        items = json.loads(kubectl("-n", SPACE, "get", "pods", "-l", f"pipeline/runid={self.id}", "-o", "json", *words))["items"]
        return list(items)

    def running(self, silo: str) -> dict[str, Any] | None:
        """The pod in which this silo computes just now."""
        for pod in self.pods():
            if pod["metadata"]["labels"].get("siloflow.io/silo") == silo and pod["status"]["phase"] == "Running":
                return pod
        return None
