"""The name of every metric, and the endpoint that Prometheus scrapes.

A round is a value, never a label; a run's name is a label of `_info` alone. Label values come from the spec and from this file,
never from what a silo sent, so that nobody can fill a Prometheus. `python -m components.metrics` prints the table of docs/metrics.md.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from components.federation import Federation
    from components.manifest import BroadcastManifest, UpdateManifest

PREFIX = "siloflow_"
EVERYWHERE = "0.0.0.0"  # what a pod listens on
EVERY_ROLE = "*"  # the role of the local engine, in whose one endpoint all of a run is
MOST_SILOS = 100  # silos with series of their own; a federation of thousands shows its sums only
STAGES = ("download", "train", "upload", "wait", "aggregate", "evaluate")
REASONS = (
    "author", "digest", "dtype", "keys", "magnitude", "malformed", "nonfinite", "norm", "run", "samples", "shape", "size", "spec",
    "stale", "variance", "other",
)  # fmt: skip
BUCKETS = (0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 7200.0)


@dataclass(frozen=True)
class Metric:
    """`fixed` and `per_silo`: how many series there are. `copied`: a silo's own endpoint shows its part of them too."""

    kind: str
    labels: tuple[str, ...]
    help: str
    fixed: int = 0
    per_silo: int = 0
    copied: bool = False


METRICS = {
    # of every process
    "build_info": Metric("info", (), "the version of siloflow", 1),
    "round": Metric("gauge", ("role",), "round of the last step that this role finished", 2, 1),
    "stage_seconds": Metric("gauge", ("role", "stage"), "seconds that a stage took this role when it last did it", 3, 4),
    "exchange_bytes_total": Metric("counter", ("role", "direction"), "payload bytes that silos and evaluator moved (up, down)", 2, 2),
    "exchange_retries_total": Metric("counter", ("role",), "requests to the store that had to be repeated", 2, 1),
    # of the federation: on the server's endpoint, or the local engine's
    "run_info": Metric("info", (), "the run of this process: its name, algorithm, data set, target, pipeline", 1),
    "run_active": Metric("gauge", (), "1 while a run goes on", 1),
    "runs_total": Metric("counter", ("outcome",), "runs that this process brought to an end (succeeded, failed)", 2),
    "rounds_planned": Metric("gauge", (), "rounds that the spec asks for", 1),
    "rounds_total": Metric("counter", (), "rounds finished by this process", 1),
    "last_round_seconds": Metric("gauge", (), "seconds of the last finished round", 1),
    "last_progress_timestamp_seconds": Metric("gauge", (), "when something was last reported, seconds since 1970", 1),
    "deadline_seconds": Metric("gauge", (), "seconds a silo has for one exchange", 1),
    "round_duration_seconds": Metric(
        "histogram", ("stage",), "seconds of a stage, over all silos; wait: from one broadcast to the last update", len(STAGES) * 11
    ),
    "updates_rejected_total": Metric("counter", ("reason",), "updates that the guards refused", len(REASONS)),
    "silo_rejected_total": Metric("counter", ("silo",), "updates of this silo that the guards refused", 0, 1),
    "silos_expected": Metric("gauge", (), "participants of the last exchange", 1),
    "silos_reported": Metric("gauge", (), "participants of the last exchange whose update was accepted", 1),
    "silo_present": Metric(
        "gauge", ("silo",), "1 if the silo's update was accepted when it last was a participant, 0 also before it joined", 0, 1
    ),
    "silo_weight_ratio": Metric("gauge", ("silo",), "share of the silo in the last average", 0, 1),
    "silo_drift": Metric("gauge", ("silo",), "L2 norm of the silo's last change of the model", 0, 1),
    "accuracy_ratio": Metric(
        "gauge", ("split", "domain"), "last counted accuracy: of each silo on its validation images, on the target domain", 1, 1, True
    ),
    "loss": Metric("gauge", ("split", "domain"), "last mean loss: of each silo in training, on the target domain", 1, 1, True),
    "validation_accuracy_ratio": Metric("gauge", (), "accuracy over the validation images of all silos together", 1),
}
OUTCOME = {
    "last_run_info": Metric("info", (), "the name of the last run and the version of siloflow", 1),
    "last_run_timestamp_seconds": Metric("gauge", (), "when the last run ended, well or not, seconds since 1970", 1),
    "last_run_exit_code": Metric("gauge", (), "exit code of the last run; 0: it succeeded", 1),
    "last_success_timestamp_seconds": Metric("gauge", (), "when the last successful run ended, seconds since 1970", 1),
    "last_run_seconds": Metric("gauge", (), "seconds that the last successful run took", 1),
    "last_run_rounds": Metric("gauge", (), "rounds of the last successful run", 1),
    "last_run_accuracy_ratio": Metric("gauge", ("rule",), "target accuracy by selection rule (last, best_validation, oracle)", 3),
    "last_run_bytes": Metric("gauge", ("direction",), "payload bytes of the last successful run (up, down)", 2),
    "last_run_rejected_updates": Metric("gauge", (), "updates that the guards refused in the last successful run", 1),
    # of a whole benchmark, grouped by pipeline alone
    "last_night_timestamp_seconds": Metric("gauge", (), "when the benchmark last ended, well or not, seconds since 1970", 1),
    "last_night_exit_code": Metric("gauge", (), "exit code of the last benchmark; 6: a gate failed", 1),
    "last_night_gate_passed": Metric("gauge", ("gate",), "1 if the gate passed, 0 if it failed (speed, accuracy, exact)", 3),
}


