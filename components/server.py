"""What the server does in a round: check what the participants published, combine what passed, publish the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from components import layout
from components.errors import DeadlineError, InputError, QuorumError, SiloflowError, StoreError
from components.federation import Federation
from components.guards import MANIFEST_LIMIT, Expected, Rejected, check_manifest, check_norm, check_tensors, extremes, is_finite
from components.manifest import BroadcastManifest, Inbox, Part, Rejection, Stored, UpdateManifest
from components.received import open_payload, read_broadcast
from components.retention import expire
from components.silo import Clock, Role, nothing_yet
from components.store import ObjectTooLarge
from components.wire import Malformed, Payload, WrongDigest, encode
from fl_algorithms.contract import Broadcast, Exchange, Server, Tensors
from fl_algorithms.errors import TooFew, Unusable
from fl_algorithms.fedavg import MODEL

CHECKED_AT_ONCE = 2


class Accepted:
    """The updates that passed the guards, as the algorithm sees them (contract.Updates)."""

    def __init__(self, manifests: Mapping[str, UpdateManifest], payloads: Mapping[str, Payload]) -> None:
        self.names: Sequence[str] = sorted(manifests)
        self._manifests, self._payloads = manifests, payloads

    def metrics(self, silo: str) -> Mapping[str, float | None]:
        return self._manifests[silo].metrics

    def keys(self) -> Sequence[str]:
        return sorted(next(iter(self._payloads.values()))) if self._payloads else []

    def each(self, key: str) -> Iterator[torch.Tensor]:
        for silo in self.names:
            yield self._payloads[silo][key]
            self._payloads[silo].forget()


@dataclass
class Collected:
    manifests: dict[str, UpdateManifest] = field(default_factory=dict)
    payloads: dict[str, Payload] = field(default_factory=dict)
    rejected: list[Rejection] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def server_step(role: Role, round: int, exchange: str) -> BroadcastManifest:
    """Check what the participants published, combine what passed, publish the result. Silos that published nothing are missing."""
    federation, done = role.federation, read_broadcast(role.federation, round, exchange)
    if done is not None:
        return done
    clock, step, before = Clock(), federation.exchange(round, exchange), federation.step_before(round, exchange)
    previous = read_broadcast(federation, *before) if before is not None else nothing_yet(federation)
    if previous is None:
        raise StoreError(f"{federation.store.url}: the broadcast before round {round} {exchange} is missing; resume the run from its start")
    parts = role.received(previous, None)
    collected = collect(role, round, exchange, previous, parts)
    check_quorum(federation, round, exchange, previous.participants, collected)
    clock.lap("check")
    roster = previous.roster or {name: collected.manifests[name].samples for name in sorted(collected.manifests)}
    position = [e.name for e in federation.algorithm.exchanges(round)].index(exchange)
    private = role.private.before(round, position)
    server = Server(round, federation.spec.rounds, federation.spec.seed, roster, parts, private)
    broadcast = _combined(federation, step, server, collected)
    clock.lap("combine")
    role.private.save(round, position, server.private)
    manifest = publish_broadcast(federation, round, exchange, previous, broadcast, roster, collected, clock)
    role.private.prune()
    return manifest


def collect(role: Role, round: int, exchange: str, previous: BroadcastManifest, parts: Mapping[str, Tensors]) -> Collected:
    """What each participant published, checked several at a time: one waits for its download while another is hashed."""
    federation, result = role.federation, Collected()
    upload = federation.exchange(round, exchange).upload
    participants = sorted(previous.participants)

    def look(silo: str) -> tuple[UpdateManifest, Payload | None] | Rejected | None:
        try:
            samples, most = previous.roster.get(silo), federation.spec.samples_bound
            expected = Expected(federation.run, federation.digest, round, exchange, upload, samples, most)
            return _checked(federation, silo, expected, parts)
        except Rejected as error:
            return error

    with ThreadPoolExecutor(CHECKED_AT_ONCE) as pool:
        for silo, found in zip(participants, pool.map(look, participants), strict=True):
            if isinstance(found, Rejected):
                result.rejected.append(Rejection(silo=silo, reason=found.reason, detail=_one_line(str(found))))
            elif found is None:
                result.missing.append(silo)
            else:
                result.manifests[silo] = found[0]
                if found[1] is not None:
                    result.payloads[silo] = found[1]
                role.report("check", len(result.manifests), len(participants))
    return result


def _one_line(text: str) -> str:
    """What a silo wrote into its manifest is quoted in messages: it must not draw on the reader's terminal."""
    return "".join(character if character.isprintable() else " " for character in text)[:300]


def _checked(
    federation: Federation, silo: str, expected: Expected, parts: Mapping[str, Tensors]
) -> tuple[UpdateManifest, Payload | None] | None:
    bucket, (payload_key, manifest_key) = layout.silo_bucket(silo), layout.update_keys(federation.run, expected.round, expected.exchange)
    try:
        data = federation.store.get(bucket, manifest_key, MANIFEST_LIMIT)
        if data is None:
            return None
        manifest = UpdateManifest.decode(data)
        check_manifest(manifest, silo, expected)
        if manifest.payload is None:
            return manifest, None
        payload = open_payload(federation, bucket, payload_key, manifest.payload)
    except Malformed as error:
        raise Rejected("digest" if isinstance(error, WrongDigest) else "malformed", str(error)) from None
    except ObjectTooLarge as error:
        raise Rejected("size", str(error)) from None
    check_tensors(payload, manifest, expected)
    if federation.spec.norm_bound is not None and MODEL in parts:
        check_norm(payload, parts[MODEL], federation.spec.norm_bound)
    return manifest, payload


