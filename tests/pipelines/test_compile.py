"""silos.yaml and a spec become a package: what each pod gets, what older servers take, what is refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.errors import InputError
from pipelines.compile import KINDS, as_manifests, as_yaml, compiled, most_steps
from pipelines.silos import SilosFile
from tests.pipelines.commands import invoke

SPEC: dict[str, Any] = {"algorithm": "fedavg", "rounds": 3, "target": "paper", "hyper": {"epochs": 1}}
SILOS = """
store: s3://store.example:9000/fed
image: {name: registry.example/siloflow:1, pull_policy: Always, pull_secrets: [pull]}
ca_secret: store-ca
silos:
- name: chalk
  gpu: {count: 2}
  node_selector: {zone: a}
  tolerations: [{key: gpu, effect: NoSchedule}]
  resources: {limits: {cpu: "4", memory: 16Gi}, requests: {cpu: 2, memory: 8Gi}}
  data: {claim: chalk-data, sub_path: pictures}
  state: {claim: chalk-state}
  shm: 1Gi
- name: neon
  secret: neons-keys
  secret_as: env
evaluator: {data: {claim: target-data}}
"""


def file_of(text: str = SILOS) -> SilosFile:
    return SilosFile.model_validate(yaml.safe_load(text))


def many(silos: int) -> SilosFile:
    entries = [
        {"name": f"silo-{i:02}", "gpu": {"count": 1}, "data": {"claim": f"data-{i}"}, "state": {"claim": f"state-{i}"}}
        for i in range(silos)
    ]
    return SilosFile.model_validate({"store": "s3://store.example/fed", "silos": entries})


def pods(documents: list[Any]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Display name -> (container, Kubernetes settings) of every task."""
    pipeline, platform = documents
    dags = [pipeline["root"]["dag"], *(one["dag"] for one in pipeline["components"].values() if "dag" in one)]
    executors = pipeline["deploymentSpec"]["executors"]
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    found = {}
    for task in (task for dag in dags for task in dag["tasks"].values()):
        label = pipeline["components"][task["componentRef"]["name"]].get("executorLabel")
        if label:
            found[task["taskInfo"]["name"]] = (executors[label]["container"], settings[label])
    return found


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"]}


