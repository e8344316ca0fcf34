"""`siloflow submit`: what reaches the server, and what a person reads when it refuses."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from tests.pipelines.commands import command, finish, invoke
from tests.pipelines.kfp_server import KfpServer, package

UNKNOWN = "Failed to create a pipeline version: InvalidInputError: unknown template format: pipeline spec is invalid"


def submit(kfp: KfpServer, packaged: Path, *words: str | Path) -> Result:
    return invoke("submit", packaged, "--host", kfp.url, *words)


def refused(result: Result, code: int, *parts: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in result.output
    for part in parts:
        assert part in last


def test_a_package_becomes_a_pipeline_a_version_and_a_run(kfp: KfpServer, packaged: Path) -> None:
    result = submit(kfp, packaged, "--json", "--set", "rounds=3", "--set", "hyper.lr=1e-3", "--set", "target=15", "--name", "first")
    assert result.exit_code == 0, result.stderr
    about = json.loads(result.stdout)
    [pipeline], [version], [run], [experiment] = (
        list(place.values()) for place in (kfp.pipelines, kfp.versions, kfp.runs, kfp.experiments)
    )
    assert pipeline["display_name"] == "siloflow-test"
    assert experiment["display_name"] == "siloflow"
    assert run["display_name"] == "first"
    assert run["experiment_id"] == experiment["experiment_id"]
    assert run["pipeline_version_reference"] == {key: version[key] for key in ("pipeline_id", "pipeline_version_id")}
    filled = {"rounds": 3, "target": "15", "overrides": '{"hyper": {"lr": 0.001}}'}
    assert run["runtime_config"]["parameters"] == {"algorithm": "fedavg", "dataset": "", "seed": 0, "spec": "", "run": "", **filled}
    assert about["run_id"] == run["run_id"]
    assert about["new"] is True
    assert about["parameters"] == run["runtime_config"]["parameters"]
    assert version["content"] == packaged.read_text(encoding="utf-8")


def test_the_same_package_is_not_uploaded_twice_and_another_is_a_second_version(kfp: KfpServer, packaged: Path) -> None:
    first = json.loads(submit(kfp, packaged, "--json").stdout)
    again = submit(kfp, packaged, "--json")
    assert "there already" in again.stderr
    assert json.loads(again.stdout)["version_id"] == first["version_id"]
    packaged.write_text(packaged.read_text(encoding="utf-8") + "# another\n", encoding="utf-8")
    other = json.loads(submit(kfp, packaged, "--json").stdout)
    assert other["pipeline_id"] == first["pipeline_id"]
    assert other["version"] != first["version"]
    assert len(kfp.pipelines) == 1
    assert len(kfp.versions) == 2
    assert len(kfp.runs) == 3
    assert len(kfp.experiments) == 1


def test_a_spec_file_and_fields_the_form_has_not(kfp: KfpServer, packaged: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("algorithm: fedprox\nrounds: 4\n", encoding="utf-8")
    words = ["--set", "dataset={name: folder, path: /data}", "--set", "overrides=hyper.lr=0.5", "--set", "quorum=0.5"]
    submit(kfp, packaged, "--spec", spec, *words)
    [run] = kfp.runs.values()
    sent = run["runtime_config"]["parameters"]
    assert sent["spec"] == spec.read_text(encoding="utf-8")
    assert json.loads(sent["overrides"]) == {"hyper": {"lr": 0.5}, "dataset": {"name": "folder", "path": "/data"}, "quorum": 0.5}
    assert sent["dataset"] == ""


def test_lists_of_a_benchmark(kfp: KfpServer, tmp_path: Path) -> None:
    path = tmp_path / "benchmark.yaml"
    path.write_text(yaml.safe_dump(package(algorithms=("LIST", ["fedavg"]))), encoding="utf-8")
    assert submit(kfp, path, "--set", "algorithms=fedavg, fedccrl").exit_code == 0
    [run] = kfp.runs.values()
    assert run["runtime_config"]["parameters"]["algorithms"] == ["fedavg", "fedccrl"]
    refused(submit(kfp, path, "--set", "algorithms=[fedavg, fedcrl]"), 2, "did you mean 'fedccrl'")


@pytest.mark.parametrize(("given", "sent"), [("0 3 * * *", "0 0 3 * * *"), ("*/10 0 3 * * MON", "*/10 0 3 * * MON")])
def test_a_calendar(kfp: KfpServer, packaged: Path, given: str, sent: str) -> None:
    result = submit(kfp, packaged, "--cron", given, "--set", "rounds=1", "--json")
    assert result.exit_code == 0, result.stderr
    [made] = kfp.recurring
    assert made["trigger"] == {"cron_schedule": {"cron": sent}}
    assert made["mode"] == "ENABLE"
    assert made["no_catchup"] is True
    assert made["runtime_config"]["parameters"]["rounds"] == 1
    assert json.loads(result.stdout)["recurring_run_id"]
    assert kfp.runs == {}


def test_experiment_and_service_account(kfp: KfpServer, packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", kfp.url)
    monkeypatch.setenv("KF_PIPELINES_UI_ENDPOINT", "https://kubeflow.example/pipeline/")
    monkeypatch.setenv("KF_PIPELINES_DEFAULT_EXPERIMENT_NAME", "by default")
    first = invoke("submit", packaged, "--service-account", "trainer")
    invoke("submit", packaged, "--experiment", "named")
    monkeypatch.setenv("KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME", "by decree")
    invoke("submit", packaged, "--experiment", "named")
    assert [entry["display_name"] for entry in kfp.experiments.values()] == ["by default", "named", "by decree"]
    run = next(iter(kfp.runs.values()))
    assert run["service_account"] == "trainer"
    assert f"https://kubeflow.example/pipeline/#/runs/details/{run['run_id']}" in first.stdout


def test_a_server_with_many_users_needs_a_namespace(kfp: KfpServer, packaged: Path, tmp_path: Path) -> None:
    kfp.user = True
    refused(submit(kfp, packaged), 2, "--namespace")
    assert submit(kfp, packaged, "--namespace", "team").exit_code == 0
    assert next(iter(kfp.experiments.values()))["namespace"] == "team"
    context = tmp_path / ".config" / "kfp" / "context.json"
    context.parent.mkdir(parents=True)
    context.write_text('{"namespace": "kept"}', encoding="utf-8")
    submit(kfp, packaged, "--experiment", "another")
    assert list(kfp.experiments.values())[-1]["namespace"] == "kept"


# ---- who we are


def test_tokens(kfp: KfpServer, packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kfp.token = "s3cr3t"
    (tmp_path / "token").write_text("s3cr3t\n", encoding="utf-8")
    refused(submit(kfp, packaged), 4, "401", "no user identity header", "--token-file")
    refused(submit(kfp, packaged, "--token", "wrong"), 4, "401")
    assert submit(kfp, packaged, "--token", "s3cr3t").exit_code == 0
    assert submit(kfp, packaged, "--token-file", tmp_path / "token").exit_code == 0
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    assert submit(kfp, packaged).exit_code == 0
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "gone"))
    refused(submit(kfp, packaged), 2, "KF_PIPELINES_SA_TOKEN_PATH", "cannot be read")
    (tmp_path / "token").write_text("two words", encoding="utf-8")
    result = submit(kfp, packaged, "--token-file", tmp_path / "token")
    refused(result, 2, "expected one bearer token")
    assert "two words" not in result.stderr


# ---- refusals

REFUSALS: dict[str, tuple[str, int, Any, int, tuple[str, ...]]] = {
    "not known": ("healthz", 401, {"error": "no"}, 4, ("401", "--token")),
    "not allowed": (
        "POST /apis/v2beta1/runs",
        403,
        {"message": "User x is not authorized"},
        4,
        ("403", "User x is not authorized", "ask for"),
    ),
    "login page": ("healthz", 302, "", 4, ("wants a login", "--token")),
    "broken": ("POST /apis/v2beta1/runs", 500, {"message": "database\n is gone"}, 4, ("500: database is gone", "ml-pipeline")),
    "no KFP": ("healthz", 200, "<html>welcome</html>", 4, ("expected JSON", "<html>", "--host")),
    "no KFP here": ("healthz", 404, "<html>nginx</html>", 2, ("an HTML page", "--host")),
    "a list": ("healthz", 200, "[1]", 4, ("expected JSON",)),
    "unknown field": ("upload_version", 500, {"error_message": UNKNOWN}, 2, ("spec is invalid", "siloflow compile --server 2.14")),
    "named field": ("upload_version", 400, {"error": '(line 1:1185): unknown field "literals"'}, 2, ("literals", "--server 2.14")),
    "full disk": ("upload_version", 500, {"error_message": "disk full"}, 4, ("disk full",)),
    "bad calendar": ("recurringruns", 400, {"message": "Schedule cron is not a supported format"}, 2, ("not a supported format",)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_one_line(kfp: KfpServer, packaged: Path, name: str) -> None:
    where, status, body, code, parts = REFUSALS[name]
    kfp.failing[where] = (status, body if isinstance(body, str) else json.dumps(body))
    refused(submit(kfp, packaged, *(["--cron", "0 3 * * *"] if "recurring" in where else [])), code, *parts)


def test_a_pipeline_whose_only_version_is_refused_does_not_stay(kfp: KfpServer, packaged: Path) -> None:
    kfp.failing["upload_version"] = (400, json.dumps({"error_message": UNKNOWN}))
    submit(kfp, packaged)
    assert kfp.pipelines == {}
    del kfp.failing["upload_version"]
    submit(kfp, packaged)
    kfp.failing["upload_version"] = (400, json.dumps({"error_message": UNKNOWN}))
    packaged.write_text(packaged.read_text(encoding="utf-8") + "# another\n", encoding="utf-8")
    assert submit(kfp, packaged).exit_code == 2
    assert len(kfp.pipelines) == 1


def test_nobody_there(packaged: Path) -> None:
    """As the installed command: what libraries log of their own would be seen here."""
    with socket.socket() as taken:  # bound, never listening: nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        code, out, err = finish(command("submit", packaged, "--host", f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert (code, out) == (4, "")
    [line] = err.splitlines()
    assert "connection refused" in line
    assert "--host" in line


def test_no_host_at_all(packaged: Path) -> None:
    refused(invoke("submit", packaged), 2, "--host", "KF_PIPELINES_ENDPOINT", "KUBECONFIG")


def test_plain_http_behind_https(kfp: KfpServer, packaged: Path, tmp_path: Path) -> None:
    refused(invoke("submit", packaged, "--host", kfp.url.replace("http", "https")), 4, "TLS", "--ca")
    refused(submit(kfp, packaged, "--ca", tmp_path / "none.pem"), 2, "--ca", "PEM")
    refused(submit(kfp, packaged, "--ca", packaged), 2, "--ca", "PEM")


@pytest.mark.parametrize("host", ["http://", "ftp://x", "http://a:b@x", "http://x y", "http://x:notaport", "http://[::1"])
def test_hosts_that_are_none(packaged: Path, host: str) -> None:
    refused(invoke("submit", packaged, "--host", host), 2, "--host", "expected http(s)")


# ---- input

WRONG: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "no value": (["--set", "rounds"], ("expected field=value",)),
    "no number": (["--set", "rounds=many"], ("expected a whole number", "'many'")),
    "half a round": (["--set", "rounds=1.5"], ("expected a whole number",)),
    "algorithm": (["--set", "algorithm=fedcrl"], ("did you mean 'fedccrl'",)),
    "field": (["--set", "round=3"], ("did you mean 'rounds'",)),
    "not YAML": (["--set", "hyper={a"], ("not valid YAML",)),
    "overrides": (["--set", "overrides=[1, 2]", "--set", "quorum=1"], ("overrides",)),
    "cron of three": (["--cron", "1 2 3"], ("five fields",)),
    "cron of words": (["--cron", "every day at 3 o'clock please"], ("five fields",)),
    "cron and watch": (["--cron", "0 3 * * *", "--watch"], ("--watch and --cron",)),
    "cron of one run": (["--cron", "0 3 * * *", "--set", "run=mine"], ("name of its own",)),
    "no spec": (["--spec", "none.yaml"], ("none.yaml", "cannot be read")),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_never_reach_the_server(kfp: KfpServer, packaged: Path, name: str) -> None:
    words, parts = WRONG[name]
    refused(submit(kfp, packaged, *words), 2, *parts)
    assert kfp.asked == []


PACKAGES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("expected a compiled pipeline",)),
    "silos file": (b"store: s3://x/y\nsilos: [{name: a}]\n", ("expected a compiled pipeline", "siloflow compile")),
    "broken": (b"a: [1\nb: 2", ("not valid YAML at line 2",)),
    "binary": (b"\xff\xfe\x00", ("found no text",)),
    "control characters": (b"a: \x07", ("not valid YAML",)),
    "deep": (b"[" * 100_000, ("more than 100 levels",)),
    "deep blocks": (b"- " * 100_000 + b"1", ("more than 100 levels",)),
    "bomb": (b"a: &a [1, 1]\nb: &b [*a, *a]\n", ("an alias",)),
    "names a list": (b"pipelineInfo: {name: [1]}\nroot: 3\n", ("expected a compiled pipeline",)),
    "manifest": (b"kind: Pipeline\n---\nkind: PipelineVersion\n", ("kubectl",)),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_no_package(kfp: KfpServer, tmp_path: Path, name: str) -> None:
    content, parts = PACKAGES[name]
    path = tmp_path / "package.yaml"
    path.write_bytes(content)
    refused(submit(kfp, path), 2, f"package {path}", *parts)
    assert kfp.asked == []


def test_no_package(kfp: KfpServer, tmp_path: Path) -> None:
    refused(submit(kfp, tmp_path / "none.yaml"), 2, "cannot be read", "siloflow compile")
    refused(submit(kfp, tmp_path), 2, "cannot be read")


@pytest.mark.parametrize(
    ("description", "words"),
    [("Someone's pipeline", "not compiled by siloflow"), ("Ours.\n\nsiloflow 0.0.9", "compiled by siloflow 0.0.9, this is")],
)
def test_packages_of_others_are_warned_about(kfp: KfpServer, tmp_path: Path, description: str, words: str) -> None:
    path = tmp_path / "package.yaml"
    path.write_text(yaml.safe_dump(package(description)), encoding="utf-8")
    result = submit(kfp, path, "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: ")
    assert words in result.stderr
    assert len(kfp.runs) == 1


def test_a_recurring_run_that_may_be_skipped_is_warned_about(kfp: KfpServer, tmp_path: Path, packaged: Path) -> None:
    cached = package()
    cached["root"]["dag"]["tasks"]["plan-run"]["cachingOptions"] = {"enableCache": True}
    path = tmp_path / "cached.yaml"
    path.write_text(yaml.safe_dump(cached), encoding="utf-8")
    assert "may skip plan-run" in submit(kfp, path, "--cron", "0 3 * * *").stderr
    assert "warning" not in submit(kfp, packaged, "--cron", "0 3 * * *").stderr


def test_without_overrides_in_the_form_a_setting_has_no_place(kfp: KfpServer, tmp_path: Path) -> None:
    foreign = package("Someone's pipeline")
    del foreign["root"]["inputDefinitions"]["parameters"]["overrides"]
    path = tmp_path / "package.yaml"
    path.write_text(yaml.safe_dump(foreign), encoding="utf-8")
    refused(submit(kfp, path, "--set", "round=1"), 2, "--set round=1", "did you mean 'rounds'")
