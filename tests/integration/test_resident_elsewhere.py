"""Silos in other places: every role a process with an environment, a folder and keys of its own, and a real MinIO between them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.federations import DOMAINS, TARGET, Run, draw_pictures, values
from tests.minio_server import MinioServer
from tests.pipelines.commands import SILOFLOW, command, finish


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures") / "images")


class Place:
    """A machine, as far as a role can tell: its own home, its own images, its own keys, nothing of the others."""

    def __init__(self, folder: Path, role: str, domain: str | None, pictures: Path, keys: Path) -> None:
        self.role, self.folder = role, folder / role
        self.folder.mkdir()
        shutil.copytree(keys / role, self.folder / "keys" / role)
        if domain is not None:
            shutil.copytree(pictures / domain, self.folder / "images" / domain)
            (self.folder / "images" / "classes.txt").write_text("across\ndown\nsquare\n")

    def start(self, *words: str) -> subprocess.Popen[str]:
        own = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "SILOFLOW_CREDENTIALS": str(self.folder / "keys"), "OMP_NUM_THREADS": "1",
            "SILOFLOW_DATA": str(self.folder / "images"), "SILOFLOW_CACHE": str(self.folder / "cache"), "SILOFLOW_STORE_ATTEMPTS": "10",
        }  # fmt: skip
        return subprocess.Popen([SILOFLOW, *words], cwd=self.folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_roles_with_nothing_but_an_address_and_keys(s3_url: str, minio: MinioServer, pictures: Path, tmp_path: Path) -> None:
    silos = tmp_path / "silos.yaml"
    silos.write_text(json.dumps({"store": s3_url, "silos": [{"name": name} for name in DOMAINS]}))
    code, _, said = finish(
        command("store", "provision", silos, "--credentials", tmp_path / "keys", env={**os.environ, **minio.environment})
    )
    assert code == 0, said
    spec = values(Path("/nowhere"), "fedccrl")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    place = {name: Place(tmp_path, name, name, pictures, tmp_path / "keys") for name in DOMAINS}
    place |= {role: Place(tmp_path, role, TARGET, pictures, tmp_path / "keys") for role in ("server", "evaluator")}
    store, _, options = s3_url.partition("?")
    address = f"{store}/run-1" + (f"?{options}" if options else "")
    running = [place[name].start("silo", address, "--name", name) for name in DOMAINS]  # first: they wait for the plan
    running.append(place["evaluator"].start("evaluator", address))
    chosen = [word for name in DOMAINS for word in ("--silo", name)]
    server = place["server"].start("server", address, *chosen, "--spec", str(tmp_path / "spec.yaml"), "--json")
    running.append(server)
    try:
        ended = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * 5, [err for _, err in ended]
    result = json.loads(ended[-1][0])
    assert result["digest"] == Run(values(pictures, "fedccrl"), tmp_path / "local").digest
    assert result["accuracy"]["last"] is not None
    # a silo's folder holds its own state only, and its keys open nothing of another's
    stranger = place["ash"].start("silo", address, "--name", "birch", "--wait", "0")
    _, said = stranger.communicate(timeout=60)
    assert (stranger.returncode, said.count("\n")) == (4, 1), said