class Series:
    """The metrics of one process, each made when it first has a value: what was never measured must not read as zero."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, disable_created_metrics

        disable_created_metrics()  # a series more for every counter, which nobody looks at
        self.registry, self.scraped = CollectorRegistry(), 0.0
        self.registry.register(self)
        self._made: dict[str, Any] = {}

    def __call__(self, name: str, **labels: str) -> Any:
        metric = self._made.get(name) or self._make(name)
        return metric.labels(**labels) if labels else metric

    def _make(self, name: str) -> Any:
        import prometheus_client

        described = {**METRICS, **OUTCOME}[name]
        kind: Any = getattr(prometheus_client, described.kind.capitalize())
        options = {"buckets": BUCKETS} if described.kind == "histogram" else {}
        named = PREFIX + name.removesuffix("_info" if described.kind == "info" else "_total")
        self._made[name] = kind(named, described.help, described.labels, registry=self.registry, **options)
        return self._made[name]

    def forget_gauges(self) -> None:
        """Another run begins in this process. Counters go on counting."""
        for name in [name for name in self._made if METRICS[name].kind == "gauge"]:
            self.registry.unregister(self._made.pop(name))

    def collect(self) -> Sequence[Any]:
        """Called by the registry: somebody looks."""
        self.scraped = time.monotonic()
        return ()

    def describe(self) -> Sequence[Any]:
        return ()


class Recorder:
    """What a run says at its turning points; a manifest may also be a plain mapping of its fields. This one records nothing."""

    def planned(self, run: str, spec: Any, silos: Sequence[str]) -> None:
        """A run begins in this process."""

    def silo_step(self, manifest: UpdateManifest | Mapping[str, Any]) -> None:
        """A silo published this update."""

    def server_step(self, manifest: BroadcastManifest | Mapping[str, Any], federation: Federation | None = None) -> None:
        """The server published this broadcast. With a federation, what the silos published is read from its store."""

    def counted(self, manifest: UpdateManifest | Mapping[str, Any], split: str, domain: str) -> None:
        """Right answers were counted; split: validation or target."""

    def retried(self, role: str, retries: int) -> None:
        """So many requests of this role were repeated since its process began."""

    def progressed(self) -> None:
        """Somebody still works."""

    def done(self, manifest: BroadcastManifest | UpdateManifest, federation: Federation) -> None:
        """Any of the three above, told apart by the manifest."""

    def finished(self, result: Mapping[str, Any]) -> None:
        """The run has a result."""

    def failed(self, reason: BaseException | str) -> None:
        """The run has none."""

    def close(self) -> None:
        """The process ends."""


def start(
    port: int | None, role: str, gateway: str | None = None, pipeline: str | None = None,
    address: str | None = None, warn: Callable[[str], None] = logging.warning,
) -> Recorder:  # fmt: skip
    """The recorder of this process: silent without a port and a gateway. A port that is taken costs a warning, never the run."""
    if port is None and gateway is None:
        return Recorder()
    from components.recording import LiveRecorder

    recorder = LiveRecorder(role, gateway, pipeline or os.environ.get("SILOFLOW_PIPELINE") or "local", warn)
    if port is not None:
        try:
            recorder.endpoint = serve(recorder.series.registry, port, address or os.environ.get("SILOFLOW_METRICS_ADDRESS") or EVERYWHERE)
        except OSError as error:
            warn(f"metrics: port {port} cannot be used ({error.strerror or error}); the run goes on without them, choose another port")
    return recorder


def serve(registry: CollectorRegistry, port: int, address: str) -> Callable[[], None]:
    """Answer every GET with the metrics, in threads of its own; returns what ends it."""
    from prometheus_client import start_http_server

    server, thread = start_http_server(port, address, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


# ---- how many there are


def bound(silos: int, processes: int = 1) -> int:
    """Series of one run, at most: on the one endpoint of the engine, or together on those of all roles."""
    shown = min(silos, MOST_SILOS)
    copies = sum(metric.per_silo * shown + metric.fixed for metric in METRICS.values() if metric.copied) if processes > 1 else 0
    return sum(metric.fixed + metric.per_silo * shown for metric in METRICS.values()) + copies + processes - 1  # each has a build_info


def table() -> str:
    lines = ["| metric | type | labels | series | what |", "|---|---|---|--:|---|"]
    for name, metric in {**METRICS, **OUTCOME}.items():
        parts = [str(metric.fixed)] if metric.fixed else []
        parts += [f"{metric.per_silo} per silo"] if metric.per_silo else []
        labels = ", ".join(metric.labels) if metric.kind != "info" else "names and versions"
        lines.append(f"| `{PREFIX}{name}` | {metric.kind} | {labels} | {' + '.join(parts)} | {metric.help} |")
    total = (
        f"With 10 silos: at most {bound(10)} series of a local run (one endpoint), at most {bound(10, 12)} of 12 processes in a cluster."
    )
    return "\n".join([*lines, "", total])


if __name__ == "__main__":
    print(table())
