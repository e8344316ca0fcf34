"""The report as a pod makes it: from a real object store, with the server's own keys, without a run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.federation import Federation
from components.report import write_report
from components.report.gather import gather
from components.report.verdict import compared_with
from components.silo import Role
from components.spec import FederationSpec
from tests.federations import DOMAINS, Run, values
from tests.minio_server import MinioServer
from tests.pipelines.commands import command, finish


def test_the_servers_keys_are_enough(s3_url: str, minio: MinioServer, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "silos.yaml"
    file.write_text(json.dumps({"store": s3_url, "silos": [{"name": name} for name in DOMAINS]}))
    code, _, said = finish(command("store", "provision", file, "--credentials", tmp_path / "keys"))
    assert code == 0, said
    for name in minio.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SILOFLOW_CREDENTIALS", str(tmp_path / "keys"))
    run = Run(values(site / "pictures", rounds=1, store=s3_url), tmp_path / "run")
    run.result()
    spec = FederationSpec.model_validate(run.planned["spec"])
    places = {name: Role(Federation(spec, "run", tmp_path / "empty", name), name) for name in ("server", "evaluator")}
    assert write_report(places["server"], tmp_path / "page.html", evaluator=places["evaluator"]) == []
    page = (tmp_path / "page.html").read_text()
    for figure in ("accuracy", "confusion", "tsne-domain", "weights", "drift", "timeline"):
        assert f'id="fig-{figure}"' in page, figure
    assert not (tmp_path / "empty").exists()
    keys = [path.read_text().strip() for path in (tmp_path / "keys").rglob("*_key")]
    assert len(keys) == 2 * 5 and not any(key in page for key in keys)
    _another_is_compared_with_it(run, s3_url, site, tmp_path)


def _another_is_compared_with_it(fedavg: Run, s3_url: str, site: Path, folder: Path) -> None:
    """Of two runs in one store, in a pod that has neither folder."""
    other = Run(values(site / "pictures", "fedprox", rounds=1, store=s3_url), folder / "other")
    spec = FederationSpec.model_validate(other.result() and other.planned["spec"])
    record = gather(Federation(spec, "other", folder / "empty", "server"))
    found = compared_with(record)
    assert found is not None and (found.where, found.accuracy) == ("run run in the same store", fedavg.result()["accuracy"])
    record.spec = {**record.spec, "seed": 1}
    assert compared_with(record) is None
