"""Values: strict, documented, in step with silos.yaml; what is wrong fails before anything is created and names the value."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from components.layout import RESERVED
from pipelines import silos
from pipelines.silos import Resources, SilosFile
from tests.helm.chart import CHART, FEATURES, TWO_SILOS, found, objects, template, values_of
from tests.helm.readme import PAGE, leaves, rows, with_table

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


# ---- the schema


def definition(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Behind a reference, or what else than null it may be."""
    for option in schema.get("anyOf", ()):
        if option.get("type") != "null" and "const" not in option:
            return definition(option, root)
    if "$ref" not in schema:
        return schema
    place: Any = root
    for part in schema["$ref"].removeprefix("#/").split("/"):
        place = place[part]
    return definition(place, root)


def field_names(schema: dict[str, Any], root: dict[str, Any], path: str = "") -> set[str]:
    """Every field below, with its path; items of a list count as the list."""
    schema = definition(schema, root)
    if schema.get("type") == "array" or "items" in schema:
        return field_names(schema["items"], root, path) | {path}
    inner = schema.get("properties", {})
    return {path} | {name for key, value in inner.items() for name in field_names(value, root, f"{path}.{key}")}


def test_the_schema_knows_every_field_of_silos_yaml_and_no_other() -> None:
    theirs = SilosFile.model_json_schema()
    for key in SilosFile.model_fields:
        ours = field_names(SCHEMA["properties"][key], SCHEMA)
        assert ours == field_names(theirs["properties"][key], theirs), key


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("objectName", silos._OBJECT),
        ("quantity", silos._QUANTITY),
        ("mountPath", silos._MOUNT),
    ],
)
def test_names_are_checked_as_the_product_does(name: str, pattern: re.Pattern[str]) -> None:
    assert SCHEMA["definitions"][name]["pattern"] == f"^{pattern.pattern}$"


def test_silos_and_images_are_checked_as_the_product_does() -> None:
    kinds = SCHEMA["definitions"]
    assert kinds["silo"]["properties"]["name"]["pattern"] == f"^{silos._LABEL.pattern}$"
    assert kinds["volume"]["properties"]["sub_path"]["pattern"] == f"^{silos._WITHIN.pattern}$"
    assert SCHEMA["properties"]["image"]["properties"]["name"]["pattern"] == f"^{silos._IMAGE.pattern}$"
    assert VALUES["image"]["name"] == silos.Image().name
    assert f'list "{RESERVED[0]}" "{RESERVED[1]}" "{RESERVED[2]}" "{RESERVED[3]}"' in (CHART / "templates" / "_validate.tpl").read_text()


