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


@dataclass
class MinioServer:
    """`endpoint` is host:port; the keys are root's. It may be killed and started again, with the same port, keys and disk."""

    endpoint: str
    access_key: str
    secret_key: str
    data: Path
    certificates: Path | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {"SILOFLOW_ACCESS_KEY": self.access_key, "SILOFLOW_SECRET_KEY": self.secret_key}

    def start(self) -> None:
        """Returns when it answers."""
        command = [cached_binary(), "server", "--quiet", "--address", self.endpoint, str(self.data)]
        if self.certificates:
            command += ["--certs-dir", str(self.certificates)]
        keys = {"MINIO_ROOT_USER": self.access_key, "MINIO_ROOT_PASSWORD": self.secret_key, "MINIO_BROWSER": "off"}
        log = self.data.with_name(f"{self.data.name}.log")
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, env=os.environ | keys, stdout=output, stderr=subprocess.STDOUT)
        _wait_until_live(self._process, ("https" if self.certificates else "http") + f"://{self.endpoint}", log)

    def kill(self) -> None:
        """SIGKILL; a dead one is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def cached_binary() -> str:
    found = subprocess.run([Path(__file__).with_name("get-minio"), "--cached"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise Unavailable(found.stderr.strip())
    return found.stdout.strip()


@contextmanager
def running_minio(certificates: Path | None = None, data: Path | None = None) -> Iterator[MinioServer]:
    """A server with an empty disk and random keys; stopped, and its data removed, at the end of the block.

    `certificates` holds `public.crt` and `private.key` and turns TLS on. `data` is a folder of the caller's own for its disk.
    """
    cached_binary()  # before anything is made
    with tempfile.TemporaryDirectory(prefix="siloflow-minio-") as folder:
        disk = data or Path(folder, "data")
        server = MinioServer(f"127.0.0.1:{_free_port()}", secrets.token_hex(8), secrets.token_hex(16), disk, certificates)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_live(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
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
    raise RuntimeError(f"MinIO at {url} is not live after {_START_SECONDS} s: {log.read_text()[-2000:]}")
