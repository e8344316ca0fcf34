"""From manifests to series: how many there are, whether they are right, and that nothing of it can hurt a run."""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from components import layout
from components.errors import DeadlineError, InputError, Interrupted
from components.gateway import check_gateway, push
from components.manifest import BroadcastManifest, UpdateManifest
from components.metrics import EVERY_ROLE, METRICS, MOST_SILOS, OUTCOME, REASONS, Series, bound, start, table
from components.recording import LiveRecorder
from components.server import server_step
from components.silo import evaluate_step, silo_step, validate_step
from tests.federations import TARGET, Run, draw_pictures, values
from tests.metrics.prometheus_tools import fetch, free_port

ROOT = Path(__file__).parents[2]
SILOS, ROUNDS = 10, 3


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = [sample for family in registry.collect() for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}


def value(recorder: LiveRecorder, name: str, **labels: str) -> float | None:
    return samples(recorder.series.registry).get((name, frozenset(labels.items())))


def live(role: str, **options: Any) -> LiveRecorder:
    recorder = LiveRecorder(role, options.pop("gateway", None), "local", options.pop("warn", pytest.fail))
    assert not options
    return recorder


@dataclass
class Recorded:
    """One federation of ten silos, told to the engine's recorder and to one for each role."""

    engine: LiveRecorder
    roles: dict[str, LiveRecorder]
    result: dict[str, Any] = field(default_factory=dict)

    def silo(self, run: Run, manifest: UpdateManifest) -> None:
        self.engine.silo_step(manifest.model_dump())
        self._both(run, manifest)

    def server(self, run: Run, manifest: BroadcastManifest) -> None:
        following = run.federation.step_after(manifest.round, manifest.exchange)
        self.engine.server_step({**manifest.model_dump(), "following": following})
        self._both(run, manifest)

    def counted(self, run: Run, manifest: UpdateManifest) -> None:
        is_target = manifest.author == layout.EVALUATOR
        self.engine.counted(manifest.model_dump(), "target" if is_target else "validation", TARGET if is_target else manifest.author)
        self._both(run, manifest)

    def _both(self, run: Run, manifest: UpdateManifest | BroadcastManifest) -> None:
        self.engine.retried(manifest.author, 0)
        self.roles[manifest.author].done(manifest, run.role(manifest.author).federation)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("ten")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(folder / "cache"))
        partition = {"rule": "dirichlet", "silos": SILOS, "alpha": 100.0}
        run = Run(values(draw_pictures(folder / "pictures"), rounds=ROUNDS, validation=0.4, partition=partition), folder / "run")
        told = Recorded(live(EVERY_ROLE), {name: live(name) for name in [*run.silos, layout.SERVER, layout.EVALUATOR]})
        told.engine.planned(run.name, run.planned["spec"], run.silos)
        for round, exchange in run.steps():
            for silo in run.silos:
                told.silo(run, silo_step(run.role(silo), round, exchange))
            told.server(run, server_step(run.role("server"), round, exchange))
            if round > 0:
                for silo in run.silos:
                    told.counted(run, validate_step(run.role(silo), round))
                told.counted(run, evaluate_step(run.role("evaluator"), round))
        told.result = run.finish()
        for recorder in (told.engine, told.roles[layout.SERVER]):
            recorder.finished(told.result)
        yield told


def count(registry: CollectorRegistry) -> Counter[str]:
    """Series by metric, histograms under their own name."""
    names = [name.removeprefix("siloflow_") for name, _ in samples(registry)]
    return Counter(re.sub(r"^(round_duration_seconds)_(bucket|sum|count)$", r"\1", name) for name in names)


def test_ten_silos_have_as_many_series_as_stated(recorded: Recorded) -> None:
    found = count(recorded.engine.series.registry)
    assert found == {name: metric.fixed + metric.per_silo * SILOS for name, metric in METRICS.items()}
    assert found.total() == bound(SILOS) <= 300
    spread = sum(count(recorder.series.registry).total() for recorder in recorded.roles.values())
    assert spread == bound(SILOS, len(recorded.roles)) <= 300


def test_a_scrape_every_second_costs_less_than_a_hundredth_of_a_core(recorded: Recorded) -> None:
    """`make bench-scrape` measures it with all that belongs to it; this notices if it gets much worse."""
    generate_latest(recorded.engine.series.registry)
    began = time.process_time()
    for _ in range(20):
        generate_latest(recorded.engine.series.registry)
    assert (time.process_time() - began) / 20 < 0.01


