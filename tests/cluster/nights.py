"""The history of a benchmark in a store of the cluster, as the store's administrator sees it."""

from __future__ import annotations

import io
import json
from typing import Any

from minio import Minio

from components import layout
from tests.cluster.release import Release
from tests.nights import BENCHMARK, as_if_nights_had_cost

BUCKET, KEY = "fed-global", layout.history_key(BENCHMARK["name"])


class Nights:
    def __init__(self, release: Release) -> None:
        self._release = release

    def read(self) -> list[dict[str, Any]]:
        """Oldest first."""
        with self._release.store() as endpoint:
            return _get(self._release.client(endpoint))["nights"]

    def verdicts(self) -> list[str]:
        return [night["verdict"] for night in self.read()]

    def cost(self, factor: float) -> None:
        """As if all nights so far had cost so many times as much."""
        with self._release.store() as endpoint:
            client = self._release.client(endpoint)
            content = json.dumps(as_if_nights_had_cost(_get(client), factor)).encode()
            client.put_object(BUCKET, KEY, io.BytesIO(content), len(content))


def _get(client: Minio) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.get_object(BUCKET, KEY).read())
    return found
