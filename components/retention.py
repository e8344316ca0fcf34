"""Old rounds expire: payloads that no step can need again are deleted. Manifests stay; they are small and tell the history.

The rule: what a round replaced (the model before it, say) is deleted `keep_rounds` rounds later, once everybody has counted
right answers with it. So a step may be repeated, or be late, by `keep_rounds` rounds, and what is in force is never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from components import layout
from components.federation import Federation
from components.manifest import BroadcastManifest
from components.received import read_broadcast

PATIENCE = 10  # rounds: counts that are later than this are not waited for, or one dead silo would fill the store


def expire(federation: Federation, round: int, previous: BroadcastManifest) -> int:
    """Delete what may go when this round publishes; returns the last round whose replaced parts are gone.

    Called before the manifest that records it is published: afterwards a repeated step would return at once and leave some.
    """
    done, keep = previous.expired, federation.spec.keep_rounds
    while keep is not None and done < round - keep:
        if done >= round - keep - PATIENCE and not _counted(federation, done, previous.roster):
            break
        done += 1
        for place in _replaced(federation, done, previous.roster):
            federation.store.delete(*place)
    return done


def _counted(federation: Federation, round: int, silos: Iterable[str]) -> bool:
    """Whether nobody has still to count right answers with this round's model."""
    if round == 0 or round % federation.spec.evaluate_every:
        return True
    wanted = [(layout.EVALUATOR, layout.EVALUATE), *((silo, layout.VALIDATE) for silo in silos)]
    manifests = ((layout.author_bucket(author), layout.update_keys(federation.run, round, name)[1]) for author, name in wanted)
    return all(federation.store.size(*place) is not None for place in manifests)


def _replaced(federation: Federation, round: int, silos: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Bucket and key of every part that a step of this round put out of force."""
    for exchange in [exchange.name for exchange in federation.algorithm.exchanges(round)]:
        step = federation.step_before(round, exchange)
        before, after = read_broadcast(federation, *step) if step else None, read_broadcast(federation, round, exchange)
        if before is None or after is None:
            continue
        for name, part in before.parts.items():
            if after.parts[name] != part:
                yield layout.part_place(federation.run, part.round, part.exchange, name, None)
        for name, published in before.personal.items():
            if after.personal[name] != published:
                yield from (layout.part_place(federation.run, *published, name, silo) for silo in silos)