def test_the_server_alone_sees_what_the_engine_sees(recorded: Recorded) -> None:
    """From the store; but when it took place, and what it cost other processes, only they know."""
    of_processes = {"siloflow_round", "siloflow_stage_seconds", "siloflow_exchange_bytes_total", "siloflow_exchange_retries_total"}
    timed = re.compile("_seconds|_info$")
    engine, server = (samples(recorder.series.registry) for recorder in (recorded.engine, recorded.roles[layout.SERVER]))
    same = [key for key in engine if key[0] not in of_processes and not timed.search(key[0])]
    assert len(same) > 10 * SILOS / 2
    assert {key: server.get(key) for key in same} == {key: engine[key] for key in same}
    counts = [key for key in engine if key[0] == "siloflow_round_duration_seconds_count" and ("stage", "evaluate") not in key[1]]
    assert len(counts) == 5
    assert {key: server.get(key) for key in counts} == {key: engine[key] for key in counts}


def test_the_numbers_are_those_of_the_result(recorded: Recorded) -> None:
    engine, last = recorded.engine, recorded.result["history"][-1]
    for silo, weight in last["weights"].items():
        assert value(engine, "siloflow_silo_weight_ratio", silo=silo) == weight
        assert value(engine, "siloflow_loss", split="train", domain=silo) == last["train_loss"][silo]
        assert value(engine, "siloflow_accuracy_ratio", split="validation", domain=silo) == last["validation"].get(silo)
    up = sum(value(engine, "siloflow_exchange_bytes_total", role=silo, direction="up") or 0 for silo in last["weights"])
    assert up == recorded.result["bytes"]["up"]
    assert value(engine, "siloflow_round_duration_seconds_count", stage="train") == SILOS * (ROUNDS + 1)
    assert value(engine, "siloflow_round", role="server") == value(engine, "siloflow_rounds_total") == ROUNDS
    assert value(engine, "siloflow_run_active") == 0


# ---- what may happen to a run


def broadcast(**changed: Any) -> dict[str, Any]:
    return {
        "run": "r", "round": 1, "exchange": "train", "author": "server", "seconds": {"check": 1.0}, "began": None,
        "roster": {"a": 5, "b": 5},
        "participants": ["a", "b"], "accepted": ["a", "b"], "rejected": [], "missing": [], "weights": {}, "following": None, **changed,
    }  # fmt: skip


def planned(role: str = EVERY_ROLE, **options: Any) -> LiveRecorder:
    recorder = live(role, **options)
    recorder.planned("r", {**values(Path("x")), "deadline": 9.0}, ["a", "b"])
    return recorder


def test_what_was_never_measured_is_not_there() -> None:
    recorder = planned()
    found = {name for name, _ in samples(recorder.series.registry)}
    assert "siloflow_rounds_planned" in found
    assert not found & {"siloflow_validation_accuracy_ratio", "siloflow_accuracy_ratio", "siloflow_last_round_seconds", "siloflow_loss"}


def test_missing_and_refused_silos() -> None:
    recorder = planned()
    assert value(recorder, "siloflow_silo_present", silo="a") == 0
    rejected = [{"silo": "b", "reason": "nonfinite", "detail": ""}]
    recorder.server_step(broadcast(accepted=["a"], rejected=rejected))
    recorder.server_step(broadcast(accepted=["b"], missing=["a"], round=2))
    recorder.server_step(broadcast(accepted=["b"], round=3))  # a was not asked this time
    assert [value(recorder, "siloflow_silo_present", silo=silo) for silo in "ab"] == [0, 1]
    assert value(recorder, "siloflow_updates_rejected_total", reason="nonfinite") == 1
    assert value(recorder, "siloflow_silo_rejected_total", silo="b") == 1
    assert value(recorder, "siloflow_silos_expected") == value(recorder, "siloflow_silos_reported") == 1


