"""Taking part in a run whose plan is in the store: all that a role needs to know it reads there, with its own keys.

Nobody here sees the whole data: the planner and the server know the spec, a silo its own images, the evaluator the target's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from components import layout
from components.errors import InputError, StoreError
from components.federation import Federation, checked_run, resolve
from components.plan import check_weights, refuse_taken
from components.silo import Role
from components.spec import FederationSpec, parse_spec
from components.store import Store, open_store
from fl_algorithms.contract import Report
from fl_algorithms.errors import Unusable
from fl_algorithms.registry import ALGORITHMS

COUNT = layout.VALIDATE  # the last step of a run: nothing is exchanged, right answers are counted
STATE = "siloflow-state"


class NotInvolved(InputError):
    """A silo of the federation, but not of this run: the target domain's, say."""


def split_address(address: str) -> tuple[str, str]:
    """STORE/RUN, the run being the last part of the path -> (store, run)."""
    parts = urlsplit(address)
    path, _, run = parts.path.rstrip("/").rpartition("/")
    if not run or not path.strip("/"):
        raise InputError(f"{address!r}: expected STORE/RUN, such as s3://store.example:9000/fed/run-1, found no run behind the store")
    return urlunsplit(parts._replace(path=path)), checked_run(run)


def state_folder(run: str) -> Path:
    """Where a role keeps what is its own between steps: SILOFLOW_STATE, in a cluster its volume."""
    return Path(os.environ.get("SILOFLOW_STATE") or STATE).absolute() / "runs" / run


def checked(values: Mapping[str, Any], store_url: str, silos: Sequence[str]) -> FederationSpec:
    """The resolved spec, checked as far as that is possible without the silos' images. Writes nothing."""
    given, data_path = values.get("store"), os.environ.get("SILOFLOW_DATA")
    if given not in (None, store_url):
        raise InputError(f"store {str(given)[:80]!r}: expected none, since {store_url} is this federation's; leave it out of the spec")
    spec = resolve(parse_spec({**values, "store": store_url}), silos, data_path)
    if ALGORITHMS[spec.algorithm].load().centralised:
        raise InputError(f"algorithm '{spec.algorithm}': pools the images of all silos, expected a federated one; run it with siloflow run")
    for silo in Federation(spec, "check", Path(), data_path=data_path).silos:
        if silo not in silos:
            raise InputError(f"silo '{silo}': the spec deals images to it, expected one of {', '.join(silos)}; add it to the silos file")
    return spec


def announce(values: Mapping[str, Any], store_url: str, run: str, silos: Sequence[str]) -> Federation:
    """Publish the plan that every role goes by, once it is checked."""
    spec = checked(values, store_url, silos)
    federation = Federation(spec, run, state_folder(run), layout.SERVER, store_url, os.environ.get("SILOFLOW_DATA"))
    check_weights(federation)
    federation.store.prepare(layout.buckets(federation.silos))
    refuse_taken(federation)
    federation.store.put(layout.GLOBAL, layout.plan_key(run), [json.dumps(_document(federation), sort_keys=True).encode()])
    return federation


def _document(federation: Federation) -> dict[str, Any]:
    return {
        "run": federation.run,
        "spec_digest": federation.digest,
        "spec": federation.spec.model_dump(mode="json"),
        "classes": list(federation.data.classes),
    }


def join(store_url: str, run: str, name: str, report: Report | None = None) -> Role | None:
    """The role's place in the run, or None while there is no plan of it in the store."""
    document = read_plan(open_store(store_url, name), run)
    if document is None:
        return None
    spec, data_path = parse_spec(document["spec"]), os.environ.get("SILOFLOW_DATA")
    if spec.digest() != document["spec_digest"]:
        raise InputError(f"run '{run}': was planned by another version of siloflow, its spec reads differently here; use the same version")
    federation = Federation(spec, run, state_folder(run), name, store_url, data_path)
    if name not in (layout.SERVER, layout.EVALUATOR) and name not in federation.silos:
        raise NotInvolved(f"silo '{name}': takes no part in run '{run}', whose silos are {', '.join(federation.silos)}")
    if name != layout.SERVER:
        _check_classes(federation, document.get("classes"))
    return Role(federation, name, report) if report else Role(federation, name)


def planned(store_url: str, run: str, name: str) -> Role:
    """`join` where the plan must be there already."""
    role = join(store_url, run, name)
    if role is None:
        raise StoreError(f"run '{run}': {store_url} holds no plan of it; the plan step comes first")
    return role


def read_plan(store: Store, run: str) -> dict[str, Any] | None:
    data = store.get(layout.GLOBAL, layout.plan_key(checked_run(run)))
    if data is None:
        return None
    try:
        document: dict[str, Any] = json.loads(data)
        assert isinstance(document["spec"], dict) and isinstance(document["spec_digest"], str)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise StoreError(f"{store.url}: {layout.plan_key(run)} is not a plan of siloflow; plan the run again under another name") from None
    return document


def _check_classes(federation: Federation, planned: Sequence[str] | None) -> None:
    """A silo that counts its classes differently would train the others' model on wrong labels."""
    try:
        found = list(federation.data.classes)
    except Unusable as error:
        raise InputError(str(error)) from None
    if planned is not None and found != list(planned):
        first = next((name for name in [*found, *planned] if (name in found) != (name in planned)), "the same in another order")
        raise InputError(
            f"classes: expected the {len(planned)} of the plan, found {len(found)} ({first!r} differs); "
            "list them in classes.txt beside the images of every silo"
        )


def steps(federation: Federation) -> list[str]:
    """The run as a list that a pipeline loops over: `round/exchange`, and at the end the counting with the last model."""
    return [*(f"{round}/{exchange}" for round, exchange in federation.steps()), f"{federation.spec.rounds}/{COUNT}"]


def parse_step(text: str) -> tuple[int, str]:
    round, _, exchange = text.partition("/")
    if not round.isdecimal() or not exchange:
        raise InputError(f"step {text[:80]!r}: expected round/exchange, such as 3/train")
    return int(round), exchange