def test_a_silo_that_says_nothing_gets_what_the_product_says() -> None:
    pod = next(job for job in found("resident", "Job") if "pencil" in job["metadata"]["name"])["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == Resources().model_dump()


def strict(schema: Any, path: str = "") -> None:
    if isinstance(schema, dict):
        if "properties" in schema:
            assert schema.get("additionalProperties") is False, path
        for key, value in schema.items():
            strict(value, f"{path}/{key}")


def test_the_schema_is_strict_and_knows_every_value() -> None:
    strict(SCHEMA)
    described = {path.lstrip(".") for path in field_names(SCHEMA, SCHEMA)}
    assert {leaf for leaf, _, _ in rows()} <= described


# ---- documentation


def test_every_value_is_documented() -> None:
    assert sorted(leaves(VALUES)) == sorted(path for path, _, _ in rows())


def test_the_readme_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert with_table(page) == page, "python -m tests.helm.readme"


def test_every_feature_has_an_example() -> None:
    """Every switch of the chart is turned by some file in ci/."""
    turned = [yaml.safe_load(values_of(feature).read_text()) for feature in FEATURES]
    switches = [path for path, default, _ in rows() if default in ("true", "false")]
    untouched = [path for path in switches if not any(_at(values, path) == (not _at(VALUES, path)) for values in turned)]
    assert untouched == []


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


# ---- bad input

A = [{"name": "a"}]
SILO = {"role": "silo", "store": "s3://h/f", "silos": A, "createSecrets": False, "embeddedStore": {"enabled": False}}
SCHEMA_REFUSES: list[tuple[Any, str]] = [
    ({}, "at '/silos': minItems: got 0, want 1"),
    ({"silos": "a"}, "at '/silos': got string, want array"),
    ({"silos": [{"nmae": "a"}]}, "at '/silos/0': missing property 'name'"),
    ({"silos": [{"name": "a", "gpus": 1}]}, "at '/silos/0': additional properties 'gpus' not allowed"),
    ({"silos": [{"name": "A"}]}, "at '/silos/0/name': 'A' does not match pattern"),
    ({"silos": [{"name": "a", "gpu": {"count": 0}}]}, "at '/silos/0/gpu/count': minimum: got 0, want 1"),
    ({"silos": [{"name": "a", "data": {"claim": "c", "sub_path": "../b"}}]}, "at '/silos/0/data/sub_path'"),
    ({"silos": A, "store": "s3://user:pass@h/f"}, "at '/store'"),
    ({"silos": A, "monitroing": {}}, "additional properties 'monitroing' not allowed"),
    ({"silos": A, "nightly": {"schedule": "at 3"}}, "at '/nightly/schedule'"),
    ({"silos": A, "embeddedStore": {"storage": {"size": "big"}}}, "at '/embeddedStore/storage/size'"),
    ({"silos": A, "embeddedStore": {"resources": {"limits": None}}}, "at '/embeddedStore/resources': missing property 'limits'"),
    ({"silos": A, "networkPolicy": {"apiServer": ["kubernetes"]}}, "at '/networkPolicy/apiServer/0'"),
]
CHART_REFUSES: list[tuple[Any, str]] = [
    ({"silos": [{"name": "server"}]}, 'silos[0].name: expected another name than admin, evaluator, global, server, found "server"'),
    ({"silos": [*A, {"name": "b"}, *A]}, 'silos[2].name: expected every name once, found "a" twice'),
    (
        {"silos": [{"name": "a", "state": {"claim": "c"}}, {"name": "b", "state": {"claim": "c"}}]},
        "silos[1].state: expected a volume of its own",
    ),
    (
        {"silos": [{"name": "a", "data": {"claim": "c"}, "state": {"claim": "c"}}]},
        "silos[0]: expected claims and Secrets of different names",
    ),
    (
        {"silos": A, "server": {"state": {"claim": "c"}}, "evaluator": {"data": {"claim": "c"}}},
        "evaluator.data: expected claims and Secrets of different names",
    ),
    ({"silos": [{"name": "a", "secret": "x"}], "ca_secret": "x"}, "silos[0]: expected claims and Secrets of different names"),
    (
        {"silos": [{"name": "a", "state": {"claim": "c", "path": "/data"}, "data": {"claim": "d"}}]},
        "silos[0].state.path: expected another path than that of data",
    ),
    (
        {"silos": [{"name": "a", "secret": "siloflow-server"}]},
        'silos[0].secret: expected a Secret of its own, found "siloflow-server", which server',
    ),
    ({"silos": [{"name": "store-admin"}]}, 'found "siloflow-store-admin", which the store\'s administrator has too'),
    ({"silos": A, "embeddedStore": {"enabled": False}}, "store: expected s3://host[:port]/prefix, found none"),
    ({"silos": A, "embeddedStore": {"prefix": "fed-silo"}}, "store: expected a prefix without '-silo'"),
    ({"silos": A, "store": "s3://other/fed"}, "store: expected s3://siloflow-store.fl.svc:9000/fed, the embedded store, found"),
    ({"silos": A, "store": "s3://siloflow-store.fl.svc:9000/fed"}, "store: expected ?tls=false as in embeddedStore.tls.enabled"),
    ({"silos": A, "embeddedStore": {"tls": {"enabled": True}}}, "embeddedStore.tls.secret: expected a Secret with tls.crt and tls.key"),
    ({"silos": A, "embeddedStore": {"tls": {"enabled": True, "secret": "s"}}}, "ca_secret: expected a Secret with ca.crt"),
    (
        {"silos": A, "store": "s3://h/f", "embeddedStore": {"enabled": False}},
        "createSecrets: expected false: nobody tells the external store",
    ),
    ({**SILO, "silos": [*A, {"name": "b"}]}, "silos: expected the one silo that this release is, found 2"),
    ({**SILO, "store": "", "embeddedStore": {"enabled": True}}, "store: expected the address of the federation's store, found none"),
    ({**SILO, "embeddedStore": {"enabled": True}}, "embeddedStore.enabled: expected false with role=silo"),
    ({**SILO, "createSecrets": True}, "createSecrets: expected false with role=silo"),
    ({**SILO, "nightly": {"enabled": True}}, "nightly.enabled: expected false with role=silo"),
    ({"silos": A, "resident": {"enabled": True}}, "resident.run: expected the name of a run, found none"),
    ({"silos": A, "resident": {"enabled": True, "run": "r"}}, "resident.spec: expected the spec of the run, found none"),
    ({"silos": A, "networkPolicy": {"runs": True}}, "networkPolicy.apiServer: expected the addresses of the API server"),
    ({"silos": A, "nightly": {"enabled": True, "spec": "name: own"}}, "nightly.baseline: expected the baseline of nightly.spec, found"),
]


@pytest.mark.parametrize(
    ("values", "message"), SCHEMA_REFUSES + CHART_REFUSES, ids=lambda value: None if isinstance(value, dict) else value[:40]
)
def test_bad_values_are_named(values: Any, message: str) -> None:
    answer = template(values=values)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert message in answer.stderr


def test_every_refusal_has_a_case() -> None:
    text = (CHART / "templates" / "_validate.tpl").read_text()
    body = text.partition('{{- define "siloflow.requireSecret"')[0]  # needs a cluster to look into: tests/cluster
    refusals = re.findall(r'fail \(?(?:printf )?"([^"]+?: expected )(\S+)', body)
    assert len(refusals) == body.count("{{- fail ") > 15
    for value, word in refusals:
        pattern = re.sub(r"%[sdqt]", ".*", re.escape(value + word))
        assert any(re.match(pattern, message) for _, message in CHART_REFUSES), value + word


def test_an_old_kubernetes_is_refused() -> None:
    answer = template(values=TWO_SILOS, kubernetes="1.26.9")
    assert answer.returncode == 1
    assert "requires kubeVersion: >=1.27.0-0 which is incompatible with Kubernetes v1.26.9" in answer.stderr


# ---- names


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "siloflow"),
        ({"nameOverride": "fed"}, "siloflow-fed"),
        ({"fullnameOverride": "one"}, "one"),
        ({"fullnameOverride": "n" * 60}, "n" * 40),
    ],
)
def test_names(values: Any, name: str) -> None:
    config = next(one for one in objects(template(values={**TWO_SILOS, **values}).stdout) if one["kind"] == "ConfigMap")
    assert config["metadata"]["name"] == name