def test_a_silos_pod_is_what_its_entry_says() -> None:
    container, settings = pods(compiled(file_of(), SPEC, "stepwise", "2.14"))["chalk"]
    assert container["image"] == "registry.example/siloflow:1"
    assert container["resources"]["accelerator"] == {
        "count": "2",
        "resourceCount": "2",
        "resourceType": "nvidia.com/gpu",
        "type": "nvidia.com/gpu",
    }
    assert (container["resources"]["cpuLimit"], container["resources"]["memoryRequest"]) == (4.0, 8.589934592)
    assert settings["nodeSelector"] == {"labels": {"zone": "a"}}
    assert settings["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert {one["mountPath"]: one["constant"] for one in settings["pvcMount"]} == {"/state": "chalk-state", "/data": "chalk-data"}
    assert {one["mountPath"] for one in settings["secretAsVolume"]} == {"/credentials/chalk", "/ca"}
    assert settings["emptyDirMounts"] == [{"volumeName": "shm", "mountPath": "/dev/shm", "medium": "Memory", "sizeLimit": "1Gi"}]
    assert settings["imagePullPolicy"] == "Always"
    assert settings["podMetadata"]["labels"]["siloflow.io/silo"] == "chalk"
    assert variables(container) == {
        "SILOFLOW_THREADS": "4", "SILOFLOW_STATE": "/state", "SILOFLOW_CACHE": "/state/cache", "SILOFLOW_DATA": "/data/pictures",
        "SILOFLOW_CREDENTIALS": "/credentials", "SILOFLOW_CA": "/ca/ca.crt",
        "SILOFLOW_CONTAINER_IMAGE": "registry.example/siloflow:1",
    }  # fmt: skip


def test_only_tasks_that_last_are_scraped() -> None:
    chart = yaml.safe_load((Path(__file__).parents[2] / "helm/siloflow/values.yaml").read_text())
    for kind, tasks in (("stepwise", set[str]()), ("resident", {"chalk", "neon", "server", "evaluator"})):
        found = {name: variables(container) for name, (container, _) in pods(compiled(file_of(), SPEC, kind, "2.14")).items()}
        assert {name for name, own in found.items() if own.get("SILOFLOW_METRICS_PORT") == str(chart["monitoring"]["port"])} == tasks


def test_nobody_gets_the_keys_of_another() -> None:
    """Only the server's tasks have two roles: its own and the evaluator's."""
    for kind, who in (("stepwise", "server"), ("resident", "evaluate")):
        found = pods(compiled(file_of(), SPEC, kind, "2.14"))
        _, chalk = found["chalk"]
        assert {one["secretName"] for one in chalk["secretAsVolume"]} == {"siloflow-chalk", "store-ca"}
        _, neon = found["neon"]
        assert [one["secretName"] for one in neon["secretAsEnv"]] == ["neons-keys"]
        assert {one["secretName"] for one in neon["secretAsVolume"]} == {"store-ca"}
        _, both = found[who]
        assert {one["secretName"] for one in both["secretAsVolume"]} == {"siloflow-server", "siloflow-evaluator", "store-ca"}
        assert [one["constant"] for one in both["pvcMount"]] == ["target-data"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nightly"])
def test_every_task_is_retried_and_never_cached(kind: str) -> None:
    pipeline, _ = compiled(file_of(), SPEC, kind, "2.14")
    dags = [pipeline["root"]["dag"], *(one["dag"] for one in pipeline["components"].values() if "dag" in one)]
    tasks = [task for dag in dags for task in dag["tasks"].values() if not task["componentRef"]["name"].startswith("comp-for-loop")]
    assert len(tasks) >= 6
    for task in tasks:
        assert not task["cachingOptions"].get("enableCache")
        assert task["retryPolicy"] == {"maxRetryCount": 2, "backoffDuration": "10s", "backoffFactor": 2.0, "backoffMaxDuration": "864000s"}


def test_steps_run_one_at_a_time() -> None:
    pipeline, _ = compiled(file_of(), SPEC, "stepwise", "2.14")
    loop = next(task for task in pipeline["root"]["dag"]["tasks"].values() if "parameterIterator" in task)
    assert loop["iteratorPolicy"] == {"parallelismLimit": 1}
    body = pipeline["components"][loop["componentRef"]["name"]]["dag"]["tasks"]
    assert sorted(body["server-step"]["dependentTasks"]) == ["silo-step", "silo-step-2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", ["2.14", "2.17"])
def test_the_same_input_gives_the_same_bytes(kind: str, server: str) -> None:
    assert as_yaml(compiled(file_of(), SPEC, kind, server)) == as_yaml(compiled(file_of(), SPEC, kind, server))


def keys_of(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        return set(tree) | {key for value in tree.values() for key in keys_of(value)}
    return {key for value in tree for key in keys_of(value)} if isinstance(tree, list) else set()


def test_older_servers_get_nothing_that_they_refuse() -> None:
    newer_fields = {"literals", "optional", "subPath", "securityContext", "activeDeadlineSeconds", "taskConfigPassthroughs"}
    for kind in KINDS:
        assert not keys_of(compiled(file_of(), SPEC, kind, "2.14")) & newer_fields
    newer = compiled(file_of(), SPEC, "stepwise", "2.17")
    assert {"literals", "optional", "subPath", "securityContext"} <= keys_of(newer)
    container, _ = pods(newer)["chalk"]
    assert variables(container)["SILOFLOW_DATA"] == "/data"


def test_the_form() -> None:
    pipeline, _ = compiled(file_of(), SPEC, "stepwise", "2.17")
    fields = pipeline["root"]["inputDefinitions"]["parameters"]
    assert {name: field.get("defaultValue") for name, field in fields.items()} == {
        "algorithm": "fedavg", "dataset": "styled-digits", "target": "paper", "rounds": 3.0, "seed": 0.0, "overrides": "",
        "spec": "{hyper: {epochs: 1}}", "run": "",
    }  # fmt: skip
    assert all(field["description"] for field in fields.values())
    assert "fedccrl" in fields["algorithm"]["literals"]
    assert "pacs" in fields["dataset"]["literals"]
    assert pipeline["pipelineInfo"]["description"].endswith("siloflow 0.1.0")


def test_fifty_silos_are_quick_and_small() -> None:
    compiled(many(1), SPEC, "stepwise", "2.14")  # kfp is imported
    packages: list[str] = []
    # kfp looks at the whole stack at every setting, and pytest's is deep; a thread's is as short as the command's
    thread = threading.Thread(target=lambda: packages.append(as_yaml(compiled(many(50), SPEC, "stepwise", "2.14"))))
    started = time.process_time()
    thread.start()
    thread.join()
    assert time.process_time() - started < 5
    assert len(packages[0]) < 500_000


def test_what_argo_cannot_hold_is_refused() -> None:
    most = [most_steps(many(silos), len(as_yaml(compiled(many(silos), {**SPEC, "rounds": 1}, "stepwise", "2.14")))) for silos in (2, 5, 10)]
    assert most[0] > most[1] > most[2] > 0
    longest = compiled(many(10), {**SPEC, "rounds": most[2] - 2}, "stepwise", "2.14")
    assert longest[0]["root"]["dag"]["tasks"]["plan"]["inputs"]["parameters"]["most"]["runtimeValue"]["constant"] == most[2]
    with pytest.raises(InputError, match=rf"rounds {most[2]}: expected at most {most[2] - 2} in a stepwise run with 10 silos .* resident"):
        compiled(many(10), {**SPEC, "rounds": most[2]}, "stepwise", "2.14")
    compiled(many(10), {**SPEC, "rounds": 1000}, "resident", "2.14")


def test_custom_resources() -> None:
    package = compiled(file_of(), SPEC, "resident", "2.14")
    pipeline, version = as_manifests(package, "lab")
    assert (pipeline["kind"], pipeline["metadata"]) == ("Pipeline", {"name": "siloflow-resident", "namespace": "lab"})
    assert version["spec"]["pipelineName"] == "siloflow-resident"
    assert [version["spec"]["pipelineSpec"], version["spec"]["platformSpec"]] == package


# ---- the command


@pytest.fixture
def silos(tmp_path: Path) -> Path:
    path = tmp_path / "silos.yaml"
    path.write_text(SILOS)
    return path


def test_the_command_writes_what_kfp_can_load(silos: Path, tmp_path: Path) -> None:
    from kfp import components

    for words in ([], ["--pipeline", "resident", "--server", "2.17"], ["--pipeline", "benchmark"]):
        answer = invoke("compile", silos, "-o", tmp_path / "p.yaml", "--set", "target=paper", *words)
        assert answer.exit_code == 0, answer.stderr
        assert "siloflow submit" in answer.stderr
        assert components.load_component_from_file(str(tmp_path / "p.yaml")).name.startswith("siloflow-")
    assert invoke("compile", silos, "-o", tmp_path / "m.yaml", "--kubernetes-manifest").exit_code == 0
    assert [one["kind"] for one in yaml.safe_load_all((tmp_path / "m.yaml").read_text())] == ["Pipeline", "PipelineVersion"]


CHALK = "store: s3://h/f\nsilos: [{name: chalk, %s}]"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CHALK % "gpu: {type: nvidia.com/gpu}", "silos.0.gpu.count: missing; it is required"),
        (CHALK % "gpu: {cuont: 1}", "unknown field 'silos.0.gpu.cuont': did you mean 'count'"),
        (CHALK % "data: {sub_path: a}", "silos.0.data.claim: missing"),
        (CHALK % "data: {claim: d, sub_path: ../b}", "silos.0.data.sub_path: expected a relative path without .."),
        (CHALK % "data: {claim: d}, state: {claim: s, path: /data}", "expected data and state at two paths"),
        (CHALK % "resources: {limits: {cpu: lots}}", "silos.0.resources.limits.cpu: expected a Kubernetes quantity"),
        (CHALK % "secret: Not_A_Name", "silos.0.secret: expected the name of a Kubernetes object"),
        (
            "store: s3://h/f\nsilos: [{name: a, secret: s}, {name: b, secret: s}]",
            "expected a secret of its own for each role, a and b share 's'",
        ),
        ("store: s3://h/f\nsilos: [{name: a}, {name: b, secret: siloflow-server}]", "server and b share 'siloflow-server'"),
        ("store: s3://h/f\nsilos: [{name: a, state: {claim: v}}, {name: b, state: {claim: v}}]", "a and b share 'v/'"),
        (CHALK % "secret: v, state: {claim: v}", "expected claims and Secrets of different names in a pod of chalk, found 'v' twice"),
        (CHALK % "data: {claim: v}, state: {claim: v, sub_path: s}", "in a pod of chalk, found 'v' twice"),
        (CHALK % "data: {claim: v}" + "\nevaluator: {data: {claim: siloflow-server}}", "in a pod of server, found 'siloflow-server' twice"),
        ("store: s3://h/f\nsilos: [{name: a}, {name: a}]", "expected every name once"),
        ("store: s3://h/f\nsilos: [{name: A.b}]", "expected 1 to 63 of a-z 0-9 -"),
        ("store: s3://h/f\nimage: {name: 'A B'}\nsilos: [{name: a}]", "image.name: expected the name of a container image"),
    ],
)
def test_a_bad_file_is_one_line_and_writes_nothing(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "silos.yaml").write_text(text)
    answer = invoke("compile", tmp_path / "silos.yaml", "-o", tmp_path / "p.yaml")
    assert answer.exit_code == 2
    assert line in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "p.yaml").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--pipeline", "stepwize"], "--pipeline 'stepwize': did you mean 'stepwise'"),
        (["--server", "2.0"], "--server '2.0': "),
        (["--set", "algorithm=fedavgg"], "algorithm 'fedavgg': did you mean 'fedavg'"),
        (["--set", "rounds=5000"], "rounds 5000: expected at most"),
        (["-o", "/proc/p.yaml"], "/proc/p.yaml: cannot be written"),
    ],
)
def test_bad_options(words: list[str], line: str, silos: Path) -> None:
    answer = invoke("compile", silos, *words)
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert line in answer.stderr
