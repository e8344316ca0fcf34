"""A real MinIO server on a free loopback port, for tests and benchmarks."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import urllib3

_START_SECONDS = 30


def skip_or_fail(reason: str) -> NoReturn:
    """A person may lack a tool; a build machine may not."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Unavailable(Exception):
    """There is no MinIO binary on this machine, and why."""


@dataclass(frozen=True)
class MinioServer:
    """`endpoint` is host:port; the keys are root's."""

    endpoint: str
    access_key: str
    secret_key: str

    @property
    def environment(self) -> dict[str, str]:
        return {"SILOFLOW_ACCESS_KEY": self.access_key, "SILOFLOW_SECRET_KEY": self.secret_key}


def cached_binary() -> str:
    found = subprocess.run([Path(__file__).with_name("get-minio"), "--cached"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise Unavailable(found.stderr.strip())
    return found.stdout.strip()


@contextmanager
def running_minio(certificates: Path | None = None) -> Iterator[MinioServer]:
    """A server with an empty disk and random keys; stopped, and its data removed, at the end of the block.

    `certificates` holds `public.crt` and `private.key` and turns TLS on.
    """
    binary = cached_binary()
    server = MinioServer(f"127.0.0.1:{_free_port()}", secrets.token_hex(8), secrets.token_hex(16))
    environment = os.environ | {
        "MINIO_ROOT_USER": server.access_key,
        "MINIO_ROOT_PASSWORD": server.secret_key,
        "MINIO_BROWSER": "off",
    }
    with tempfile.TemporaryDirectory(prefix="siloflow-minio-") as folder:
        command = [binary, "server", "--quiet", "--address", server.endpoint, str(Path(folder, "data"))]
        if certificates:
            command += ["--certs-dir", str(certificates)]
        with Path(folder, "log").open("w+b") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                _wait_until_live(process, ("https" if certificates else "http") + f"://{server.endpoint}", log.name)
                yield server
            finally:
                _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_live(process: subprocess.Popen[bytes], url: str, log: str) -> None:
    # The certificate is the test's subject, not this probe's.
    probe = urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False, timeout=2)
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    give_up = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up and process.poll() is None:
        try:
            if probe.request("GET", f"{url}/minio/health/live").status == 200:
                return
        except urllib3.exceptions.HTTPError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"MinIO at {url} is not live after {_START_SECONDS} s: {Path(log).read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
