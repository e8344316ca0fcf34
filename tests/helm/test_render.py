"""What the chart renders: valid, the same every time, every branch of it, and safe."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.silos import read_silos
from tests.helm.chart import CHART, FEATURES, TWO_SILOS, found, helm, objects, pods, rendered, template, values_of
from tests.helm.kubernetes_types import known, mistakes

OPERATORS_OWN = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}  # kinds that are not Kubernetes'
LABELS = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "component", "part-of", "managed-by")} | {"helm.sh/chart"}


def test_lint() -> None:
    assert len(FEATURES) > 10
    for feature in FEATURES:
        answer = helm("lint", "--strict", CHART, "--kube-version", "1.35.0", "--namespace", "fl", "-f", values_of(feature))
        assert answer.returncode == 0, (feature, answer.stdout)


@pytest.mark.parametrize("feature", FEATURES)
def test_every_object_is_what_the_api_knows(feature: str) -> None:
    for one in objects(rendered(feature)):
        if one["kind"] in OPERATORS_OWN:
            assert one["apiVersion"] == "monitoring.coreos.com/v1"
        else:
            assert known(one), one["kind"]
            assert mistakes(one) == [], one["metadata"]["name"]
        assert set(one["metadata"]["labels"]) >= LABELS
        assert one["kind"] == "PriorityClass" or one["metadata"]["namespace"] in ("fl", "kubeflow")


def test_mistakes_are_noticed() -> None:
    pod: Any = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"nmae": "a", "args": "b", "ports": [{"containerPort": True}]}]}}
    assert [text.partition(":")[0] for text in mistakes(pod)] == [
        "Pod.spec.containers[0].nmae",
        "Pod.spec.containers[0].args",
        "Pod.spec.containers[0].ports[0].containerPort",
        "Pod.spec.containers[0]",
    ]


@pytest.mark.parametrize("feature", FEATURES)
def test_every_pod_is_restricted(feature: str) -> None:
    """Pod Security "restricted", and more: no token, a read-only root, no service links, requests and a memory limit."""
    for one in objects(rendered(feature)):
        for pod in pods(one):
            spec = pod["spec"]
            assert spec["automountServiceAccountToken"] is False
            assert spec["enableServiceLinks"] is False
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "siloflow.io/role" in pod["metadata"]["labels"]
            for container in [*spec["containers"], *spec.get("initContainers", ())]:
                security = container["securityContext"]
                assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
                assert security["capabilities"] == {"drop": ["ALL"]}
                assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
                assert "memory" in container["resources"]["limits"]
                mounted = {mount["name"] for mount in container["volumeMounts"]}
                claims = one["spec"].get("volumeClaimTemplates", ())
                assert mounted <= {volume["name"] for volume in spec["volumes"]} | {claim["metadata"]["name"] for claim in claims}


@pytest.mark.parametrize("feature", FEATURES)
def test_no_secret_outside_secrets(feature: str) -> None:
    secrets = [key for one in objects(rendered(feature)) if one["kind"] == "Secret" for key in one["data"].values()]
    others = yaml.safe_dump_all([one for one in objects(rendered(feature)) if one["kind"] != "Secret"])
    assert not [key for key in secrets if key in others]
    assert "kind: Role" not in others  # no rights for anybody, so none on Secrets


def test_the_same_every_time() -> None:
    """All but the keys, which are made up where there is no cluster to look for them."""
    for feature in FEATURES:
        again = template("-f", values_of(feature)).stdout
        assert _without_keys(again) == _without_keys(rendered(feature))
        if "kind: Secret\n" not in again:
            assert again == rendered(feature)


def _without_keys(text: str) -> str:
    return re.sub(r"^(  \S*(access|secret)_key: )\S+$", r"\1", text, flags=re.M)


def test_keys_are_strong_and_nobody_shares_them() -> None:
    data = [one["data"] for one in found("default", "Secret")]
    keys = [value for pair in data for value in pair.values()]
    assert len(set(keys)) == len(keys) == 10
    assert min(len(pair["secret_key"]) for pair in data) >= 52  # 40 characters of 62, in base64


def test_the_commands_read_what_the_chart_was_given(tmp_path: Path) -> None:
    for feature in FEATURES:
        for name, text in found(feature, "ConfigMap")[0]["data"].items():
            if name.endswith("silos.yaml"):
                (tmp_path / name).write_text(text)
                assert read_silos(tmp_path / name).store.startswith("s3://")
    silos = read_silos(_written(tmp_path, found("default", "ConfigMap")[0]["data"]["silos.yaml"]))
    assert (silos.store, silos.names) == ("s3://siloflow-store.fl.svc:9000/fed?tls=false", ["hospital-a", "hospital-b"])


def test_a_full_silos_file_serves_compiler_and_chart(tmp_path: Path) -> None:
    text = values_of("silo").read_text()
    values = {key: value for key, value in yaml.safe_load(text).items() if key in ("store", "silos", "ca_secret")}
    file = _written(tmp_path, yaml.safe_dump(values))
    expected = read_silos(file)
    answer = template("-f", file, values={"createSecrets": False, "embeddedStore": {"enabled": False}})
    assert answer.returncode == 0, answer.stderr
    config = next(one for one in objects(answer.stdout) if one["kind"] == "ConfigMap")
    assert read_silos(_written(tmp_path, config["data"]["silos.yaml"])) == expected


def _written(folder: Path, text: str) -> Path:
    path = folder / "silos.yaml"
    path.write_text(text)
    return path


def test_one_silo_more_changes_nothing_else() -> None:
    more = {"silos": [*TWO_SILOS["silos"], {"name": "hospital-c"}]}
    before, after = ({_id(one): one for one in objects(_without_keys(template(values=values).stdout))} for values in (TWO_SILOS, more))
    assert after.keys() - before.keys() == {("Secret", "siloflow-hospital-c")}
    changed = {name for name, one in before.items() if after[name] != one}
    # Of these only the ConfigMap is an object that stays; the others are a hook and a test.
    assert changed == {("ConfigMap", "siloflow"), ("Job", "siloflow-provision"), ("Pod", "siloflow-verify")}


def _id(one: dict[str, Any]) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


def test_selectors_do_not_depend_on_the_version() -> None:
    """They are immutable: an upgrade could not change them."""
    for feature in FEATURES:
        for one in objects(rendered(feature)):
            chosen = yaml.safe_dump(one["spec"].get("selector", {}) if one["kind"] in ("StatefulSet", "Service") else {})
            assert "version" not in chosen and "chart" not in chosen
        for one in found(feature, "StatefulSet"):
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert "version" not in yaml.safe_dump([labels, one["spec"].get("volumeClaimTemplates")])


def test_a_resident_silo_has_its_own_keys_and_volumes_only() -> None:
    jobs = {job["spec"]["template"]["metadata"]["labels"].get("siloflow.io/silo"): job for job in found("resident", "Job")}
    neon = jobs["neon"]["spec"]["template"]["spec"]
    assert [volume["secret"]["secretName"] for volume in neon["volumes"] if "secret" in volume] == ["siloflow-neon"]
    assert neon["containers"][0]["args"][:2] == ["silo", "s3://siloflow-store.fl.svc:9000/fed/first?tls=false"]
    assert {"name": "state", "mountPath": "/state", "subPath": "fed"} in neon["containers"][0]["volumeMounts"]
    chalk = jobs["chalk"]["spec"]["template"]["spec"]
    assert not [volume for volume in chalk["volumes"] if "secret" in volume]
    given = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in chalk["containers"][0]["env"] if "valueFrom" in one}
    assert given == {
        "SILOFLOW_ACCESS_KEY": {"name": "siloflow-chalk", "key": "access_key"},
        "SILOFLOW_SECRET_KEY": {"name": "siloflow-chalk", "key": "secret_key"},
    }
    silo = found("silo", "Job")[0]["spec"]["template"]["spec"]["containers"][0]
    assert silo["resources"]["limits"] == {"cpu": 4, "memory": "16Gi", "nvidia.com/gpu": 1}


def test_hooks_run_in_the_right_order() -> None:
    hooks = {one["metadata"]["name"]: one["metadata"]["annotations"] for one in found("upload", "Job")}
    assert {hook["helm.sh/hook"] for hook in hooks.values()} == {"post-install,post-upgrade"}
    assert int(hooks["siloflow-provision"]["helm.sh/hook-weight"]) < int(hooks["siloflow-upload"]["helm.sh/hook-weight"])


# ---- every branch


BRANCH = re.compile(r"^\s*\{\{-? *(if|else|with|range)\b[^{}]*\}\}\s*$")
LINE_BY_LINE = [
    path
    for path in sorted((CHART / "templates").rglob("*"))
    if path.suffix in (".yaml", ".tpl") and path.stem not in ("_names", "_validate")
]


def marked(text: str, file: str) -> Iterator[str]:
    """The template with a comment in every branch that is a line of its own."""
    for number, line in enumerate(text.splitlines(), 1):
        yield line
        if BRANCH.match(line):
            yield f"# branch {file}:{number}"


def test_every_branch_is_rendered_by_some_example(tmp_path: Path) -> None:
    """A typo in a branch that nobody renders would ship. _names and _validate return words and messages: test_values has those."""
    copy = shutil.copytree(CHART, tmp_path / "siloflow")
    expected = set()
    for path in LINE_BY_LINE:
        text = "\n".join(marked(path.read_text(), path.name)) + "\n"
        expected |= set(re.findall(r"# branch (\S+)", text))
        (copy / path.relative_to(CHART)).write_text(text)
    seen: set[str] = set()
    for feature in FEATURES:
        answer = template("-f", values_of(feature), chart=copy)
        assert answer.returncode == 0, answer.stderr
        seen |= set(re.findall(r"# branch (\S+)", answer.stdout))
    assert len(expected) > 60
    assert sorted(expected - seen) == []


@pytest.mark.parametrize("feature", ["default", "silo", "external"])
def test_notes_have_the_next_three_commands(feature: str, tmp_path: Path) -> None:
    copy = shutil.copytree(CHART, tmp_path / "siloflow")
    notes = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}\n' + notes + "{{- end }}\n")
    (copy / "templates" / "notes.yaml").write_text('kind: Notes\napiVersion: v1\ntext: |\n  {{- include "notes" . | nindent 2 }}\n')
    answer = template("-f", values_of(feature), "--show-only", "templates/notes.yaml", chart=copy)
    assert answer.returncode == 0, answer.stderr
    text = objects(answer.stdout)[0]["text"]
    assert re.findall(r"^  (\d)\. (\w+)", text, flags=re.M) == [
        ("1", "helm"),
        ("2", "kubectl"),
        ("3", "helm" if feature == "silo" else "siloflow"),
    ]
    assert "secret_key" not in text