def test_long_silo_names_still_make_names_of_pods() -> None:
    values = {**yaml.safe_load(values_of("resident").read_text()), "silos": [{"name": "a" * 63}]}
    names = [one["metadata"]["name"] for one in objects(template(values=values).stdout)]
    assert max(map(len, names)) <= 72  # the Secret's, which may be long; a Job's becomes a pod's label
    jobs = [one["metadata"]["name"] for one in objects(template(values=values).stdout) if one["kind"] == "Job"]
    assert max(map(len, jobs)) <= 63


def test_a_store_on_another_port() -> None:
    for feature, port in (("external", 443), ("external-minio", 9000), ("nightly-command", 80)):
        roles = found(feature, "NetworkPolicy", "siloflow-roles")[0]
        assert roles["spec"]["egress"][1]["ports"] == [{"protocol": "TCP", "port": port}]


@pytest.mark.parametrize(
    ("values", "policy", "path"),
    [
        ({"networkPolicy": {"dns": {"podLabels": {"app": "x"}}}}, "siloflow-roles", ("egress", 0, "to", 0)),
        ({"networkPolicy": {"prometheus": {"podLabels": {"app": "x"}}}}, "siloflow-scrape", ("ingress", 0, "from", 0)),
        ({"monitoring": {"pushgateway": {"url": "http://g", "podLabels": {"app": "x"}}}}, "siloflow-push", ("egress", 0, "to", 0)),
    ],
)
def test_labels_that_are_given_are_the_only_ones(values: Any, policy: str, path: tuple[Any, ...]) -> None:
    """Helm merges mappings: a label by default would still be asked for, and nothing would match."""
    place = next(one["spec"] for one in objects(template(values={**TWO_SILOS, **values}).stdout) if one["metadata"]["name"] == policy)
    for part in path:
        place = place[part]
    assert place["podSelector"] == {"matchLabels": {"app": "x"}}
