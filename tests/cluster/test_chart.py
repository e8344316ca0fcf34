"""The chart on a real cluster, from install to uninstall, in a namespace with Pod Security "restricted" enforced.

The tests build on each other, in this order: an install is worth its minutes only once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from minio.error import S3Error

from tests.cluster.release import WAIT_AND_REACH, Release, call, kubectl, namespace, pod, reached_by, require_cluster, until
from tests.helm.chart import CHART, FEATURES, objects, rendered

pytestmark = pytest.mark.cluster
READY_SECONDS = 120  # from `helm install` to all ready
SILOS = ["hospital-a", "hospital-b"]


@pytest.fixture(scope="module")
def release() -> Iterator[Release]:
    require_cluster()
    with namespace("siloflow-chart") as space:
        yield Release(space, {"silos": [{"name": name} for name in SILOS]})


def test_the_api_server_accepts_every_example() -> None:
    """Server-side dry run with admission, Pod Security included; ServiceAccounts first, since a pod is refused without."""
    require_cluster()
    with namespace("siloflow-dry") as space:
        for name in ("siloflow", "fed-one", "given"):
            kubectl("-n", space, "create", "serviceaccount", name)
        for feature in FEATURES:
            ours = [one for one in objects(rendered(feature)) if not one["apiVersion"].startswith("monitoring.coreos.com")]
            for one in ours:
                if "namespace" in one["metadata"]:
                    one["metadata"]["namespace"] = space
                if one["kind"] == "Pod":  # is looked up, and a dry run has made none
                    one["spec"].pop("priorityClassName", None)
            words = ("--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
            answer = call("kubectl", "apply", *words, text=yaml.safe_dump_all(ours))
            assert answer.stdout.count("(server dry run)") == len(ours), feature
            assert "Warning" not in answer.stderr, (feature, answer.stderr)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"silos": []}, "at '/silos': minItems: got 0, want 1"),
    ({"silos": [{"name": "a"}, {"name": "a"}]}, 'silos[1].name: expected every name once, found "a" twice'),
    ({"silos": [{"name": "a"}], "createSecrets": False}, 'server.secret: expected Secret "siloflow-server" in namespace'),
    ({"silos": [{"name": "a"}], "ca_secret": "wrong"}, 'ca_secret: expected Secret "wrong" in namespace'),
    ({"silos": [{"name": "a"}], "ca_secret": "half"}, "to hold ca.crt, found no such key; add it"),
    ({"silos": [{"name": "a"}], "image": {"pull_secrets": ["none"]}}, 'image.pull_secrets[0]: expected Secret "none"'),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=lambda value: None if isinstance(value, dict) else value[:30])
def test_bad_input_fails_before_anything_is_created(release: Release, values: dict[str, Any], message: str) -> None:
    if "half" in json.dumps(values):
        kubectl("-n", release.space, "create", "secret", "generic", "half", "--from-literal=ca=1")
    answer = Release(release.space, values).install(code=1)
    assert message in answer.stderr
    kubectl("-n", release.space, "delete", "secret", "half", "--ignore-not-found")
    for kind in ("secret", "pod", "statefulset", "job", "service", "networkpolicy"):
        assert release.names(kind) == set(), kind


def test_install(release: Release, record_property: Any) -> None:
    since = time.monotonic()
    release.install()
    seconds = time.monotonic() - since
    record_property("install_seconds", seconds)
    print(f"\nhelm install to all ready: {seconds:.0f} s")
    assert release.names("secret") >= {f"siloflow-{role}" for role in ("server", "evaluator", "store-admin", *SILOS)}
    assert [one["status"]["phase"] for one in release.get("pod")] == ["Running"]
    with release.store() as endpoint:
        found = {bucket.name for bucket in release.client(endpoint).list_buckets()}
    assert found == {"fed-global", "fed-evaluator", *(f"fed-silo-{name}" for name in SILOS)}
    assert seconds <= READY_SECONDS


def test_the_denials_hold(release: Release) -> None:
    assert "tries ended as they must" in release.test()


def test_a_loosened_policy_is_named_and_an_upgrade_puts_it_right(release: Release) -> None:
    with release.store() as endpoint:
        admin = release.admin(endpoint)
        policy = json.loads(admin.policy_info("fed-silo-hospital-a"))
        next(one for one in policy["Statement"] if one.get("Sid") == "Get")["Resource"].append("arn:aws:s3:::fed-silo-hospital-b/*")
        admin.policy_add("fed-silo-hospital-a", policy=policy)
    said = release.test(code=1)
    assert "hospital-a: get in silo-hospital-b: expected AccessDenied, found it allowed" in said
    release.upgrade()
    assert "tries ended as they must" in release.test()


def test_silos_reach_the_store_and_nothing_else(release: Release) -> None:
    """The same questions from a pod that no policy is about: what it reaches, the silo was denied and did not just miss."""
    labels = {"app.kubernetes.io/name": "siloflow", "app.kubernetes.io/instance": "siloflow", "siloflow.io/role": "silo"}
    other = pod("other-silo", {**labels, "siloflow.io/silo": "hospital-b"}, "-m", "http.server", "9464")
    open_pod = pod("open", {}, "-m", "http.server", "9464")
    for one in (other, open_pod):
        kubectl("-n", release.space, "apply", "-f", "-", text=json.dumps(one))
    kubectl("-n", release.space, "wait", "--for=condition=Ready", "pod/other-silo", "pod/open", "--timeout=300s")
    address = {one["metadata"]["name"]: one["status"]["podIP"] for one in release.get("pod")}
    places = {
        "store": f"siloflow-store.{release.space}.svc:9000",
        "other silo": f"{address['other-silo']}:9464",
        "open pod": f"{address['open']}:9464",
        "API server": "kubernetes.default.svc:443",
        "KFP": "ml-pipeline.kubeflow.svc:8888",
    }
    reached = {
        "silo": reached_by(release, pod("silo", labels, "-c", WAIT_AND_REACH, *places.values())),
        "outsider": reached_by(release, pod("outsider", {}, "-c", WAIT_AND_REACH, *places.values())),
    }
    kubectl("-n", release.space, "delete", "pod", "other-silo", "open", "silo", "outsider", "--wait=true")
    assert {name for name, place in places.items() if place in reached["silo"]} == {"store"}
    expected = {"open pod", "API server"} | ({"KFP"} if kubectl("get", "svc", "-n", "kubeflow", "ml-pipeline", code=None) else set())
    assert {name for name, place in places.items() if place in reached["outsider"]} == expected


KEPT = ("secret", "configmap", "statefulset", "service", "networkpolicy", "serviceaccount", "persistentvolumeclaim")


def test_an_upgrade_with_the_same_values_changes_nothing(release: Release) -> None:
    before, manifest = release.versions(*KEPT), _manifest(release)
    pods = {one["metadata"]["uid"] for one in release.get("pod")}
    release.upgrade()
    after = release.versions(*KEPT)
    assert {
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name) and "sh.helm.release" not in name[1]
    } == set()
    assert _manifest(release) == manifest
    assert {one["metadata"]["uid"] for one in release.get("pod")} == pods


def _manifest(release: Release) -> str:
    return call("helm", "get", "manifest", release.name, "-n", release.space).stdout


def test_one_silo_more(release: Release) -> None:
    before, pods = release.versions(*KEPT), {one["metadata"]["uid"] for one in release.get("pod")}
    release.values = {"silos": [{"name": name} for name in [*SILOS, "hospital-c"]]}
    release.upgrade()
    after = release.versions(*KEPT)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name) and "sh.helm.release" not in name[1]}
    assert changed == {("Secret", "siloflow-hospital-c"), ("ConfigMap", "siloflow")}
    assert {one["metadata"]["uid"] for one in release.get("pod")} == pods, "something was restarted"
    with release.store() as endpoint:
        admin = release.admin(endpoint)
        assert release.client(endpoint).bucket_exists("fed-silo-hospital-c")
        users = json.loads(admin.user_list())
        assert "fed-silo-hospital-c" in json.loads(admin.policy_list())
    assert users[release.keys("siloflow-hospital-c")["access_key"]]["policyName"] == "fed-silo-hospital-c"
    assert "tries ended as they must" in release.test()


def test_rotation_of_one_silos_keys(release: Release) -> None:
    before = {secret: release.keys(f"siloflow-{secret}") for secret in ("hospital-a", "hospital-b")}
    kubectl("-n", release.space, "delete", "secret", "siloflow-hospital-a")
    release.upgrade()
    after = {secret: release.keys(f"siloflow-{secret}") for secret in ("hospital-a", "hospital-b")}
    assert after["hospital-b"] == before["hospital-b"]
    assert set(after["hospital-a"].values()).isdisjoint(before["hospital-a"].values())
    with release.store() as endpoint:
        assert release.client(endpoint, **after["hospital-a"]).bucket_exists("fed-silo-hospital-a")
        with pytest.raises(S3Error, match="InvalidAccessKeyId"):
            list(release.client(endpoint, **before["hospital-a"]).list_objects("fed-silo-hospital-a"))
    assert "tries ended as they must" in release.test()


def test_a_silo_elsewhere_dials_in(release: Release) -> None:
    """`role: silo` in another namespace, with the keys it was given; the store's policy names who may come in."""
    with namespace("siloflow-silo") as space:
        release.values = {**release.values, "networkPolicy": {"storeClients": [_everybody_in(space)]}}
        release.upgrade()
        pair = release.keys("siloflow-hospital-b")
        words = [f"--from-literal={name}={value}" for name, value in pair.items()]
        kubectl("-n", space, "create", "secret", "generic", "mine", *words)
        values = {
            "role": "silo",
            "store": f"s3://siloflow-store.{release.space}.svc:9000/fed?tls=false",
            "silos": [{"name": "hospital-b", "secret": "mine"}],
            "createSecrets": False,
            "embeddedStore": {"enabled": False},
        }
        silo = Release(space, values, "hospital-b")
        silo.install()
        assert "tries ended as they must" in silo.test()
        assert silo.names("secret") - {"mine"} == {"sh.helm.release.v1.hospital-b.v1"}