def quorum_of(federation: Federation, participants: Sequence[str]) -> int:
    return math.ceil(federation.spec.quorum * len(participants) - 1e-9)


def check_quorum(federation: Federation, round: int, exchange: str, participants: Sequence[str], collected: Collected) -> None:
    needed = quorum_of(federation, participants)
    if len(collected.manifests) >= needed:
        return
    have = f"round {round} {exchange}: {len(collected.manifests)} of {len(participants)} updates accepted, quorum is {needed}"
    raise _too_few(federation, collected, have, late=len(collected.manifests) + len(collected.rejected) < needed)


def _too_few(federation: Federation, collected: Collected, have: str, late: bool) -> SiloflowError:
    """`late`: also without rejections there would be too few."""
    if late:
        return DeadlineError(f"silo {', '.join(collected.missing)}: published nothing within {federation.spec.deadline:g} s; {have}")
    reasons = "; ".join(f"{r.silo}: {r.reason} ({r.detail})" for r in collected.rejected)
    return QuorumError(f"{have}; rejected {reasons or 'none in this exchange'}")


def _combined(federation: Federation, step: Exchange, server: Server, collected: Collected) -> Broadcast:
    where = f"round {server.round} {step.name}"
    try:
        broadcast = step.server(server, Accepted(collected.manifests, collected.payloads))
    except TooFew as error:
        raise _too_few(federation, collected, f"{where}: {error}", late=bool(collected.missing) and not collected.rejected) from None
    except Unusable as error:
        raise InputError(str(error)) from None
    for part, tensors in broadcast.parts.items():
        for name in tensors:
            if not is_finite(tensors[name]):
                raise QuorumError(f"{where}: {_overflow(part, name, collected.payloads)}")
    return broadcast


def _overflow(part: str, name: str, payloads: Mapping[str, Payload]) -> str:
    """Finite updates, and still no model: which silo's values are the largest is the best hint there is."""
    largest = {silo: max(map(abs, extremes(payload[name]))) for silo, payload in sorted(payloads.items()) if name in payload}
    sent = ", ".join(f"{silo} {value:.3g}" for silo, value in largest.items()) or "none"
    return (
        f"{part} tensor {name} would hold NaN or infinity, nothing was published; largest values sent: {sent}; "
        "set norm_bound, use a robust algorithm or a smaller step on the server"
    )


def publish_broadcast(
    federation: Federation, round: int, exchange: str, previous: BroadcastManifest, broadcast: Broadcast,
    roster: dict[str, int], collected: Collected, clock: Clock,
) -> BroadcastManifest:  # fmt: skip
    """Parts, then inboxes, then the manifest that makes them exist."""
    parts, personal = dict(previous.parts), dict(previous.personal)
    for name, tensors in broadcast.parts.items():
        stored = _put_part(federation, round, exchange, name, None, tensors)
        parts[name] = Part(round=round, exchange=exchange, **stored.model_dump())
    # one for every silo, also an empty one: a silo must be able to tell nothing from something that was lost
    inboxes: dict[str, dict[str, Stored]] = {silo: {} for silo in roster} if broadcast.personal else {}
    for name, by_silo in broadcast.personal.items():
        personal[name] = (round, exchange)
        for silo, tensors in sorted(by_silo.items()):
            inboxes.setdefault(silo, {})[name] = _put_part(federation, round, exchange, name, silo, tensors)
    common: dict[str, Any] = {
        "run": federation.run,
        "spec": federation.digest,
        "round": round,
        "exchange": exchange,
        "author": layout.SERVER,
    }
    for silo, stored_parts in inboxes.items():
        inbox = Inbox(**common, parts=stored_parts)
        federation.store.put(layout.silo_bucket(silo), layout.inbox_key(federation.run, round, exchange), [inbox.encode()])
    clock.lap("publish")
    participants = list(roster) if broadcast.participants is None else list(broadcast.participants)
    manifest = BroadcastManifest(
        **common, parts=parts, personal=personal, roster=roster, participants=participants, accepted=sorted(collected.manifests),
        rejected=collected.rejected, missing=collected.missing, weights=dict(broadcast.weights), seconds=clock.seconds, began=clock.began,
        layer_weights={name: list(row) for name, row in broadcast.layer_weights.items()},
        expired=expire(federation, round, previous),
    )  # fmt: skip
    federation.store.put(layout.GLOBAL, layout.broadcast_key(federation.run, round, exchange), [manifest.encode()])
    return manifest


def _put_part(federation: Federation, round: int, exchange: str, part: str, silo: str | None, tensors: Tensors) -> Stored:
    encoded = encode(tensors)
    federation.store.put(*layout.part_place(federation.run, round, exchange, part, silo), encoded.chunks)
    return Stored(bytes=encoded.size, digest=encoded.digest)
