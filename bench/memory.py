"""Memory of a silo and of the server: `python -m bench.memory` prints one JSON object."""

from __future__ import annotations

import json
from typing import Any

from bench import server_memory, silo_memory


def measure() -> dict[str, Any]:
    return {"silo": silo_memory.measure(), "server": server_memory.measure()}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
