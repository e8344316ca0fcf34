"""The shipped packages on a real Kubeflow Pipelines, with the product's image, the chart's store, a Secret and a volume per silo."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.compile import PER_ITERATION, PER_TASK
from tests.cluster.pipeline_runs import SILOS, SPACE, RunOnCluster, compiled, local_digest, silos_file
from tests.cluster.release import Release, call, kubectl, until
from tests.pipelines.commands import command, finish

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(5400)]


def test_stepwise_ends_with_the_local_digest(fedavg: RunOnCluster, folder: Path) -> None:
    assert fedavg.digest() == local_digest(folder, "fedavg")


def test_a_silos_pod_has_its_own_keys_and_volume_and_no_other(fedavg: RunOnCluster) -> None:
    mine = [pod for pod in fedavg.pods() if "siloflow.io/silo" in pod["metadata"]["labels"]]
    assert {pod["metadata"]["labels"]["siloflow.io/silo"] for pod in mine} == set(SILOS)
    for pod in mine:
        silo = pod["metadata"]["labels"]["siloflow.io/silo"]
        text = json.dumps(pod["spec"])
        assert f'"siloflow-{silo}"' in text and f'"state-{silo}"' in text
        assert not [other for other in (*SILOS, "server", "evaluator") if other != silo and f'"siloflow-{other}"' in text]


def test_what_a_round_costs(fedavg: RunOnCluster) -> None:
    """Printed for docs/performance.md; the number of pods is what the design predicts."""
    pods = fedavg.pods()
    drivers = [pod for pod in pods if "driver" in pod["metadata"]["name"]]
    steps = 4  # join, two rounds of one exchange, counting
    tasks = steps * (len(SILOS) + 1) + 3
    assert len(pods) == 1 + 2 * tasks + 1 + steps, sorted(pod["metadata"]["name"] for pod in pods)
    spent = [_seconds(pod) for pod in pods if pod not in drivers]
    print(
        json.dumps(
            {"pods": len(pods), "tasks": tasks, "seconds": _span(pods), "seconds_per_task": _span(pods) / tasks, "own": sum(spent) / tasks}
        )
    )


def test_what_a_step_adds_to_argos_object(fedavg: RunOnCluster) -> None:
    """The compiler's ceiling rests on it: measured on what Argo keeps, compressed as Argo does when it grows."""
    found = json.loads(kubectl("-n", SPACE, "get", "workflow", "-l", f"pipeline/runid={fedavg.id}", "-o", "json"))["items"][0]
    nodes = found["status"]["nodes"]
    sizes = [_compressed({key: node for key, node in nodes.items() if _step(node) < most}) for most in range(5)]
    added = [after - before for before, after in itertools.pairwise(sizes)]
    allowed = PER_ITERATION + PER_TASK * (len(SILOS) + 1)
    print(json.dumps({"bytes_per_step": added, "allowed": allowed, "spec": len(json.dumps(found["spec"]))}))
    assert sum(added) / len(added) < allowed


def _step(node: dict[str, Any]) -> int:
    found = re.search(r"iteration-iterations\((\d+):", node["name"])
    return int(found[1]) if found else -1


def _compressed(nodes: dict[str, Any]) -> int:
    return len(base64.b64encode(gzip.compress(json.dumps(nodes, separators=(",", ":")).encode())))


def _moments(pod: dict[str, Any]) -> tuple[float, float]:
    parse = lambda text: time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))  # noqa: E731
    ends = [one["state"]["terminated"]["finishedAt"] for one in pod["status"]["containerStatuses"] if "terminated" in one["state"]]
    return parse(pod["metadata"]["creationTimestamp"]), max(map(parse, ends))


def _seconds(pod: dict[str, Any]) -> float:
    began, ended = _moments(pod)
    return ended - began


def _span(pods: list[dict[str, Any]]) -> float:
    moments = [_moments(pod) for pod in pods]
    return max(ended for _, ended in moments) - min(began for began, _ in moments)