def _everybody_in(space: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space}}}


def test_uninstall_leaves_the_volume_and_an_install_finds_it(release: Release, tmp_path: Path) -> None:
    """The new install is of an older version, so that the upgrade from there is seen too."""
    with release.store() as endpoint:
        release.client(endpoint).fput_object("fed-global", "kept", __file__)
    since = _everything(release)
    release.helm("uninstall", "--wait")
    until(lambda: not release.get("pod"), "the end of all pods")
    left = _everything(release)
    assert left <= since
    assert {name for name in left if name[1] not in ("default", "kube-root-ca.crt")} == {("PersistentVolumeClaim", "data-siloflow-store-0")}
    release.chart = _older(tmp_path)
    release.install()
    keys = {secret: release.keys(secret) for secret in release.names("secret") if secret.startswith("siloflow-")}
    release.chart = CHART
    release.upgrade()
    assert {secret: release.keys(secret) for secret in keys} == keys
    with release.store() as endpoint:
        assert release.client(endpoint).stat_object("fed-global", "kept").size == Path(__file__).stat().st_size
        release.client(endpoint).remove_object("fed-global", "kept")
    assert "tries ended as they must" in release.test()


def _older(folder: Path) -> Path:
    copy = shutil.copytree(CHART, folder / "siloflow")
    chart = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "0.0.1", "appVersion": "0.0.1"}))
    return copy


