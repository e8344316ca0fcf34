"""A small server that speaks as much of KFP's v2beta1 interface as `siloflow submit` and its sisters use, on a loopback port.

Its answers have the shape of those of a real 2.14 server (tests/cluster/test_submit.py asks that one).
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import ssl
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
WORKFLOW = "siloflow-test-abc12"


def moment(second: int) -> str:
    return (BEGAN + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Workflow:
    """What Argo knows of a run at one moment. Without a loop's number, a task is at the top."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    packed: bool = False

    def add(self, path: str, kind: str, template: str, phase: str, message: str = "") -> str:
        """Returns the name of its pod."""
        number, ended = 1000 + len(self.nodes), phase in ("Succeeded", "Failed")
        self.nodes[f"{WORKFLOW}-{number}"] = {
            "id": f"{WORKFLOW}-{number}", "name": f"{WORKFLOW}.{path}", "displayName": path.split(".")[-1], "type": kind, "phase": phase,
            "templateName": template, "startedAt": moment(number), "finishedAt": moment(number + 1) if ended else None, "message": message,
        }  # fmt: skip
        return f"{WORKFLOW}-{template}-{number}"

    def task(self, key: str, *attempts: str, at: int | None = None, message: str = "") -> list[str]:
        """A driver, the task, a pod for each attempt; returns the names of the pods that work."""
        within = "root" if at is None else f"root.for-loop-1.iteration-iterations({at}:{at}).iteration-item"
        self.add(f"{within}.{key}-driver", "Pod", "system-container-driver", "Succeeded" if attempts else "Running")
        if not attempts:
            return []
        self.add(f"{within}.{key}", "DAG", "system-container-executor", attempts[-1] if attempts[-1] != "Pending" else "Running")
        template = "retry-system-container-impl"
        if len(attempts) == 1:
            return [self.add(f"{within}.{key}.executor", "Pod", template, attempts[0], message)]
        self.add(f"{within}.{key}.executor", "Retry", template, attempts[-1])
        return [self.add(f"{within}.{key}.executor({place})", "Pod", template, one) for place, one in enumerate(attempts)]

    def manifest(self) -> str:
        nodes: dict[str, Any] = {"nodes": self.nodes}
        if self.packed:
            nodes = {"compressedNodes": base64.b64encode(gzip.compress(json.dumps(self.nodes).encode())).decode()}
        return json.dumps({"metadata": {"name": WORKFLOW}, "status": nodes})


