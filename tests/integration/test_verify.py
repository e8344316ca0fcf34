"""`siloflow store verify` on a real MinIO server: quiet when all is right, and it names what is not. Keys made by somebody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from minio.credentials.credentials import Credentials
from typer.testing import Result

from components.store.access import write_keys
from tests.integration.test_permissions import EXPECTED
from tests.integration.test_provision import Site
from tests.integration.test_provisioned_run import certify
from tests.minio_server import MinioServer, running_minio
from tests.pipelines.commands import invoke


@pytest.fixture
def site(minio: MinioServer, s3_url: str, tmp_path: Path) -> Site:
    site = Site(minio, s3_url, tmp_path)
    site.provision()
    return site


def verified(site: Site, *words: str, code: int = 0) -> Result:
    answer = invoke("store", "verify", site.root / "silos.yaml", "--credentials", site.folder, *words)
    assert answer.exit_code == code, answer.output
    assert len(answer.stderr.splitlines()) == 1
    return answer


def loosen(site: Site, role: str, right: str, resource: str) -> None:
    name = f"{site.prefix}-{role}"
    policy = json.loads(site.admin.policy_info(name))
    next(one for one in policy["Statement"] if one.get("Sid") == right.title())["Resource"].append(f"arn:aws:s3:::{site.prefix}-{resource}")
    site.admin.policy_add(name, policy=policy)


def objects(site: Site) -> list[str]:
    client = site.client()
    names = [bucket.name for bucket in client.list_buckets() if bucket.name.startswith(site.prefix)]
    return [str(one.object_name) for name in names for one in client.list_objects(name, recursive=True)]


def test_what_provisioning_made_is_right(site: Site) -> None:
    answer = verified(site)
    assert "all 120 tries ended as they must" in answer.stderr  # (4 roles and nobody) x 6 places x 4 rights
    assert objects(site) == []
    table = {tuple(line.split()[:2]): [cell == "yes" for cell in line.split()[2:]] for line in answer.stdout.splitlines()[1:]}
    # Not from the product's table, but from the one that is written down by hand.
    for (bucket, folder), rights in EXPECTED["server"].items():
        assert table["server", "/".join(filter(None, [bucket, folder]))] == [right in rights for right in ("list", "get", "put", "delete")]
    assert table["a", "silo-b"] == table["nobody", "global"] == [False] * 4


@pytest.mark.parametrize(
    ("role", "right", "resource", "named"),
    [
        ("silo-a", "get", "silo-b/*", "a: get in silo-b: expected AccessDenied, found it allowed (2 of 120"),
        ("silo-b", "put", "global/*", "b: put in global: expected AccessDenied, found it allowed (1 of 120"),
        ("evaluator", "list", "silo-a", "evaluator: list in silo-a: expected AccessDenied, found it allowed (2 of 120"),
    ],
)
def test_a_loosened_policy_is_named(site: Site, role: str, right: str, resource: str, named: str) -> None:
    loosen(site, role, right, resource)
    assert named in verified(site, code=4).stderr
    assert objects(site) == []


def test_a_policy_that_is_too_strict_is_named(site: Site) -> None:
    name = f"{site.prefix}-silo-a"
    policy = json.loads(site.admin.policy_info(name))
    policy["Statement"] = [one for one in policy["Statement"] if one.get("Sid") != "Put"]
    site.admin.policy_add(name, policy=policy)
    assert "a: put in silo-a: expected allowed, found AccessDenied" in verified(site, code=4).stderr


def test_a_public_bucket_is_named(site: Site) -> None:
    bucket = f"{site.prefix}-silo-a"
    everybody: dict[str, Any] = {
        "Effect": "Allow",
        "Principal": {"AWS": ["*"]},
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{bucket}/*"],
    }
    site.client().set_bucket_policy(bucket, json.dumps({"Version": "2012-10-17", "Statement": [everybody]}))
    answer = verified(site, code=4)
    assert ": get in silo-a: expected AccessDenied, found it allowed" in answer.stderr
    assert "yes WRONG" in next(line for line in answer.stdout.splitlines() if line.startswith("nobody") and "silo-a " in line)


def test_as_one_silo_with_its_keys_only(site: Site) -> None:
    for role in ("b", "server", "evaluator"):
        for file in (site.folder / role).iterdir():
            file.unlink()
    assert "keys/server: expected the files access_key and secret_key, found none" in verified(site, code=2).stderr
    assert "all 48 tries ended as they must" in verified(site, "--role", "a").stderr
    assert "role 'c': expected one of server, evaluator, a, b" in verified(site, "--role", "c", code=2).stderr


def test_unknown_keys_and_missing_buckets_are_no_denials(site: Site) -> None:
    write_keys(site.folder / "a", Credentials("unknown-key", "unknown-secret"))
    assert "failed: InvalidAccessKeyId; check the access key" in verified(site, code=4).stderr
    site.provision("--rotate", "a")
    for name in ("silo-b", "global"):
        site.client().remove_bucket(f"{site.prefix}-{name}")
    assert "failed: NoSuchBucket; prepare the store first" in verified(site, code=4).stderr


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, certificates = certify(tmp_path)
    with running_minio(certificates=certificates) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        site = Site(server, f"s3://{server.endpoint}/fed?tls=true", tmp_path)
        monkeypatch.setenv("SILOFLOW_CA", str(ca))
        site.provision()
        assert "all 120 tries ended as they must" in verified(site).stderr
        monkeypatch.delenv("SILOFLOW_CA")
        assert "no TLS connection; set SILOFLOW_CA" in verified(site, code=4).stderr


# ---- keys that somebody else makes


def test_given_keys_win(site: Site) -> None:
    """As in the chart: the Secret was deleted and made anew, provisioning follows, the old keys are worth nothing."""
    before, old = site.states("--adopt"), site.client("a")
    assert set(before.values()) == {"unchanged"}
    write_keys(site.folder / "a", Credentials(f"{site.prefix}-new-a", "new-secret-of-a"))
    assert "found others" in site.refused(2)
    after = site.states("--adopt")
    assert {name: state for name, state in after.items() if state != "unchanged"} == {("user", "a"): "rotated"}
    assert (site.works(old), site.works(site.client("a"))) == ("InvalidAccessKeyId", "works")
    assert set(site.states("--adopt").values()) == {"unchanged"}
    verified(site)


def test_given_keys_that_are_somebody_elses_are_refused(site: Site) -> None:
    write_keys(site.folder / "a", Credentials(f"{site.prefix}-new-a", "new-secret-of-a"))
    site.states("--adopt")
    write_keys(site.folder / "a", Credentials(f"{site.prefix}-new-a", "another-secret"))
    assert "keys/a: expected a key pair for a in" in site.refused(2, "--adopt")
    write_keys(site.folder / "b", Credentials(f"{site.prefix}-new-a", "new-secret-of-a"))
    write_keys(site.folder / "a", Credentials(f"{site.prefix}-other-a", "other-secret-of-a"))
    assert "found those of a user with another policy; give it a new pair" in site.refused(2, "--adopt")
    for file in (site.folder / "b").iterdir():
        file.unlink()
    assert "keys/b: expected a key pair for b" in site.refused(2, "--adopt")