def _everything(release: Release) -> set[tuple[str, str]]:
    kinds = call("kubectl", "api-resources", "--namespaced", "--verbs=list", "-o", "name").stdout.split()
    listed = [kind for kind in kinds if not kind.startswith(("events", "endpoints")) and "metrics" not in kind]
    found = json.loads(kubectl("-n", release.space, "get", ",".join(listed), "-o", "json"))["items"]
    return {(one["kind"], one["metadata"]["name"]) for one in found}


# ---- TLS


def test_tls(tmp_path: Path) -> None:
    """The embedded store with a certificate of a private CA; without the CA nothing is trusted."""
    require_cluster()
    with namespace("siloflow-tls") as space:
        certify(tmp_path, f"siloflow-store.{space}.svc")
        kubectl("-n", space, "create", "secret", "tls", "store-tls", f"--cert={tmp_path}/store.crt", f"--key={tmp_path}/store.key")
        kubectl("-n", space, "create", "secret", "generic", "store-ca", f"--from-file=ca.crt={tmp_path}/ca.crt")
        kubectl("-n", space, "create", "secret", "generic", "other-ca", f"--from-file=ca.crt={tmp_path}/other.crt")
        embedded = {"tls": {"enabled": True, "secret": "store-tls"}}
        release = Release(space, {"silos": [{"name": "hospital-a"}], "ca_secret": "store-ca", "embeddedStore": embedded})
        release.install()
        assert "tries ended as they must" in release.test()
        release.values["ca_secret"] = "other-ca"
        release.upgrade("--no-hooks")
        assert "no TLS connection; set SILOFLOW_CA" in release.test(code=1)


def certify(folder: Path, host: str) -> None:
    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    (folder / "san").write_text(f"subjectAltName=DNS:{host}")
    for line in (
        f"req -x509 {new_key} -days 2 -subj /CN=test-ca -keyout ca.key -out ca.crt",
        f"req -x509 {new_key} -days 2 -subj /CN=other-ca -keyout other.key -out other.crt",
        f"req {new_key} -subj /CN=store -keyout store.key -out store.csr",
        "x509 -req -in store.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san -out store.crt",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
