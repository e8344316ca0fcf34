"""A real Prometheus and a real Pushgateway on free loopback ports, as Debian packages them."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.minio_server import skip_or_fail

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm/siloflow/rules/siloflow.yaml"
START_SECONDS = 20


def tools() -> Path:
    """Folder of the binaries, or the end of the test."""
    found = subprocess.run([ROOT / "tests/get-prometheus", "--cached"], capture_output=True, text=True, check=False)
    if found.returncode:
        skip_or_fail(f"PROMETHEUS TESTS: {found.stderr.strip()}")
    return Path(found.stdout.strip())


def promtool(*words: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([tools() / "promtool", *words], input=given, capture_output=True, text=True, timeout=120, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fetch(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@dataclass(frozen=True)
class Prometheus:
    url: str
    gateway: str

    def ask(self, path: str, **values: Any) -> Any:
        return json.loads(fetch(f"{self.url}/api/v1/{path}?{urlencode(values)}"))["data"]

    def now(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def value(self, query: str) -> float:
        (only,) = self.now(query)
        return float(only["value"][1])

    def over(self, query: str, since: float) -> list[float]:
        """Every number that the query had since then, second by second."""
        found = self.ask("query_range", query=query, start=since, end=time.time(), step=1)["result"]
        return [number for row in found for _, text in row["values"] if math.isfinite(number := float(text))]

    def wait_for(self, query: str, seconds: float = 15) -> list[dict[str, Any]]:
        give_up = time.monotonic() + seconds
        while not (found := self.now(query)) and time.monotonic() < give_up:
            time.sleep(0.2)
        assert found, f"{query}: nothing within {seconds} s"
        return found


@contextmanager
def _process(command: Sequence[str | Path], ready: str, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, env={**os.environ})
    try:
        give_up = time.monotonic() + START_SECONDS
        while True:
            try:
                fetch(ready)
                break
            except OSError:
                if time.monotonic() > give_up or process.poll() is not None:
                    raise RuntimeError(f"{command[0]}: did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Scrapes `target` and a Pushgateway of its own every second, with our rules."""
    server, gateway = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "siloflow", "static_configs": [{"targets": [target]}]},
            {"job_name": "pushgateway", "honor_labels": True, "static_configs": [{"targets": [gateway]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    binaries = tools()
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address={server}"]
    # Debian's keeps what was pushed in a file for all, unless told otherwise: a test would see what the one before it pushed
    kept = f"--persistence.file={folder}/pushed"
    pushing = [binaries / "prometheus-pushgateway", f"--web.listen-address={gateway}", kept]
    with ExitStack() as stack:
        stack.enter_context(_process(pushing, f"http://{gateway}/-/ready", folder / "gateway.log"))
        stack.enter_context(_process([binaries / "prometheus", *options], f"http://{server}/-/ready", folder / "prometheus.log"))
        yield Prometheus(f"http://{server}", f"http://{gateway}")