def test_no_label_comes_from_what_a_silo_sent() -> None:
    recorder = planned()
    before = len(samples(recorder.series.registry))
    nonsense = {"stage-of-mine": 1.0, "compute": -5.0, "upload": 1e300}
    recorder.silo_step(
        {"author": "a", "round": 1, "exchange": "train", "seconds": nonsense, "metrics": {"loss": 1.0, "mine": 2.0}, "payload": None,
         "received_bytes": 0, "began": None}
    )  # fmt: skip
    recorder.server_step(broadcast(rejected=[{"silo": "b", "reason": "made up", "detail": ""}], accepted=["a"]))
    for metrics in ({"correct": 9.0, "total": 3.0}, {"correct": None, "total": 3.0}, {}):
        empty = {"seconds": {}, "payload": None, "received_bytes": 0}
        recorder.counted({"author": "b", "round": 1, "exchange": "validate", "metrics": metrics, **empty}, "validation", "b")
    found = samples(recorder.series.registry)
    assert len(found) > before
    text = " ".join(f"{name} {sorted(labels)}" for name, labels in found)
    assert "mine" not in text and "made up" not in text
    assert value(recorder, "siloflow_updates_rejected_total", reason="other") == 1
    assert value(recorder, "siloflow_accuracy_ratio", split="validation", domain="b") is None
    assert value(recorder, "siloflow_round_duration_seconds_count", stage="train") is None


def test_the_reasons_are_those_of_the_guards() -> None:
    source = "".join((ROOT / "components" / name).read_text(encoding="utf-8") for name in ("guards.py", "server.py"))
    used = set(re.findall(r'Rejected\(\s*"(\w+)"', source)) | {"malformed"}
    assert used == set(REASONS) - {"other"}


def test_steps_of_an_earlier_process_are_shown_but_not_counted_again() -> None:
    recorder = planned()
    recorder.server_step(broadcast(began=time.time() - 60, rejected=[{"silo": "b", "reason": "norm", "detail": ""}]))
    assert value(recorder, "siloflow_round", role="server") == 1
    assert value(recorder, "siloflow_rounds_total") == value(recorder, "siloflow_updates_rejected_total", reason="norm") == 0
    recorder.server_step(broadcast(began=time.time(), round=2))
    assert value(recorder, "siloflow_rounds_total") == 1


def test_a_federation_of_thousands_has_a_bounded_number_of_series() -> None:
    recorder, silos = live(EVERY_ROLE), [f"s{number:04}" for number in range(3000)]
    recorder.planned("r", {**values(Path("x")), "deadline": 9.0}, silos)
    recorder.server_step(broadcast(accepted=silos, roster=dict.fromkeys(silos, 1), weights=dict.fromkeys(silos, 1 / 3000)))
    assert value(recorder, "siloflow_silos_reported") == 3000
    assert len(samples(recorder.series.registry)) < bound(3000) == bound(MOST_SILOS)


def test_a_second_run_in_this_process_starts_with_clean_gauges() -> None:
    recorder = planned()
    recorder.server_step(broadcast())
    recorder.planned("other", {**values(Path("x"), "fedprox"), "deadline": 9.0}, ["c"])
    found = samples(recorder.series.registry)
    assert not [labels for name, labels in found if ("silo", "a") in labels and name != "siloflow_silo_rejected_total"]
    assert [dict(labels)["run"] for name, labels in found if name == "siloflow_run_info"] == ["other"]
    assert value(recorder, "siloflow_rounds_total") == 1  # a counter never goes back


def test_a_defect_in_the_recording_costs_one_warning() -> None:
    said: list[str] = []
    recorder = planned(warn=said.append)
    for _ in range(3):
        recorder.server_step({"round": "no"})
        recorder.silo_step({})
        recorder.finished({})
    assert len(said) == 1
    assert said[0].startswith("metrics: KeyError: ") and "the run goes on" in said[0]


# ---- the endpoint


def test_without_a_port_nothing_is_loaded() -> None:
    code = "import sys; from components import metrics; metrics.start(None, 'a').close(); print('prometheus_client' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == "False\n"


def test_the_endpoint_answers_while_others_dawdle_and_ends() -> None:
    port = free_port()
    recorder = start(port, "server", address="127.0.0.1")
    try:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        assert 'siloflow_build_info{version="' in fetch(f"http://127.0.0.1:{port}/metrics")
        for connection in silent:
            connection.close()
    finally:
        recorder.close()
    with pytest.raises(OSError):
        fetch(f"http://127.0.0.1:{port}/metrics")


def test_where_it_listens_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_METRICS_ADDRESS", "127.0.0.2")
    port = free_port()
    recorder = start(port, "server")
    try:
        assert "siloflow_build_info" in fetch(f"http://127.0.0.2:{port}/metrics")
        with pytest.raises(OSError):
            fetch(f"http://127.0.0.1:{port}/metrics")
    finally:
        recorder.close()