def test_a_deleted_silo_pod_is_retried_to_the_same_digest(stepwise: Path, folder: Path) -> None:
    run = RunOnCluster(stepwise, "fedccrl")
    pod = until(lambda: run.running("chalk"), "a pod of chalk", 1200)
    kubectl("-n", SPACE, "delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    assert run.wait() == "SUCCEEDED", run.logs()
    assert run.digest() == local_digest(folder, "fedccrl")


def test_a_resident_run_survives_the_store_for_twenty_seconds(resident: Path, folder: Path) -> None:
    run = RunOnCluster(resident, "csac")
    until(lambda: all(run.running(silo) for silo in SILOS), "all silos", 1200)
    kubectl("-n", SPACE, "scale", "statefulset", "siloflow-store", "--replicas=0")
    time.sleep(20)
    kubectl("-n", SPACE, "scale", "statefulset", "siloflow-store", "--replicas=1")
    assert run.wait() == "SUCCEEDED", run.logs()
    assert run.digest() == local_digest(folder, "csac")


def test_a_bad_data_path_fails_with_one_line_and_later_rounds_fail_fast(release: Release, folder: Path) -> None:
    """The images of neon are said to be in a folder that its volume does not have."""
    silos = silos_file()
    for entry in silos["silos"]:
        entry["data"] = {
            "claim": f"images-{entry['name']}",
            "sub_path": "not/there" if entry["name"] == "neon" else "own",
            "path": "/images",
        }
    silos["evaluator"]["data"] = {"claim": "images-evaluator", "sub_path": "own", "path": "/images"}
    _draw({"images-evaluator": "own/pencil", "images-chalk": "own/chalk", "images-paper": "own/paper", "images-neon": "own/neon"})
    run = RunOnCluster(compiled(folder, "stepwise", silos, "bad"), "fedavg", "--set", "dataset=folder", "--set", "dataset.image_size=32")
    assert run.wait() == "FAILED"
    lines = [line for line in run.logs("--silo", "neon").splitlines() if "error: " in line]
    assert "error: dataset.path: expected a folder of domain folders, found no folder '/images/not/there'" in lines[0]
    code, _, said = finish(command("watch", run.id, "--host", run.host), 600)
    assert (code, "not/there" in said) == (3, True), said


def _draw(folders: dict[str, str]) -> None:
    """Pictures of two classes onto each volume, by a pod of the product's image."""
    draw = """
import sys, pathlib
from PIL import Image
for number, name in enumerate(("cat", "dog")):
    folder = pathlib.Path(sys.argv[1], name); folder.mkdir(parents=True, exist_ok=True)
    for shade in range(8): Image.new("RGB", (32, 32), (30 * shade, 200 * number, 90)).save(folder / f"{shade}.png")
pathlib.Path(sys.argv[1]).parent.joinpath("classes.txt").write_text("cat\\ndog\\n")
"""
    for volume, path in folders.items():
        mount = {"name": "v", "mountPath": "/v"}
        container = {
            "name": "main",
            "image": silos_file()["image"]["name"],
            "command": ["python3", "-c", draw, f"/v/{path}"],
            "volumeMounts": [mount],
        }
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": volume}}]
        spec = {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": volumes,
            "securityContext": {"runAsUser": 10001, "fsGroup": 10001},
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"draw-{volume}"}, "spec": spec}
        kubectl("-n", SPACE, "apply", "-f", "-", text=json.dumps(pod))
        kubectl("-n", SPACE, "wait", f"pod/draw-{volume}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=600s")
        kubectl("-n", SPACE, "delete", "pod", f"draw-{volume}", "--wait=false")


def test_a_cancelled_run_leaves_no_pods(resident: Path) -> None:
    run = RunOnCluster(resident, "fedavg", "--set", "rounds=200")
    until(lambda: run.running("chalk"), "a pod of chalk", 1200)
    code, _, said = finish(command("cancel", run.id, "--host", run.host), 600)
    assert code == 0, said
    until(lambda: not [pod for pod in run.pods() if pod["status"]["phase"] in ("Pending", "Running")], "no pods of a cancelled run", 300)


def test_a_schedule_fires_and_a_changed_package_is_a_new_version(resident: Path, folder: Path) -> None:
    host = os.environ["KFP_HOST"]
    silos = silos_file()
    silos["silos"][0]["shm"] = "64Mi"
    changed = compiled(folder, "resident", silos, "second")
    words = ("submit", changed, "--host", host, "--json", "--cron", "* * * * *", "--set", "rounds=1", "--name", "every-minute")
    code, out, said = finish(command(*words), 600)
    assert code == 0, said
    schedule = json.loads(out)
    try:
        fired = until(lambda: _fired(host, "every-minute"), "a run of the schedule", 400)
    finally:
        call("curl", "-sf", "-X", "DELETE", f"{host}/apis/v2beta1/recurringruns/{schedule['recurring_run_id']}")
    for run in _fired(host, "every-minute"):
        finish(command("cancel", run["run_id"], "--host", host), 600)
    assert fired


def _fired(host: str, name: str) -> list[dict[str, Any]]:
    _, out, _ = finish(command("runs", "--host", host, "--json"), 600)
    return [run for run in json.loads(out)["runs"] if str(run["name"]).lower().replace("_", "-").startswith(name)]
