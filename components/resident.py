"""A whole run as one loop per role: the store is the barrier, nobody starts a process inside a round.

A role that is killed and started again goes on where its manifests end. Nobody waits without an end: each wait has a deadline and
names who is missing, and who gives up for good says so in the store, so that the others need not wait for it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from components import layout
from components.errors import DeadlineError, ExpiredError, InputError, SiloflowError, StoreError
from components.federation import Federation
from components.guards import MANIFEST_LIMIT
from components.manifest import BroadcastManifest, UpdateManifest
from components.membership import join
from components.plan import finish
from components.received import read_broadcast
from components.server import quorum_of, server_step
from components.silo import Role, evaluate_step, silo_step, validate_step

T = TypeVar("T")
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5  # seconds between two looks into the store
GRACE = 60.0  # seconds for a server that gave up to be started again

log = logging.getLogger(__name__)


def wait_for(look: Callable[[], T | None], seconds: float) -> T | None:
    """What `look` finds, as soon as it finds something; None after so many seconds."""
    give_up, pause = time.monotonic() + seconds, SHORTEST_PAUSE
    while (found := look()) is None and time.monotonic() < give_up:
        time.sleep(pause)
        pause = min(pause * 1.2, LONGEST_PAUSE)
    return found


def wait_to_join(store_url: str, run: str, name: str, seconds: float) -> Role:
    """Also while the store is not there yet: who is started first must not fail."""
    refused: list[StoreError] = []

    def look() -> Role | None:
        try:
            return join(store_url, run, name)
        except StoreError as error:
            refused[:] = [error]
            return None

    role = wait_for(look, seconds)
    if role is None and refused:
        raise refused[0]
    if role is None:
        raise DeadlineError(f"run '{run}': found no plan of it in {store_url} within {seconds:g} s; start the server, or check the name")
    return role


# ---- the loops: each yields what the role published, step by step


def silo_loop(role: Role) -> Iterator[UpdateManifest]:
    """Every step of a silo, each as soon as the broadcast before it is there."""
    federation = role.federation
    federation.store.delete(layout.author_bucket(role.name), layout.failure_key(federation.run))
    _note_earlier_failure(role)
    try:
        for round, exchange in federation.steps():
            before = federation.step_before(round, exchange)
            participants = federation.silos if before is None else _broadcast(role, *before).participants
            if before is not None and before[0] < round:
                yield from _counted(role, round - 1, validate_step)
            if role.name in participants:
                yield from _unless_late(lambda round=round, exchange=exchange: silo_step(role, round, exchange))  # type: ignore[misc]
        last = federation.spec.rounds
        _broadcast(role, last, federation.last_exchange(last))
        yield from _counted(role, last, validate_step)
    except InputError as error:  # trying again would not help, so the server is told
        _give_up(role, layout.author_bucket(role.name), error)
        raise


def evaluator_loop(role: Role) -> Iterator[UpdateManifest]:
    """Counts right answers on the target domain with every model that is due."""
    federation = role.federation
    federation.store.delete(layout.EVALUATOR, layout.failure_key(federation.run))
    _note_earlier_failure(role)
    try:
        for round in range(1, federation.spec.rounds + 1):
            _broadcast(role, round, federation.last_exchange(round))
            yield from _counted(role, round, evaluate_step)
    except InputError as error:
        _give_up(role, layout.EVALUATOR, error)
        raise


def _counted(role: Role, round: int, step: Callable[[Role, int], UpdateManifest]) -> Iterator[UpdateManifest]:
    if role.federation.counts(round):
        yield from _unless_late(lambda: step(role, round))


def _unless_late(step: Callable[[], UpdateManifest]) -> Iterator[UpdateManifest]:
    """Where the others have gone on without this role long ago, nothing but a line in the log."""
    try:
        yield step()
    except ExpiredError as error:
        log.warning("%s", error)


def server_loop(role: Role) -> Iterator[BroadcastManifest]:
    """Combines what the participants publish, exchange after exchange. `conclude` comes after it."""
    federation = role.federation
    federation.store.delete(layout.GLOBAL, layout.failure_key(federation.run))
    try:
        participants: Sequence[str] = federation.silos
        for round, exchange in federation.steps():
            if read_broadcast(federation, round, exchange) is None:
                _collect(federation, round, exchange, participants)
            broadcast = server_step(role, round, exchange)
            participants = broadcast.participants
            yield broadcast
    except SiloflowError as error:
        _give_up(role, layout.GLOBAL, error)
        raise


def conclude(role: Role) -> dict[str, Any]:
    """The result, once everybody has counted with the last model."""
    _await_counts(role.federation)
    return finish(role)


def _collect(federation: Federation, round: int, exchange: str, participants: Sequence[str]) -> None:
    """Until every participant has published or given up, or the deadline is over. Whether that is enough, the server step decides."""
    awaited, gone = set(participants), dict[str, str]()

    def look() -> bool | None:
        for silo in sorted(awaited):
            if _published(federation, silo, round, exchange):
                awaited.discard(silo)
            elif (why := _failure(federation, layout.author_bucket(silo))) is not None:
                awaited.discard(silo)
                gone[silo] = why
        return True if not awaited or len(participants) - len(gone) < quorum_of(federation, participants) else None

    in_time = wait_for(look, federation.spec.deadline)
    if len(participants) - len(gone) < quorum_of(federation, participants):
        raise DeadlineError(f"round {round} {exchange}: " + "; ".join(f"silo {silo}: gave up: {why}" for silo, why in gone.items()))
    if not in_time:
        log.warning("round %d %s: no update of %s within %g s", round, exchange, ", ".join(sorted(awaited)), federation.spec.deadline)


def _await_counts(federation: Federation) -> None:
    """Those of the last round; a silo that is too late for it is left out of the validation accuracy, as in every round."""
    last = federation.spec.rounds
    awaited = {(layout.EVALUATOR, layout.EVALUATE), *((silo, layout.VALIDATE) for silo in federation.silos)}

    def look() -> bool | None:
        for author, name in sorted(awaited):
            if _published(federation, author, last, name) or _failure(federation, layout.author_bucket(author)) is not None:
                awaited.discard((author, name))
        return None if awaited else True

    if not wait_for(look, federation.spec.deadline):
        log.warning("round %d: %s did not count right answers", last, ", ".join(sorted(author for author, _ in awaited)))


# ---- what is in the store


def _published(federation: Federation, author: str, round: int, exchange: str) -> bool:
    return federation.store.size(layout.author_bucket(author), layout.update_keys(federation.run, round, exchange)[1]) is not None


def _broadcast(role: Role, round: int, exchange: str) -> BroadcastManifest:
    """The server's broadcast, waited for as long as the server may wait for the slowest silo, and once more."""
    federation = role.federation

    def look() -> BroadcastManifest | None:
        found = read_broadcast(federation, round, exchange)
        why = None if found is not None or _is_no_news(role) else _failure(federation, layout.GLOBAL)
        if why is not None:
            raise DeadlineError(f"server: gave up: {why}")
        return found

    found = wait_for(look, 2 * federation.spec.deadline)
    if found is None:
        why = _failure(federation, layout.GLOBAL)  # it was no news, but nobody came back either
        said = (
            f"gave up: {why}" if why else f"no broadcast of round {round} {exchange} within {2 * federation.spec.deadline:g} s; see its log"
        )
        raise DeadlineError(f"server: {said}")
    return found


