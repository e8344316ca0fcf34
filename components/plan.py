"""The first and the last step of a run: `plan` settles what will be done, `finish` says what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from components import layout, reference
from components.environment import environment
from components.errors import InputError, StoreError
from components.federation import Federation, resolve
from components.manifest import BroadcastManifest
from components.received import read_broadcast, read_update
from components.silo import Role
from components.spec import FederationSpec, flat, parse_spec, read_spec
from components.store.file import write_file
from components.wire import encode, model_digest
from fl_algorithms.contract import Report
from fl_algorithms.errors import Unusable
from fl_algorithms.evaluation import select
from fl_algorithms.fedavg import MODEL
from fl_algorithms.models import load_weights

BEFORE_SPEC = ("store", "plan.json")  # all that is in a run folder when `plan` is killed before its last write


def plan(values: dict[str, Any], folder: Path, report: Report) -> dict[str, Any]:
    """Check everything that can be wrong before anything is trained or written, then lay out the run folder and the store."""
    spec = resolve(parse_spec(values))
    refuse_other_run(folder, spec)
    federation = Federation(spec, folder.name, folder, layout.SERVER)
    _ = federation.store  # without keys there is no use in decoding images first
    weights = check_weights(federation)
    splits = deal(federation, report)
    _lay_out(federation, splits)
    return {
        "spec": spec.model_dump(mode="json"), "run": federation.run, "silos": federation.silos, "device": str(federation.device),
        "samples": {silo: sum(map(len, share["train"].values())) for silo, share in splits.items()},
        "target_images": len(federation.target_rows), "classes": len(federation.data.classes), "weights": weights,
        "first": (0, federation.last_exchange(0)),
    }  # fmt: skip


def refuse_other_run(folder: Path, spec: FederationSpec) -> None:
    """A run folder holds one run. The same spec again continues it; another spec is refused, naming the field."""
    stored = folder / "spec.yaml"
    if stored.exists():
        theirs, ours = parse_spec(read_spec(stored)).model_dump(mode="json"), spec.model_dump(mode="json")
        for field, value in flat(ours).items():
            if flat(theirs).get(field) != value:
                found = f"{field} is {flat(theirs).get(field)!r} there, {value!r} here"
                raise InputError(f"run folder {folder}: belongs to another spec: {found}; choose another --out")
    elif folder.is_dir() and any(path.name not in BEFORE_SPEC and not path.name.startswith(".") for path in folder.iterdir()):
        raise InputError(f"run folder {folder}: is not empty and holds no run; choose another --out")


def check_weights(federation: Federation) -> str:
    """Whether the weight file fits is known now, not after the silos have started."""
    if federation.spec.weights is None:
        return "random"
    try:
        return load_weights(federation.algorithm.build(), federation.spec.weights).digest
    except Unusable as error:
        raise InputError(f"weights: {error}") from None


def deal(federation: Federation, report: Report) -> dict[str, dict[str, dict[str, list[int]]]]:
    """Decode what is not in the cache yet and deal it to the silos; the result is stored with the run."""
    spec = federation.spec
    domains = [*(spec.sources or ()), str(spec.target)]
    try:
        for domain in domains:
            federation.data.domain(domain, partial(report, f"decode {domain}"))
        shares = federation.shares(spec.sources or ())
        _ = federation.target_rows  # may be refused too
    except Unusable as error:
        raise InputError(str(error)) from None
    return {
        silo: {part: {domain: rows.tolist() for domain, rows in getattr(share, part).items()} for part in ("train", "validation")}
        for silo, share in sorted(shares.items())
    }


def _lay_out(federation: Federation, splits: dict[str, Any]) -> None:
    spec = federation.spec
    images = {domain: federation.data.domain(domain).digest for domain in [*(spec.sources or ()), str(spec.target)]}
    document = {
        "run": federation.run,
        "spec_digest": federation.digest,
        "spec": spec.model_dump(mode="json"),
        "images": images,
        "environment": environment(str(federation.device)),
        "splits": splits,
        "target_rows": federation.target_rows if spec.dataset.target_subset == "test" else "all",
    }
    try:
        federation.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"run folder {federation.folder}: cannot be made ({error.strerror}); choose another --out") from None
    federation.store.prepare(layout.buckets(federation.silos))
    refuse_taken(federation)
    public = {key: value for key, value in document.items() if key not in ("splits", "target_rows")}
    federation.store.put(layout.GLOBAL, layout.plan_key(federation.run), [json.dumps(public, sort_keys=True).encode()])
    write_file(federation.folder / "plan.json", [json.dumps(document, sort_keys=True).encode()])
    # written last: a folder with a spec is a run that can be resumed
    write_file(federation.folder / "spec.yaml", [yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False).encode()])


def refuse_taken(federation: Federation) -> None:
    """A store may be shared by many runs: the name of another one is not written over."""
    stored = federation.store.get(layout.GLOBAL, layout.plan_key(federation.run))
    if stored is not None and federation.digest.encode() not in stored:
        raise InputError(f"run '{federation.run}': {federation.store.url} holds another run of this name; choose another --out")


# ---- the result


def finish(role: Role) -> dict[str, Any]:
    """Read back what every round published, choose by the three rules, write result.json and the final model."""
    federation, spec = role.federation, role.federation.spec
    rounds = [round_entry(federation, number) for number in range(1, spec.rounds + 1)]
    last = read_broadcast(federation, spec.rounds, federation.last_exchange(spec.rounds))
    if last is None:
        raise StoreError(f"{federation.store.url}: the broadcast of the last round is missing; resume the run")
    model = role.received(last, None)[MODEL]
    write_file(federation.folder / "model.safetensors", encode(model).chunks)
    seconds: dict[str, float] = {}
    for entry in rounds:
        for stage, value in entry["seconds"].items():
            seconds[stage] = round(seconds.get(stage, 0.0) + value, 3)
    result = {
        "run": federation.run, "algorithm": spec.algorithm, "dataset": spec.dataset.name, "target": spec.target, "seed": spec.seed,
        "rounds": spec.rounds, "digest": model_digest(model), "spec_digest": federation.digest,
        "accuracy": select([r["validation_accuracy"] for r in rounds], [r["target_accuracy"] for r in rounds]),
        "history": rounds, "seconds": seconds,
        "bytes": {"up": sum(r["bytes"]["up"] for r in rounds), "down": sum(r["bytes"]["down"] for r in rounds)},
        "rejected": [*_rejected_at_join(federation), *(item for r in rounds for item in r["rejected"])],
        "absent": sorted(set(federation.silos) - last.roster.keys()),  # did not join, so took no part at all
    }  # fmt: skip
    reference.leave(federation.store, federation.silos, spec.model_dump(mode="json"), result)
    federation.store.put(layout.GLOBAL, layout.result_key(federation.run), [json.dumps(result).encode()])
    write_file(federation.folder / "result.json", [json.dumps(result, indent=1).encode()])
    return result


def round_entry(federation: Federation, number: int) -> dict[str, Any]:
    """One row of the history, from the manifests of this round."""
    entry: dict[str, Any] = {"round": number, "rejected": [], "missing": [], "seconds": {}, "bytes": {"up": 0, "down": 0}, "train_loss": {}}
    for exchange in [e.name for e in federation.algorithm.exchanges(number)]:
        broadcast = read_broadcast(federation, number, exchange)
        if broadcast is None:
            raise StoreError(f"{federation.store.url}: the broadcast of round {number} {exchange} is missing; resume the run")
        entry["participants"], entry["weights"] = broadcast.accepted, broadcast.weights
        entry["missing"] += broadcast.missing
        entry["rejected"] += _rejections(broadcast)
        _add(entry["seconds"], broadcast.seconds)
        for silo in broadcast.accepted:
            update = read_update(federation, silo, number, exchange)
            if update is not None:
                entry["bytes"]["up"] += update.payload.bytes if update.payload else 0
                entry["bytes"]["down"] += update.received_bytes
                _add(entry["seconds"], update.seconds)
                if update.metrics.get("loss") is not None:
                    entry["train_loss"][silo] = update.metrics["loss"]
    _count(federation, number, entry)
    return entry


def _rejections(broadcast: BroadcastManifest) -> list[dict[str, Any]]:
    return [{"round": broadcast.round, "exchange": broadcast.exchange, **item.model_dump()} for item in broadcast.rejected]


def _rejected_at_join(federation: Federation) -> list[dict[str, Any]]:
    joined = read_broadcast(federation, 0, federation.last_exchange(0))
    return _rejections(joined) if joined is not None else []


def _count(federation: Federation, number: int, entry: dict[str, Any]) -> None:
    """Validation pooled over the silos, and the target domain."""
    found = {silo: read_update(federation, silo, number, layout.VALIDATE) for silo in federation.silos}
    counts = {silo: update.metrics for silo, update in found.items() if update is not None and _plausible(update.metrics)}
    entry["validation"] = {silo: _ratio(metrics) for silo, metrics in counts.items()}
    pooled = {key: sum(metrics[key] or 0.0 for metrics in counts.values()) for key in ("correct", "total", "loss_sum")}
    entry["validation_accuracy"] = _ratio(pooled)
    entry["validation_loss"] = pooled["loss_sum"] / pooled["total"] if pooled["total"] else None
    target = read_update(federation, layout.EVALUATOR, number, layout.EVALUATE)
    entry["target_accuracy"] = _ratio(target.metrics) if target is not None else None
    for update in [*found.values(), target]:
        if update is not None:
            entry["bytes"]["down"] += update.received_bytes
            _add(entry["seconds"], update.seconds)


def _plausible(metrics: Mapping[str, float | None]) -> bool:
    """Counts come from outside the server: one silo's nonsense must neither stop the report nor enter the pooled accuracy."""
    correct, total, loss_sum = (metrics.get(key) for key in ("correct", "total", "loss_sum"))
    return correct is not None and total is not None and loss_sum is not None and 0 <= correct <= total > 0


def _add(total: dict[str, float], more: dict[str, float]) -> None:
    for stage, seconds in more.items():
        total[stage] = round(total.get(stage, 0.0) + seconds, 6)


def _ratio(metrics: Any) -> float | None:
    return metrics["correct"] / metrics["total"] if metrics.get("total") else None
