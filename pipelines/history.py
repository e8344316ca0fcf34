"""The nights of a benchmark, kept in the exchange store: one object with a summary of each, and beside it every night's rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from components import layout
from components.errors import StoreError
from components.report.bench_scores import Row, Scores
from components.store import open_store
from pipelines.bench_rows import exact_digest, perf
from pipelines.gates import RULE

MOST_NIGHTS = 400


class History:
    """Of one benchmark at one store, with the server's keys. Every method raises StoreError when the store cannot be reached."""

    def __init__(self, url: str, bench: str) -> None:
        self._store, self._bench = open_store(url, layout.SERVER), bench

    def nights(self) -> list[dict[str, Any]]:
        """Oldest first."""
        self._store.prepare([layout.GLOBAL])
        key = layout.history_key(self._bench)
        stored = self._store.get(layout.GLOBAL, key)
        if stored is None:
            return []
        try:
            nights = json.loads(stored)["nights"]
            for night in nights:
                _ = night["when"], night["system"].items(), night["cells"].items(), [(e["name"], float(e["value"])) for e in night["perf"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StoreError(f"{self._store.url}: object {key} is damaged; move it away to begin a new history") from None
        return list(nights)

    def add(self, rows: Sequence[Row], verdict: str) -> None:
        """The rows first: a night that is in the history has them."""
        nights, tonight = self.nights(), night(rows, verdict)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        self._store.put(layout.GLOBAL, layout.night_key(self._bench, tonight["when"]), [lines.encode()])
        kept = [*(old for old in nights if old["when"] != tonight["when"]), tonight][-MOST_NIGHTS:]
        self._store.put(layout.GLOBAL, layout.history_key(self._bench), [json.dumps({"nights": kept}).encode()])


def night(rows: Sequence[Row], verdict: str) -> dict[str, Any]:
    """A night is over when its last cell is: calling the command again with nothing left to do is the same night."""
    scores = Scores(rows)
    first: Row = scores.done[0] if scores.done else {}
    exact = exact_digest(rows)
    return {
        "when": max(row["when"] for row in rows),
        "commit": first.get("commit", ""),
        "version": rows[0]["version"],
        "system": first.get("system", {}),
        "cells": {place: asdict(found) for place, found in scores.places(RULE).items()},
        "perf": perf(rows),
        "exact": exact[1] if exact else None,
        "failed": len(scores.failed),
        "verdict": verdict,
    }
