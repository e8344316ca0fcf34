"""What a silo (and the evaluator) does in a round: `silo_step` and the counting of right answers. All of it idempotent.

Whoever calls a step (a process on this machine, a KFP task, a resident loop) decides only the order. A step whose manifest
is already there returns at once; a step that was killed is simply called again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from components import layout
from components.errors import DeadlineError, InputError
from components.federation import Federation
from components.manifest import BroadcastManifest, Stored, UpdateManifest
from components.received import PrivateState, Received, read_broadcast, read_update
from components.wire import CODES, Payload, encode
from fl_algorithms.contract import Report, Silo, Update
from fl_algorithms.drift import drift
from fl_algorithms.errors import Unusable
from fl_algorithms.evaluation import Counts, count
from fl_algorithms.fedavg import MODEL
from fl_algorithms.randomness import stream_seed
from fl_algorithms.samples import Samples

CONFUSION = "confusion"  # of the target domain, beside the evaluator's counts


@dataclass
class Role:
    """A process's place in the federation: who it is and what it has already opened. Lives as long as the process."""

    federation: Federation
    name: str
    report: Report = lambda *_, **__: None
    kept: dict[str, Payload] = field(default_factory=dict)
    earlier: tuple[bytes, float] | None = None  # what the server said when it gave up an earlier try, and until when that is no news
    _samples: dict[str, Samples] = field(default_factory=dict)

    @property
    def private(self) -> PrivateState:
        return PrivateState(self.federation.folder / "private" / self.name)

    def samples(self, part: str) -> Samples:
        if part not in self._samples:
            share = self.federation.share(self.name)
            self._samples = {"train": self.federation.samples(share.train), "validation": self.federation.samples(share.validation)}
        return self._samples[part]

    def received(self, manifest: BroadcastManifest, silo: str | None) -> Received:
        return Received(self.federation, manifest, silo, self.kept)


class Clock:
    """Seconds per stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.began = round(time.time(), 3)
        self._last = time.monotonic()

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage] = round(now - self._last, 6)
        self._last = now


def silo_step(role: Role, round: int, exchange: str) -> UpdateManifest:
    """Read the broadcast before this step, compute, keep what is private, publish the rest."""
    federation, done = role.federation, read_update(role.federation, role.name, round, exchange)
    if done is not None:
        return done
    clock, step, received = Clock(), federation.exchange(round, exchange), Received(federation, nothing_yet(federation), role.name, {})
    before = federation.step_before(round, exchange)
    if before is not None:
        manifest = read_broadcast(federation, *before)
        if manifest is None:
            raise DeadlineError(
                f"server: its broadcast of round {before[0]} {before[1]} is not in {federation.store.url}; round {round} cannot start"
            )
        received = role.received(manifest, role.name)
    position = [e.name for e in federation.algorithm.exchanges(round)].index(exchange)
    private = role.private.before(round, position)
    torch.manual_seed(stream_seed(federation.spec.seed, "step", role.name, round, exchange))  # dropout draws from the global stream
    silo = Silo(
        role.name,
        round,
        federation.spec.rounds,
        federation.spec.seed,
        federation.device,
        role.samples("train"),
        received,
        private,
        role.report,
        role.samples("validation") if len(role.samples("validation")) else None,
    )
    clock.lap("read")
    try:
        update = step.silo(silo)
    except Unusable as error:
        raise InputError(str(error)) from None
    if exchange == federation.last_exchange(round) and MODEL in received:
        update.metrics = {**update.metrics, **drift(update.tensors, received[MODEL])}
    clock.lap("compute")
    role.report("upload", 1, 1)
    role.private.save(round, position, silo.private)
    if before is not None:
        _retire(role, before)
    role.private.prune()
    published = publish_update(role, round, exchange, update, len(silo.train), received.bytes, clock)
    for payload in role.kept.values():
        payload.forget()
    return published


def publish_update(role: Role, round: int, exchange: str, update: Update, samples: int, received: int, clock: Clock) -> UpdateManifest:
    """Payload first, manifest last."""
    federation, bucket = role.federation, layout.author_bucket(role.name)
    payload_key, manifest_key = layout.update_keys(federation.run, round, exchange)
    stored = None
    if update.tensors:
        encoded = encode(update.tensors)
        federation.store.put(bucket, payload_key, encoded.chunks)
        stored = Stored(bytes=encoded.size, digest=encoded.digest)
    clock.lap("upload")
    manifest = UpdateManifest(
        run=federation.run, spec=federation.digest, round=round, exchange=exchange, author=role.name, payload=stored,
        tensors={name: (CODES[t.dtype], list(t.shape)) for name, t in sorted(update.tensors.items())}, samples=samples,
        metrics={name: value if math.isfinite(value) else None for name, value in update.metrics.items()}, received_bytes=received,
        seconds=clock.seconds, began=clock.began,
    )  # fmt: skip
    federation.store.put(bucket, manifest_key, [manifest.encode()])
    return manifest


def _retire(role: Role, *steps: tuple[int, str]) -> None:
    """The server has used the updates of these steps: a silo does not leave its raw updates lying around.

    Called before a step's manifest is published: afterwards a repeated step would return at once and leave them.
    """
    for step in steps:
        role.federation.store.delete(layout.author_bucket(role.name), layout.update_keys(role.federation.run, *step)[0])


def nothing_yet(federation: Federation) -> BroadcastManifest:
    return BroadcastManifest(
        run=federation.run,
        spec=federation.digest,
        round=0,
        exchange="none",
        author=layout.SERVER,
        parts={},
        roster={},
        participants=federation.silos,
    )


# ---- counting right answers


def validate_step(role: Role, round: int) -> UpdateManifest:
    """The round's global model on this silo's validation images; only counts leave."""
    return _count_step(role, round, layout.VALIDATE, lambda: role.samples("validation"))


def evaluate_step(role: Role, round: int) -> UpdateManifest:
    """The round's global model on the target domain, where only the evaluator looks."""
    return _count_step(role, round, layout.EVALUATE, lambda: role.federation.target_samples)


def _count_step(role: Role, round: int, name: str, samples: Callable[[], Samples]) -> UpdateManifest:
    federation, done = role.federation, read_update(role.federation, role.name, round, name)
    if done is not None:
        return done
    clock = Clock()
    manifest = read_broadcast(federation, round, federation.last_exchange(round))
    if manifest is None:
        raise DeadlineError(f"server: the model of round {round} is not in {federation.store.url}")
    received = role.received(manifest, None)
    role.report(name, 0, 1)
    images = samples()
    counts = Counts(0, 0, 0.0)
    if len(images):
        counts = count(federation.algorithm.predictor(received, federation.device), images, confusion=name == layout.EVALUATE)
    clock.lap(name)
    metrics = {"correct": counts.correct, "total": counts.total, "loss_sum": counts.loss_sum}
    if name == layout.VALIDATE:  # every silo validates, also one that takes no part in the next round
        used = range(max(1, round - federation.spec.evaluate_every + 1), round + 1)
        _retire(role, *((number, exchange.name) for number in used for exchange in federation.algorithm.exchanges(number)))
    tensors = {CONFUSION: counts.confusion} if counts.confusion is not None else {}
    return publish_update(role, round, name, Update(tensors, metrics), counts.total, received.bytes, clock)