def _note_earlier_failure(role: Role) -> None:
    """Where all are started again, a silo may be faster than the server, which takes its note back when it starts."""
    found = _failure_note(role.federation, layout.GLOBAL)
    role.earlier = (found, time.monotonic() + GRACE) if found is not None else None


def _is_no_news(role: Role) -> bool:
    if role.earlier is None or time.monotonic() > role.earlier[1]:
        return False
    return _failure_note(role.federation, layout.GLOBAL) == role.earlier[0]


def _failure_note(federation: Federation, bucket: str) -> bytes | None:
    return federation.store.get(bucket, layout.failure_key(federation.run), MANIFEST_LIMIT)


def _failure(federation: Federation, bucket: str) -> str | None:
    data = _failure_note(federation, bucket)
    if data is None:
        return None
    try:
        return " ".join(str(json.loads(data)["reason"]).split())[:300]
    except (ValueError, KeyError, TypeError):
        return "it did not say why"


def _give_up(role: Role, bucket: str, error: SiloflowError) -> None:
    note = {"reason": str(error), "when": time.time()}  # with the same reason again, it is another note
    try:
        role.federation.store.put(bucket, layout.failure_key(role.federation.run), [json.dumps(note).encode()])
    except SiloflowError:
        log.warning("could not tell the others that this role gave up")
