"""What is known of a run, read from its manifests and, where there is one, its folder. What cannot be read is noted, not fatal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from components import layout
from components.errors import InputError, SiloflowError, StoreError
from components.federation import Federation
from components.guards import MANIFEST_LIMIT
from components.manifest import BroadcastManifest, UpdateManifest
from components.received import read_broadcast, read_update
from components.report.record import Measured, Record, Result, Round, Score
from components.spec import FederationSpec, read_spec
from fl_algorithms.contract import Task
from fl_algorithms.errors import Unusable
from fl_algorithms.registry import ALGORITHMS

READERS = 8  # manifests asked for at once: over a network, waiting is most of the work
MOST_MANIFESTS = 12_000  # of a longer run only some rounds are looked at in detail
MOST_WORDS = 2000
LOG_TAIL = 65_536  # bytes of a log that are looked at
GAP = 3  # rounds without a broadcast after which no more are expected


def gather(source: Path | Federation) -> Record:
    """From a run folder, or from the store alone where there is no folder."""
    record = _from_folder(source) if isinstance(source, Path) else _from_federation(source)
    if record.federation is not None:
        try:
            _read_store(record, record.federation)
        except SiloflowError as error:
            record.note(f"store: {error}")
    if record.result is not None:
        for measured in record.result.history:
            _fill(record.rounds.setdefault(measured.round, Round(measured.round)), measured)
    if record.wanted_rounds and not record.finished:
        record.note(f"run: not finished, {max(record.rounds, default=0)} of {record.wanted_rounds} rounds are there; resume it")
        for told in dict.fromkeys([*_gave_up(record), *_last_error(record)]):
            record.note(f"run: ended with: {told}")
    return record


def _gave_up(record: Record) -> Iterator[str]:
    """Why the server says it gave up. Resident ones leave that in the store."""
    try:
        if record.federation is not None:
            found = record.federation.store.get(layout.GLOBAL, layout.failure_key(record.federation.run), MANIFEST_LIMIT)
            if found is not None:
                yield str(json.loads(found)["reason"])[:MOST_WORDS]
    except (SiloflowError, ValueError, KeyError, TypeError, RecursionError):
        return  # what cannot be read is not the reason


def _last_error(record: Record) -> Iterator[str]:
    """The same from the server's log: also updates that were rejected in a round that never ended are named there."""
    path = record.folder / "logs" / f"{layout.SERVER}.log" if record.folder else None
    try:
        if path is not None and path.is_file():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_TAIL))
                lines = file.read().decode(errors="replace").splitlines()
            errors = [line.split(" ERROR ", 1)[1] for line in lines if " ERROR " in line]
            yield from (text[:MOST_WORDS] for text in errors[-1:])
    except OSError:
        return


# ---- the folder


def _from_folder(folder: Path) -> Record:
    if not folder.is_dir():
        raise InputError(f"run folder {folder}: expected a folder of `siloflow run`, found none; check the path")
    record = Record(folder.absolute().name, folder=folder)
    record.plan = _json(record, folder / "plan.json")
    record.result = _result(record, folder / "result.json")
    try:
        spec = FederationSpec.model_validate(read_spec(folder / "spec.yaml"))
    except InputError as error:
        record.note(str(error))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        record.note(f"spec.yaml: field {where!r}: {first['msg']}; it is of another version, so only result.json is shown")
    else:
        record.spec = spec.model_dump(mode="json")
        told = record.result.run if record.result else record.name  # a folder may have been renamed
        record.federation = Federation(spec, str(record.plan.get("run") or told), folder.absolute(), layout.SERVER)
        if spec.algorithm not in ALGORITHMS:
            record.note(f"spec.yaml: algorithm {spec.algorithm[:80]!r} is not known here; only result.json is shown")
            record.federation = None
    if not record.spec and record.result is None:
        raise InputError(f"run folder {folder}: expected spec.yaml and result.json of a run, found neither readable; check the path")
    return record


