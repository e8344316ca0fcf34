"""FedAvg's result on a federation, left where the report of another algorithm finds it by name: a store is not searched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from components import layout
from components.digest import digest_of
from components.guards import MANIFEST_LIMIT
from components.store import Store

ALGORITHM = "fedavg"
# What two runs must have in common for a comparison; their training may differ, and the report then says so.
SAME = ("dataset", "target", "sources", "rounds", "seed", "backbone", "weights", "silos_per_domain", "partition", "validation")


def leave(store: Store, silos: Sequence[str], spec: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """The newest counts. Of another algorithm nothing is left."""
    if spec["algorithm"] == ALGORITHM:
        document = {"run": result["run"], "spec": spec, "accuracy": result["accuracy"]}
        store.put(layout.GLOBAL, _key(silos, spec), [json.dumps(document).encode()])


def find(store: Store, silos: Sequence[str], spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Its run, spec and accuracy. ValueError: what is there cannot be read."""
    found = store.get(layout.GLOBAL, _key(silos, spec), MANIFEST_LIMIT)
    document = json.loads(found) if found is not None else None
    return document if isinstance(document, dict) else None


def _key(silos: Sequence[str], spec: Mapping[str, Any]) -> str:
    common = {"silos": sorted(silos), **{name: spec.get(name) for name in SAME}}
    return layout.reference_key(digest_of([json.dumps(common, sort_keys=True).encode()]).partition(":")[2])