@dataclass
class KfpServer:
    url: str = ""
    token: str | None = None
    user: bool = False  # many users: a namespace is asked for
    failing: dict[str, tuple[int, str]] = field(default_factory=dict)  # by a part of `METHOD path`
    pipelines: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    recurring: list[dict[str, Any]] = field(default_factory=list)
    moments: list[tuple[str, Workflow]] = field(default_factory=list)  # what the following looks at a run show; the last one stays
    logs: dict[str, str] = field(default_factory=dict)  # by pod
    pods: dict[str, str] = field(default_factory=dict)  # by pod, what the web UI has
    archive: dict[str, str] = field(default_factory=dict)  # by node, what Argo has put away
    asked: list[str] = field(default_factory=list)

    # ---- the interface

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        for pattern, failure in self.failing.items():
            if pattern in f"{method} {path}":
                return failure
        for known, pattern, act in self.ROUTES:
            found = re.fullmatch(pattern, path)
            if known == method and found:
                return act(self, query, body, *found.groups())
        return 404, json.dumps({"error": "Not Found", "code": 5, "message": "Not Found"})

    def healthz(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        return 200, {"commit_sha": "unknown", "tag_name": "2.14.3", "multi_user": self.user}

    def create_pipeline(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        return 200, self._keep(self.pipelines, "pipeline_id", json.loads(body))

    def list_pipelines(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        return 200, self._list("pipelines", self.pipelines, query)

    def get_pipeline(self, query: dict[str, str], body: bytes, key: str) -> tuple[int, Any]:
        return self._found(self.pipelines, key)

    def delete_pipeline(self, query: dict[str, str], body: bytes, key: str) -> tuple[int, Any]:
        del self.pipelines[key]
        return 200, {}

    def upload_version(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        content = body.split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--", 1)[0]
        spec, *settings = yaml.safe_load_all(content)
        entry = {"display_name": query["name"], "name": query["name"], "pipeline_id": query["pipelineid"], "content": content.decode()}
        entry["pipeline_spec"] = {"pipeline_spec": spec, "platform_spec": settings[0]} if settings else spec
        return 200, self._keep(self.versions, "pipeline_version_id", entry)

    def list_versions(self, query: dict[str, str], body: bytes, key: str) -> tuple[int, Any]:
        own = {name: entry for name, entry in self.versions.items() if entry["pipeline_id"] == key}
        return 200, self._list("pipeline_versions", own, query)

    def get_version(self, query: dict[str, str], body: bytes, pipeline: str, key: str) -> tuple[int, Any]:
        return self._found(self.versions, key)

    def list_experiments(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        return 200, self._list("experiments", self.experiments, query)

    def create_experiment(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        return 200, self._keep(self.experiments, "experiment_id", json.loads(body))

    def create_run(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        entry = {**json.loads(body), "state": "PENDING", "created_at": moment(len(self.runs))}
        return 200, self._keep(self.runs, "run_id", entry)

    def list_runs(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        newest = dict(sorted(self.runs.items(), key=lambda item: item[1]["created_at"], reverse=True))
        return 200, self._list("runs", newest, query)

    def get_run(self, query: dict[str, str], body: bytes, key: str) -> tuple[int, Any]:
        status, run = self._found(self.runs, key)
        if status == 200 and self.moments:
            run["state"] = self.moments[0][0]
        return status, run

    def get_run_v1(self, query: dict[str, str], body: bytes, key: str) -> tuple[int, Any]:
        workflow = self.moments[0][1].manifest() if self.moments else ""
        if len(self.moments) > 1:
            self.moments.pop(0)
        return 200, {"run": {"id": key}, "pipeline_runtime": {"workflow_manifest": workflow}}

    def terminate(self, query: dict[str, str], body: bytes, key: str) -> tuple[int, Any]:
        self.runs[key]["state"] = "CANCELING"
        return 200, {}

    def create_recurring(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        self.recurring.append(json.loads(body))
        return 200, {"recurring_run_id": str(uuid.uuid4()), **self.recurring[-1]}

    def log_of(self, query: dict[str, str], body: bytes, run: str, pod: str) -> tuple[int, Any]:
        if pod in self.logs:
            return 200, self.logs[pod]
        return 200, ""  # so says a 2.14 server of what it may not read

    def log_in_the_interface(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        if query["podname"] in self.pods:
            return 200, self.pods[query["podname"]]
        return 500, "Could not get main container logs: S3Error: The specified key does not exist."

    def artifact(self, query: dict[str, str], body: bytes, run: str, node: str) -> tuple[int, Any]:
        if node in self.archive:
            return 200, {"data": base64.b64encode(self.archive[node].encode()).decode()}
        return 404, {"code": 5, "message": "failed to read artifact"}

    ROUTES = (
        ("GET", "/apis/v2beta1/healthz", healthz),
        ("POST", "/apis/v2beta1/pipelines", create_pipeline),
        ("GET", "/apis/v2beta1/pipelines", list_pipelines),
        ("POST", "/apis/v2beta1/pipelines/upload_version", upload_version),
        ("GET", "/apis/v2beta1/pipelines/([^/]+)", get_pipeline),
        ("DELETE", "/apis/v2beta1/pipelines/([^/]+)", delete_pipeline),
        ("GET", "/apis/v2beta1/pipelines/([^/]+)/versions", list_versions),
        ("GET", "/apis/v2beta1/pipelines/([^/]+)/versions/([^/]+)", get_version),
        ("GET", "/apis/v2beta1/experiments", list_experiments),
        ("POST", "/apis/v2beta1/experiments", create_experiment),
        ("POST", "/apis/v2beta1/runs", create_run),
        ("GET", "/apis/v2beta1/runs", list_runs),
        ("GET", "/apis/v2beta1/runs/([^/:]+)", get_run),
        ("GET", "/apis/v1beta1/runs/([^/:]+)", get_run_v1),
        ("POST", "/apis/v2beta1/runs/([^/:]+):terminate", terminate),
        ("POST", "/apis/v2beta1/recurringruns", create_recurring),
        ("GET", "/apis/v1alpha1/runs/([^/]+)/nodes/([^/]+)/log", log_of),
        ("GET", "/apis/v1beta1/runs/([^/]+)/nodes/([^/]+)/artifacts/main-logs:read", artifact),
        ("GET", "/k8s/pod/logs", log_in_the_interface),
    )

    # ---- what it keeps

    def _keep(self, place: dict[str, dict[str, Any]], key: str, entry: dict[str, Any]) -> dict[str, Any]:
        identity = str(uuid.uuid4())
        place[identity] = {key: identity, **entry}
        return place[identity]

    def _found(self, place: dict[str, dict[str, Any]], key: str) -> tuple[int, Any]:
        if key in place:
            return 200, place[key]
        return 404, {"error": f"{key} not found", "code": 5, "message": f"ResourceNotFoundError: {key} not found"}

    def _list(self, name: str, place: dict[str, dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        if self.user and name != "pipeline_versions" and not query.get("namespace"):
            return {}
        predicates = json.loads(query.get("filter") or "{}").get("predicates", [])
        chosen = [entry for entry in place.values() if all(entry.get(one["key"]) == one["string_value"] for one in predicates)]
        size, first = int(query.get("page_size", 10)), int(query.get("page_token") or 0)
        following = {"next_page_token": str(first + size)} if len(chosen) > first + size else {}
        return {name: chosen[first : first + size], "total_size": len(chosen), **following} if chosen else {}


@contextmanager
def running_kfp(tls: ssl.SSLContext | None = None) -> Iterator[KfpServer]:
    kfp = KfpServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 1  # a client that speaks TLS is not waited for

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kfp.asked.append(f"{self.command} {parts.path}")
            if kfp.token is not None and self.headers.get("Authorization") != f"Bearer {kfp.token}":
                status, answer = 401, {"error": "Unauthenticated", "message": "Request header error: there is no user identity header"}
            else:
                status, answer = kfp.answer(self.command, parts.path, {key: one[0] for key, one in parse_qs(parts.query).items()}, body)
            content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if 300 <= status < 400:
                self.send_header("Location", "/dex/auth")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _handle

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    kfp.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    try:
        yield kfp
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# ---- a package for it

FORM = {
    "algorithm": ("STRING", "fedavg"), "dataset": ("STRING", ""), "target": ("STRING", "paper"), "rounds": ("NUMBER_INTEGER", 2.0),
    "seed": ("NUMBER_INTEGER", 0.0), "overrides": ("STRING", ""), "spec": ("STRING", ""), "run": ("STRING", ""),
}  # fmt: skip


def task(name: str, component: str) -> dict[str, Any]:
    return {"taskInfo": {"name": name}, "componentRef": {"name": f"comp-{component}"}, "cachingOptions": {}}


def package(description: str = "A federation.\n\nsiloflow 0.1.0", **form: tuple[str, Any]) -> dict[str, Any]:
    """A pipeline as the compiler writes it: a plan, a loop with two silos and a server, a report."""
    parameters = {name: {"parameterType": kind, "defaultValue": value} for name, (kind, value) in {**FORM, **form}.items()}
    inner = {"silo-step": task("a", "silo-step"), "silo-step-2": task("b", "silo-step-2"), "server-step": task("server", "server-step")}
    outer = {"plan-run": task("plan", "plan-run"), "for-loop-1": task("rounds", "for-loop-1"), "report": task("report", "report")}
    leaves = ("plan-run", "report", "silo-step", "silo-step-2", "server-step")
    return {
        "pipelineInfo": {"name": "siloflow-test", "description": description},
        "components": {
            "comp-for-loop-1": {"dag": {"tasks": inner}},
            **{f"comp-{leaf}": {"executorLabel": f"exec-{leaf}"} for leaf in leaves},
        },
        "root": {"dag": {"tasks": outer}, "inputDefinitions": {"parameters": parameters}},
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.17.0",
    }