def _json(record: Record, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        record.note(f"{path.name}: cannot be read ({error.strerror})")
        return {}
    except (ValueError, RecursionError):
        record.note(f"{path.name}: expected JSON, found a broken file")
        return {}
    if not isinstance(found, dict):
        record.note(f"{path.name}: expected an object, found a {type(found).__name__}")
        return {}
    return found


def _result(record: Record, path: Path) -> Result | None:
    if not path.exists():
        return None  # an unfinished run has none; whether it is one, its rounds tell
    values = _json(record, path)
    return _checked(record, values) if values else None


def _checked(record: Record, values: Any) -> Result | None:
    try:
        return Result.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        record.note(f"result.json: {'.'.join(map(str, first['loc']))}: {first['msg']}; it is of another version or damaged and not used")
        return None


def _from_federation(federation: Federation) -> Record:
    folder = federation.folder if federation.folder.is_dir() and (federation.folder / "plan.json").exists() else None
    record = Record(federation.run, federation.spec.model_dump(mode="json"), federation=federation, folder=folder)
    try:
        stored = federation.store.get(layout.GLOBAL, layout.plan_key(federation.run))
        plan = json.loads(stored) if stored is not None else {}
        record.plan = plan if isinstance(plan, dict) else {}
        found = federation.store.get(layout.GLOBAL, layout.result_key(federation.run))
        record.result = _checked(record, json.loads(found)) if found is not None else None
    except (SiloflowError, ValueError, RecursionError) as error:
        record.note(f"plan and result in the store: {error}")
    return record


# ---- the store


def exchange_names(federation: Federation, round: int) -> list[str]:
    """Also where the images are elsewhere: which exchanges there are does not depend on them."""
    try:
        return [exchange.name for exchange in federation.algorithm.exchanges(round)]
    except (Unusable, SiloflowError):
        cls = ALGORITHMS[federation.spec.algorithm].load()
        blind = Task(federation.spec.backbone, 2, 3, 224, (0.5,) * 3, (0.5,) * 3)
        return [exchange.name for exchange in cls(cls.Hyper(**federation.spec.hyper), blind).exchanges(round)]


def _read_store(record: Record, federation: Federation) -> None:
    with ThreadPoolExecutor(READERS) as pool:
        for number in _chosen(record, federation):
            broadcasts = list(_broadcasts(record, federation, number))
            record.broadcasts += broadcasts
            if number and broadcasts:
                entry = record.rounds.setdefault(number, Round(number))
                for broadcast in broadcasts:
                    _weigh(entry, broadcast)
            if broadcasts:
                wanted = list(_authors(record, broadcasts, number))
                found = pool.map(lambda item: read_update(federation, item[0], item[1], item[2]), wanted)
                record.updates += [update for update in found if update is not None]
            elif number - max((b.round for b in record.broadcasts), default=-1) >= GAP:
                break
    for update in record.updates:
        if update.round:
            _take(record.rounds.setdefault(update.round, Round(update.round)), update)
    for entry in record.rounds.values():
        entry.pooled = _pool(entry.validation.values())


def _chosen(record: Record, federation: Federation) -> list[int]:
    """All rounds, or of a long run the first, the last and some between."""
    rounds = federation.spec.rounds
    most = max(10, MOST_MANIFESTS // (2 * len(federation.silos) + 2))
    if rounds <= most or record.result is None:
        return list(range(rounds + 1))
    record.note(f"details of every round: of {rounds} rounds, {most} are looked at in detail; the curves have all")
    return sorted({round(place * rounds / (most - 1)) for place in range(most)})


def _broadcasts(record: Record, federation: Federation, number: int) -> Iterator[BroadcastManifest]:
    for name in exchange_names(federation, number):
        try:
            found = read_broadcast(federation, number, name)
        except StoreError as error:
            record.note(str(error))
            continue
        if found is not None:
            yield found
        elif record.result is not None:
            record.note(f"round {number} {name}: its broadcast is not in the store; what it says is missing here")


def _authors(record: Record, broadcasts: Sequence[BroadcastManifest], number: int) -> Iterator[tuple[str, int, str]]:
    for broadcast in broadcasts:
        yield from ((silo, number, broadcast.exchange) for silo in broadcast.accepted)
    if number:
        yield from ((silo, number, layout.VALIDATE) for silo in broadcasts[-1].roster)
        yield layout.EVALUATOR, number, layout.EVALUATE


def _weigh(entry: Round, broadcast: BroadcastManifest) -> None:
    entry.weights = dict(broadcast.weights) or entry.weights
    for name, row in broadcast.layer_weights.items():
        entry.layer_weights[name] = dict(zip(broadcast.accepted, row, strict=False))


def _take(entry: Round, update: UpdateManifest) -> None:
    metrics = update.metrics
    if update.exchange in (layout.VALIDATE, layout.EVALUATE):
        score = _score(metrics)
        if update.exchange == layout.EVALUATE:
            entry.target = score
        elif score is not None:
            entry.validation[update.author] = score
        return
    for name, place in (("loss", entry.train_loss), ("drift", entry.drift)):
        value = metrics.get(name)
        if value is not None:
            place[update.author] = value


def _score(metrics: Mapping[str, float | None]) -> Score | None:
    """Counts come from outside: what cannot be is left out."""
    correct, total, loss = (metrics.get(key) for key in ("correct", "total", "loss_sum"))
    if correct is None or total is None or not 0 <= correct <= total or total <= 0:
        return None
    return Score(correct / total, int(total), loss / total if loss is not None else None)


def _pool(scores: Iterable[Score]) -> Score | None:
    known = list(scores)
    total = sum(score.total for score in known)
    if not total:
        return None
    losses = [score.loss * score.total for score in known if score.loss is not None]
    loss = sum(losses) / total if len(losses) == len(known) else None
    return Score(sum(score.accuracy * score.total for score in known) / total, total, loss)


def _fill(entry: Round, measured: Measured) -> None:
    """What the manifests did not tell, from result.json."""
    if entry.target is None and measured.target_accuracy is not None:
        entry.target = Score(measured.target_accuracy)
    if entry.pooled is None and measured.validation_accuracy is not None:
        entry.pooled = Score(measured.validation_accuracy, loss=measured.validation_loss)
    for silo, accuracy in measured.validation.items():
        if accuracy is not None:
            entry.validation.setdefault(silo, Score(accuracy))
    entry.train_loss = {**measured.train_loss, **entry.train_loss}
    entry.weights = entry.weights or dict(measured.weights)