def test_a_port_in_use_is_one_warning() -> None:
    said: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        recorder = start(port, "server", address="127.0.0.1", warn=said.append)
        recorder.planned("r", {**values(Path("x")), "deadline": 9.0}, ["a"])
        recorder.close()
    assert len(said) == 1
    assert f"port {port} cannot be used (Address already in use)" in said[0]


def test_who_asks_for_it_waits_for_one_more_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, least in (("0.3", 0.3), ("", 0.0), ("nonsense", 0.0)):
        monkeypatch.setenv("SILOFLOW_METRICS_LINGER", seconds)
        recorder = start(free_port(), "server", address="127.0.0.1")
        began = time.monotonic()
        recorder.progressed()
        recorder.close()
        assert least <= time.monotonic() - began < least + 2


# ---- the gateway


def test_a_gateway_that_is_down_is_one_warning_without_its_password() -> None:
    said: list[str] = []
    recorder = planned(gateway=f"http://me:secret@127.0.0.1:{free_port()}", warn=said.append)
    recorder.server_step(broadcast())
    recorder.finished({"history": [], "accuracy": {"last": 0.5}, "bytes": {"up": 1}, "rounds": 1, "rejected": [], "target": TARGET})
    assert len(said) == 1
    assert said[0].startswith("pushgateway http://127.0.0.1:") and "Connection refused" in said[0]
    assert "secret" not in said[0] and "\n" not in said[0]


@pytest.mark.parametrize("reason", [Interrupted("stopped"), KeyboardInterrupt()])
def test_an_interrupted_run_is_no_outcome(reason: BaseException) -> None:
    recorder = planned(gateway="http://127.0.0.1:1")  # a warning would fail the test
    recorder.failed(reason)
    assert value(recorder, "siloflow_run_active") == value(recorder, "siloflow_runs_total", outcome="failed") == 0


def test_looking_at_an_old_result_is_no_outcome() -> None:
    recorder = planned(gateway="http://127.0.0.1:1")
    recorder.server_step(broadcast(began=time.time() - 60))
    recorder.finished({"history": [], "accuracy": {}, "bytes": {}, "rounds": 1, "rejected": [], "target": TARGET})
    assert value(recorder, "siloflow_runs_total", outcome="succeeded") == 0


def test_a_failure_counts() -> None:
    recorder = planned()
    recorder.failed(DeadlineError("silo a: gone"))
    assert value(recorder, "siloflow_runs_total", outcome="failed") == 1


@pytest.mark.parametrize("url", ["ftp://gateway:1", "http://", "://", "http://me:secret@:9"])
def test_a_wrong_gateway_is_wrong_input(url: str) -> None:
    with pytest.raises(InputError, match="pushgateway: expected an address such as") as refused:
        check_gateway(url)
    assert "secret" not in str(refused.value)


def test_a_group_may_have_any_target_and_a_gateway_a_password() -> None:
    asked: list[tuple[str, str | None]] = []

    class Gateway(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.requestline, self.headers["Authorization"]))
            self.send_response(202)
            self.end_headers()

        do_PUT = do_POST = answer
        log_message = lambda *_: None  # noqa: E731

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=lambda: [server.handle_request() for _ in range(2)], daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        assert push(address, {"target": "Real World/x"}, Series(), replace=True) is None
        assert push(f"http://me:p%40ss@{address}", {"target": "art"}, Series(), replace=False) is None
    assert asked == [
        ("PUT /metrics/job/siloflow/target@base64/UmVhbCBXb3JsZC94 HTTP/1.1", None),
        ("POST /metrics/job/siloflow/target/art HTTP/1.1", f"Basic {base64.b64encode(b'me:p@ss').decode()}"),
    ]


# ---- the names


def test_names_follow_the_rules_of_prometheus() -> None:
    for name, metric in {**METRICS, **OUTCOME}.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert (metric.kind == "counter") == name.endswith("_total")
        assert (metric.kind == "info") == name.endswith("_info")
        assert not set(metric.labels) & {"run", "round", "pod", "instance", "exchange"}
        assert metric.help and metric.fixed + metric.per_silo > 0


def test_the_docs_have_the_table() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert table() in page, "docs/metrics.md: run `python -m components.metrics` and put its output there"
