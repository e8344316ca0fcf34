"""Turns what steps publish anyway, their manifests, into metrics. Whatever goes wrong here costs a warning, never a run."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from components import VERSION, layout
from components.errors import Interrupted
from components.gateway import ended, push, succeeded
from components.metrics import EVERY_ROLE, MOST_SILOS, REASONS, Recorder, Series

if TYPE_CHECKING:
    from components.federation import Federation
    from components.manifest import BroadcastManifest, UpdateManifest

F = TypeVar("F", bound=Callable[..., None])
STAGE_OF = {"read": "download", "compute": "train", "upload": "upload"}  # in a silo's manifest -> as it is called here
LONGEST = 30 * 86400.0  # seconds; a silo that claims more is not believed


def harmless(record: F) -> F:
    @functools.wraps(record)
    def recorded(self: LiveRecorder, *arguments: Any, **named: Any) -> None:
        try:
            record(self, *arguments, **named)
        except Exception as error:
            logging.debug("metrics", exc_info=True)
            self.warn_once(f"metrics: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}; some are missing, the run goes on")

    return cast(F, recorded)


class LiveRecorder(Recorder):
    """For one process. A server sees the federation, any other role itself, the local engine both."""

    def __init__(self, role: str, gateway: str | None, pipeline: str, warn: Callable[[str], None]) -> None:
        self.series, self.endpoint = Series(), cast("Callable[[], None] | None", None)
        self._role, self._gateway, self._pipeline, self._warn = role, gateway, pipeline, warn
        self._federates = role in (layout.SERVER, EVERY_ROLE)
        self._run, self._spec, self._silos = "", cast("dict[str, Any]", {}), frozenset[str]()
        self._since, self._worked, self._warned = time.time(), False, False
        self._began = self._closed = self._broadcast = self._changed = time.monotonic()
        self._roster: set[str] = set()
        self._federation: Federation | None = None  # of a server, whose store says what the others did
        self._right: dict[int, dict[str, tuple[float, float]]] = {}  # round -> silo -> correct, total
        self._retries: dict[str, int] = {}
        self.series("build_info").info({"version": VERSION})

    def warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(message)

    # ---- a run and its steps

    @harmless
    def planned(self, run: str, spec: Any, silos: Sequence[str]) -> None:
        if run == self._run:
            return
        self.series.forget_gauges()
        self._run, self._spec, self._silos = run, _plain(spec), frozenset(sorted(silos)[:MOST_SILOS])
        self._began = self._closed = self._broadcast = time.monotonic()
        self._right, self._roster, self._worked = {}, set(), False
        if not self._federates:
            return
        names = {key: str(self._spec[key]) for key in ("algorithm", "target")}
        self.series("run_info").info({"run": run, "dataset": _plain(self._spec["dataset"])["name"], "pipeline": self._pipeline, **names})
        self.series("run_active").set(1)
        self.series("rounds_planned").set(self._spec["rounds"])
        self.series("deadline_seconds").set(self._spec["deadline"])
        self.series("rounds_total").inc(0)
        # a counter that appears with its first event has no increase that a rule could see
        for name, label, known in (
            ("updates_rejected_total", "reason", REASONS), ("silo_rejected_total", "silo", self._silos),
            ("runs_total", "outcome", ("succeeded", "failed")),
        ):  # fmt: skip
            for value in known:
                self.series(name, **{label: value}).inc(0)
        for silo in self._silos:
            self.series("silo_present", silo=silo).set(0)
        self.progressed()

    @harmless
    def silo_step(self, manifest: UpdateManifest | Mapping[str, Any]) -> None:
        facts = _plain(manifest)
        stages = {STAGE_OF[name]: seconds for name, seconds in facts["seconds"].items() if name in STAGE_OF}
        self._role_series(facts, stages)
        self._update(facts, self._is_new(facts))

    def _update(self, facts: Mapping[str, Any], is_new: bool) -> None:
        """What one silo's update says of the federation."""
        silo, metrics = facts["author"], facts["metrics"]
        if is_new:
            for name, seconds in facts["seconds"].items():
                if name in STAGE_OF:
                    self._observe(STAGE_OF[name], seconds)
        if self._shows(silo):
            if metrics.get("loss") is not None:
                self.series("loss", split="train", domain=silo).set(metrics["loss"])
            if metrics.get("drift") is not None and self._federates:
                self.series("silo_drift", silo=silo).set(metrics["drift"])

    @harmless
    def server_step(self, manifest: BroadcastManifest | Mapping[str, Any], federation: Federation | None = None) -> None:
        facts, now = _plain(manifest), time.monotonic()
        if federation is not None:
            self.planned(federation.run, federation.spec, federation.silos)
        is_new, seconds = self._is_new(facts), sum(facts["seconds"].values())
        waited, self._broadcast = now - self._broadcast - seconds, now
        self._role_series(facts, {"aggregate": seconds, **({"wait": max(0.0, waited)} if is_new else {})})
        self._presence(facts)
        following = facts["following"] if federation is None else federation.step_after(facts["round"], facts["exchange"])
        closes = facts["round"] > 0 and (following is None or following[0] > facts["round"])
        if is_new:
            self._observe("aggregate", seconds)
            self._observe("wait", max(0.0, waited))
            self._reject(facts["rejected"])
            if closes:
                self.series("rounds_total").inc()
                self.series("last_round_seconds").set(now - self._closed)
        if closes or facts["round"] == 0:
            self._closed = now
        if federation is not None:
            self._federation = federation
            self._read(federation, facts, is_new, closes)

    def _presence(self, facts: Mapping[str, Any]) -> None:
        absent = {*facts["missing"], *(item["silo"] for item in facts["rejected"])}
        self._roster = set(facts["roster"])
        self.series("silos_expected").set(len(facts["accepted"]) + len(absent))
        self.series("silos_reported").set(len(facts["accepted"]))
        for silo in filter(self._shows, (*facts["accepted"], *absent)):
            self.series("silo_present", silo=silo).set(silo not in absent)
        for silo in self._silos if facts["weights"] else ():
            self.series("silo_weight_ratio", silo=silo).set(facts["weights"].get(silo, 0.0))

    def _reject(self, rejected: Sequence[Mapping[str, str]]) -> None:
        for item in rejected:
            self.series("updates_rejected_total", reason=item["reason"] if item["reason"] in REASONS else "other").inc()
            if self._shows(item["silo"]):
                self.series("silo_rejected_total", silo=item["silo"]).inc()

    def _read(self, federation: Federation, facts: Mapping[str, Any], is_new: bool, closes: bool) -> None:
        """What the others say of themselves. The silos train meanwhile: nobody waits for this."""
        from components.received import read_update

        for silo in facts["accepted"]:
            update = read_update(federation, silo, facts["round"], facts["exchange"])
            if update is not None:
                self._update(_plain(update), is_new)
        counted = facts["round"] - 1  # the counts of this round are not there yet
        if closes and counted > 0 and counted % federation.spec.evaluate_every == 0:
            self._read_counts(federation, counted, is_new)

    def _read_counts(self, federation: Federation, round: int, is_new: bool) -> None:
        from components.received import read_update

        for silo in self._roster:
            if (found := read_update(federation, silo, round, layout.VALIDATE)) is not None:
                self._counts(_plain(found), "validation", silo, is_new)
        if (found := read_update(federation, layout.EVALUATOR, round, layout.EVALUATE)) is not None:
            self._counts(_plain(found), "target", str(federation.spec.target), is_new)

    @harmless
    def counted(self, manifest: UpdateManifest | Mapping[str, Any], split: str, domain: str) -> None:
        facts = _plain(manifest)
        self._role_series(facts, {"evaluate": facts["seconds"].get(facts["exchange"], 0.0)})
        self._counts(facts, split, domain, self._is_new(facts))

    def _counts(self, facts: Mapping[str, Any], split: str, domain: str, is_new: bool) -> None:
        if is_new:
            self._observe("evaluate", facts["seconds"].get(facts["exchange"], 0.0))
        correct, total, loss_sum = (facts["metrics"].get(key) for key in ("correct", "total", "loss_sum"))
        if correct is None or not total or not 0 <= correct <= total:  # a silo's nonsense is not shown
            return
        if split == "target" or self._shows(domain):
            self.series("accuracy_ratio", split=split, domain=domain).set(correct / total)
        if split == "target":
            if loss_sum is not None:
                self.series("loss", split=split, domain=domain).set(loss_sum / total)
            return
        self._right.setdefault(facts["round"], {})[domain] = (correct, total)
        if self._federates and self._roster and self._roster <= self._right[facts["round"]].keys():
            counts = self._right[facts["round"]].values()
            self.series("validation_accuracy_ratio").set(sum(right for right, _ in counts) / sum(of for _, of in counts))
            self._right = {number: found for number, found in self._right.items() if number > facts["round"]}

    @harmless
    def retried(self, role: str, retries: int) -> None:
        before = self._retries.get(role, 0)
        self._retries[role] = retries
        if role in (layout.SERVER, layout.EVALUATOR) or self._shows(role):
            self.series("exchange_retries_total", role=role).inc(retries - before if retries >= before else retries)  # or a new process

    @harmless
    def progressed(self) -> None:
        self._changed = time.monotonic()
        if self._federates:
            self.series("last_progress_timestamp_seconds").set_to_current_time()

    @harmless
    def done(self, manifest: BroadcastManifest | UpdateManifest, federation: Federation) -> None:
        if manifest.author == layout.SERVER:
            self.server_step(cast("BroadcastManifest", manifest), federation)
        elif manifest.exchange == layout.EVALUATE:
            self.counted(cast("UpdateManifest", manifest), "target", str(federation.spec.target))
        elif manifest.exchange == layout.VALIDATE:
            self.counted(cast("UpdateManifest", manifest), "validation", manifest.author)
        else:
            self.silo_step(cast("UpdateManifest", manifest))
        self.retried(manifest.author, federation.store.retries)

    # ---- the end

    @harmless
    def finished(self, result: Mapping[str, Any]) -> None:
        if self._federation is not None:
            self._read_counts(self._federation, result["rounds"], self._worked)
        last = result["history"][-1] if result["history"] else {}
        if last.get("validation_accuracy") is not None:  # also if a silo did not count
            self.series("validation_accuracy_ratio").set(last["validation_accuracy"])
        if self._gateway is not None and self._worked:  # else somebody looks at an old result once more
            outcome = succeeded(self._run, result, time.monotonic() - self._began)
            self._say(push(self._gateway, self._group(), outcome, replace=True))
        self._end("succeeded" if self._worked else None)

    @harmless
    def failed(self, reason: BaseException | str) -> None:
        interrupted = isinstance(reason, KeyboardInterrupt | Interrupted)  # and so neither failed nor over
        if self._gateway is not None and self._run and not interrupted:
            # not PUT: the last success, and how good it was, stay where they are
            self._say(push(self._gateway, self._group(), ended(self._run, getattr(reason, "exit_code", 1)), replace=False))
        self._end(None if interrupted else "failed")

    def _end(self, outcome: str | None) -> None:
        if self._federates and self._run:
            self.series("run_active").set(0)
            if outcome is not None:
                self.series("runs_total", outcome=outcome).inc()
        self._run = ""
        self.progressed()

    def _group(self) -> dict[str, str]:
        """Few and known in advance: a gateway never forgets a group."""
        return {"pipeline": self._pipeline, "algorithm": str(self._spec["algorithm"]), "target": str(self._spec["target"])}

    def _say(self, problem: str | None) -> None:
        if problem is not None:
            self._warn(problem)

    def close(self) -> None:
        """Who asked for it (SILOFLOW_METRICS_LINGER) waits here for one more scrape: the last round would be seen by nobody."""
        if self.endpoint is None:
            return
        try:
            give_up = time.monotonic() + float(os.environ.get("SILOFLOW_METRICS_LINGER") or 0)
        except ValueError:
            give_up = 0.0
        while self.series.scraped < self._changed and time.monotonic() < give_up:
            time.sleep(0.05)
        self.endpoint()
        self.endpoint = None

    # ---- one value

    def _is_new(self, facts: Mapping[str, Any]) -> bool:
        """A step that was done before this process began is read again on resume, and must not be counted again."""
        return facts.get("began") is None or facts["began"] >= self._since

    def _shows(self, silo: str) -> bool:
        return silo in self._silos or silo == self._role

    def _role_series(self, facts: Mapping[str, Any], stages: Mapping[str, float]) -> None:
        self.progressed()
        role = facts["author"]
        if role not in (layout.SERVER, layout.EVALUATOR) and not self._shows(role):
            return
        self._worked |= self._is_new(facts)
        self.series("round", role=role).set(facts["round"])
        for stage, seconds in stages.items():
            self.series("stage_seconds", role=role, stage=stage).set(seconds)
        if role != layout.SERVER and self._is_new(facts):
            payload = facts["payload"]
            self.series("exchange_bytes_total", role=role, direction="up").inc(payload["bytes"] if payload else 0)
            self.series("exchange_bytes_total", role=role, direction="down").inc(facts["received_bytes"])

    def _observe(self, stage: str, seconds: float) -> None:
        if self._federates and 0 <= seconds <= LONGEST:
            self.series("round_duration_seconds", stage=stage).observe(seconds)


def _plain(manifest: Any) -> dict[str, Any]:
    return dict(manifest) if isinstance(manifest, Mapping) else manifest.model_dump(exclude={"tensors", "parts"})
