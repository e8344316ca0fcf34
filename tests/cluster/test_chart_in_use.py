"""The installed chart at work: pipelines in KFP, a run of resident roles, nights of the benchmark, and a real Prometheus that watches them.

SILOFLOW_PROMETHEUS_IMAGE has Debian's prometheus and prometheus-pushgateway (default localhost/prometheus:dev). The tests build on
each other, in this order.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.cluster.nights import Nights
from tests.cluster.release import WAIT_AND_REACH, Release, call, forward, kubectl, namespace, pod, reached_by, require_cluster, until
from tests.helm.chart import CHART
from tests.nights import BENCHMARK, FIRST, RED, accepted_here

pytestmark = pytest.mark.cluster
PROMETHEUS_IMAGE = os.environ.get("SILOFLOW_PROMETHEUS_IMAGE", "localhost/prometheus:dev")
SILOS = ["chalk", "neon", "pencil"]
ROLES = ("silo", "server", "evaluator")
RUN = "watched"
SPEC = {"algorithm": "fedavg", "dataset": "styled-digits", "target": "paper", "rounds": 500, "hyper": {"epochs": 1}}
SMALL = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}}


@dataclass
class Site:
    release: Release
    watching: str  # namespace of Prometheus and Pushgateway

    def ask(self, question: str) -> list[dict[str, Any]]:
        with forward(self.watching, "svc/prometheus", 9090) as endpoint:
            found: list[dict[str, Any]] = fetch(f"http://{endpoint}/api/v1/query?query={quote(question)}")["data"]["result"]
        return found


def fetch(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
        return json.loads(answer.read())


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    require_cluster()
    with namespace("siloflow-used") as space, namespace("watching") as watching:
        values = {
            "silos": [{"name": name, "resources": SMALL} for name in SILOS],
            "server": {"resources": SMALL},
            "evaluator": {"resources": SMALL},
            "networkPolicy": {"prometheus": {"namespace": watching}},
            "monitoring": {
                "pushgateway": {
                    "url": f"http://pushgateway.{watching}.svc:9091",
                    "namespace": watching,
                    "podLabels": {"app": "pushgateway"},
                }
            },
        }
        release = Release(space, values)
        release.install()
        watch(release, watching)
        yield Site(release, watching)


# ---- KFP


def test_pipelines_are_in_kfp(site: Site) -> None:
    host = os.environ["KFP_HOST"]
    kfp = site.release.values["pipelineUpload"] = {"enabled": True, "host": "http://ml-pipeline.kubeflow.svc:8888"}
    site.release.upgrade()
    listed = {one["display_name"]: one["pipeline_id"] for one in fetch(f"{host}/apis/v2beta1/pipelines?page_size=200")["pipelines"]}
    assert listed.keys() >= {"siloflow-stepwise", "siloflow-resident"}
    before = {name: versions(host, listed[name]) for name in ("siloflow-stepwise", "siloflow-resident")}
    assert all(before.values())
    site.release.upgrade()
    assert {name: versions(host, listed[name]) for name in before} == before, "the same package was uploaded twice"
    kfp["enabled"] = False


def versions(host: str, pipeline: str) -> list[str]:
    answer = fetch(f"{host}/apis/v2beta1/pipelines/{pipeline}/versions?page_size=200")
    return sorted(one["display_name"] for one in answer.get("pipeline_versions", ()))


def test_steps_of_kfp_runs_reach_kfp_and_the_store_and_nothing_else(site: Site) -> None:
    """On request only; the launcher in such a pod needs KFP and the API server."""
    space = site.release.space
    ends = json.loads(kubectl("get", "endpoints", "kubernetes", "-o", "json"))["subsets"][0]
    server = f"{ends['addresses'][0]['ip']}:{ends['ports'][0]['port']}"
    site.release.values["networkPolicy"] |= {"runs": True, "apiServer": [f"{ends['addresses'][0]['ip']}/32"]}
    site.release.upgrade()
    places = {
        "store": f"siloflow-store.{space}.svc:9000",
        "KFP": "ml-pipeline.kubeflow.svc:8888",
        "API server": server,
        "Prometheus": f"prometheus.{site.watching}.svc:9090",
    }
    step = pod("step", {"app.kubernetes.io/name": "siloflow", "siloflow.io/role": "silo"}, "-c", WAIT_AND_REACH, *places.values())
    reached = reached_by(site.release, step)
    outsider = reached_by(site.release, pod("outsider", {}, "-c", WAIT_AND_REACH, *places.values()))
    kubectl("-n", space, "delete", "pod", "step", "outsider")
    assert {name for name, place in places.items() if place in reached} == {"store", "KFP", "API server"}
    assert {name for name, place in places.items() if place in outsider} == {"KFP", "API server", "Prometheus"}
    site.release.values["networkPolicy"]["runs"] = False


# ---- nightly


def test_nights_are_compared_with_each_other_and_told_to_prometheus(site: Site, tmp_path: Path) -> None:
    """The first has nothing to compare with and is kept; the second is green; one that is slower fails its Job, once, with its gate."""
    baseline = json.dumps(accepted_here(tmp_path))
    site.release.values["nightly"] = {"enabled": True, "spec": json.dumps(BENCHMARK), "baseline": baseline}
    site.release.upgrade()
    nights = Nights(site.release)
    code, log = night_by_hand(site.release, "first")
    assert (code, log.splitlines()[-1]) == (2, f"error: {FIRST}")
    nights.cost(5)
    code, log = night_by_hand(site.release, "second")
    assert code == 0, log
    accuracy = nights.read()[-1]["cells"]["fedavg/paper"]["mean"]
    pushed = until(lambda: site.ask('siloflow_last_run_accuracy_ratio{pipeline="nightly",rule="last"}'), "the outcome in Prometheus")
    assert float(pushed[0]["value"][1]) == pytest.approx(accuracy)
    assert (pushed[0]["metric"]["algorithm"], pushed[0]["metric"]["target"]) == ("fedavg", "paper")
    assert "instance" not in pushed[0]["metric"] or pushed[0]["metric"]["instance"] == ""
    gates = site.ask('siloflow_last_night_gate_passed{pipeline="nightly"}')
    assert {(one["metric"]["gate"], one["value"][1]) for one in gates} == {("accuracy", "1"), ("exact", "1"), ("speed", "1")}
    nights.cost(0.01)
    code, log = night_by_hand(site.release, "third")
    assert (code, log.splitlines()[-1]) == (6, f"error: {RED}")
    assert len(log.splitlines()) < 50  # one screen
    assert nights.verdicts() == ["no baseline", "passed", "failed"]
    fired = until(lambda: site.ask('ALERTS{alertname="SiloflowGateFailed",alertstate="firing"}') or None, "the alert", 120)
    assert [one["metric"]["gate"] for one in fired] == ["speed"]


def night_by_hand(release: Release, name: str) -> tuple[int, str]:
    """Exit code and log of the one pod that the Job had: neither of the two ways to be not green is tried again."""
    kubectl("-n", release.space, "create", "job", name, "--from=cronjob/siloflow-nightly")
    until(lambda: _ended(release.space, name), f"the {name} night", 3000)
    (one,) = release.get("pod", "-l", f"job-name={name}")
    ended = one["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    return ended, kubectl("-n", release.space, "logs", one["metadata"]["name"])


@pytest.mark.timeout(3600)
def test_the_night_of_the_image_runs(site: Site) -> None:
    """Nothing given: the benchmark and the baseline that are in the image. Of speed only an idle machine could say something."""
    site.release.values["nightly"] = {"enabled": True}
    site.release.upgrade()
    code, log = night_by_hand(site.release, "shipped")
    assert code in (0, 2, 6), log
    listed = re.findall(r"^ +(accuracy|exact|speed) .*(passed|failed|no baseline)", log, re.MULTILINE)
    assert {gate for gate, verdict in listed if verdict != "passed"} <= {"speed"}, log
    more = re.search(r"(\d+) more have passed", log)  # those that do not fit on a screen
    passed = sum(verdict == "passed" for _, verdict in listed) + (int(more[1]) if more else 0)
    assert passed > 8, log  # four algorithms on two targets, and the digest


def _ended(space: str, job: str) -> bool:
    status = json.loads(kubectl("-n", space, "get", "job", job, "-o", "json"))["status"]
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in status.get("conditions", ()))


# ---- resident roles, watched


def test_every_role_is_found_and_scraped(site: Site) -> None:
    site.release.values["resident"] = {"enabled": True, "run": RUN, "spec": SPEC}
    site.release.upgrade()
    expected = {"server", "evaluator", *SILOS}
    until(lambda: expected <= {one["metric"].get("role") for one in site.ask("siloflow_round")} or None, "a round of every role", 900)
    up = site.ask("up")
    assert len([one for one in up if one["metric"]["job"] == "siloflow"]) == len(expected)
    assert {one["metric"]["job"] for one in up} == {"siloflow", "store", "pushgateway"}
    assert {one["value"][1] for one in up} == {"1"}, up


def test_the_alert_for_a_missing_silo_fires(site: Site) -> None:
    """The rules as they are in the chart: three minutes of absence."""
    assert site.ask('ALERTS{alertname="SiloflowSiloMissing",alertstate="firing"}') == []
    jobs = [one["metadata"]["name"] for one in site.release.get("job", "-l", "siloflow.io/role=silo")]
    kubectl("-n", site.release.space, "delete", "job", next(name for name in jobs if "-neon-" in name), "--cascade=foreground")
    question = 'ALERTS{alertname="SiloflowSiloMissing",alertstate="firing"}'
    fired = until(lambda: site.ask(question) or None, "the alert", 600)
    assert [one["metric"]["silo"] for one in fired] == ["neon"]


# ---- a Prometheus and a Pushgateway


def watch(release: Release, space: str) -> None:
    """Debian's Prometheus cannot ask the API server for pods, so it asks the DNS; the rules are those of the chart's PrometheusRule."""
    words = ["--set", "monitoring.rules.enabled=true", "-f", "-"]
    text = call("helm", "template", release.name, CHART, "-n", release.space, "--kube-version", "1.35.0", *words, text=release.everything())
    rules = next(one for one in yaml.safe_load_all(text.stdout) if one and one["kind"] == "PrometheusRule")
    config = {
        "global": {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "2s"},
        "rule_files": ["/config/rules.yaml"],
        "scrape_configs": [_scrape_roles(release), *_scrape_services(release, space)],
    }
    files = {"prometheus.yml": yaml.safe_dump(config), "rules.yaml": yaml.safe_dump(rules["spec"])}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prometheus", "namespace": space}, "data": files})
    for role in ROLES:
        spec = {"clusterIP": "None", "selector": {"siloflow.io/role": role}, "publishNotReadyAddresses": True}
        metadata = {"name": f"every-{role}", "namespace": release.space}
        apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {**spec, "ports": [{"port": 9464}]}})
    storage = ["--config.file=/config/prometheus.yml", "--storage.tsdb.path=/tmp/data", "--web.listen-address=:9090"]
    _serve(space, "prometheus", 9090, ["prometheus", *storage])
    _serve(space, "pushgateway", 9091, ["prometheus-pushgateway"])
    for name in ("pushgateway", "prometheus"):
        ready = call("kubectl", "-n", space, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=90s", code=None)
        assert ready.returncode == 0, kubectl("-n", space, "logs", name, "--tail=5", code=None)


def _scrape_roles(release: Release) -> dict[str, Any]:
    names = [f"every-{role}.{release.space}.svc.cluster.local" for role in ROLES]
    found = {"names": names, "type": "A", "port": 9464, "refresh_interval": "5s"}
    named = {"target_label": "namespace", "replacement": release.space}
    return {"job_name": "siloflow", "dns_sd_configs": [found], "relabel_configs": [named]}


def _scrape_services(release: Release, space: str) -> Iterator[dict[str, Any]]:
    store = [{"targets": [f"siloflow-store.{release.space}.svc:9000"]}]
    yield {"job_name": "store", "metrics_path": "/minio/v2/metrics/cluster", "static_configs": store}
    yield {"job_name": "pushgateway", "honor_labels": True, "static_configs": [{"targets": [f"pushgateway.{space}.svc:9091"]}]}


def _serve(space: str, name: str, port: int, command: list[str]) -> None:
    one = pod(name, {"app": name})
    container = one["spec"]["containers"][0]
    container.update(
        image=PROMETHEUS_IMAGE, command=command, ports=[{"containerPort": port}], volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}]
    )
    container["workingDir"] = "/tmp"
    container["readinessProbe"] = {"httpGet": {"path": "/-/ready", "port": port}, "periodSeconds": 1}
    one["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    if name == "prometheus":
        container["volumeMounts"].append({"name": "config", "mountPath": "/config"})
        one["spec"]["volumes"].append({"name": "config", "configMap": {"name": name}})
    one["metadata"]["namespace"] = space
    apply(one)
    metadata = {"name": name, "namespace": space}
    apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": {"app": name}, "ports": [{"port": port}]}})


def apply(one: dict[str, Any]) -> None:
    kubectl("apply", "-f", "-", text=json.dumps(one))
