"""What a server step adds to the server's memory, in models, for 1 to 50 silos with a ResNet-18: `python -m bench.server_memory`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.observe import growing

SILOS = (1, 3, 10, 32, 50)
BACKBONE = "resnet-18"


def server_step_growth(silos: int, folder: Path, store: str | None = None, backbone: str = BACKBONE) -> dict[str, Any]:
    """Publish one update per silo with the product's own code, then watch this process during the server step.

    `models` is what the step added to this process's memory, in models; without a `store`, one in the folder is used.
    """
    import torch

    from components import layout
    from components.federation import Federation, resolve
    from components.server import server_step
    from components.silo import Clock, Role, publish_update
    from components.spec import parse_spec
    from fl_algorithms.contract import Update

    torch.set_num_threads(1)
    values = {"algorithm": "fedavg", "backbone": backbone, "silos_per_domain": -(-silos // 3), "dataset": "styled-digits", "rounds": 1}
    federation = Federation(resolve(parse_spec({**values, "store": store})), "memory", folder, layout.SERVER)
    names = federation.silos[:silos]
    federation.silos = names
    federation.store.prepare([layout.GLOBAL, *map(layout.silo_bucket, names)])
    state = federation.algorithm.build().state_dict()
    for name in names:
        silo = Role(federation, name)
        publish_update(silo, 0, "join", Update(), 10, 0, Clock())
        publish_update(silo, 1, "train", Update(state), 10, 0, Clock())
    model = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    del state
    server = Role(federation, layout.SERVER)
    server_step(server, 0, "join")
    started, spent = time.monotonic(), time.process_time()
    with growing() as growth:
        server_step(server, 1, "train")
    seconds, cpu = time.monotonic() - started, time.process_time() - spent
    return {
        "silos": len(names), "model_bytes": model, "models": round(growth.bytes / model, 2), "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
    }  # fmt: skip


def measure() -> list[dict[str, Any]]:
    """Each number of silos in a process of its own."""
    found = []
    for silos in SILOS:
        with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
            command = [sys.executable, "-m", "bench.server_memory", str(silos), folder, Path(folder, "store").as_uri(), BACKBONE]
            found.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return found


if __name__ == "__main__":
    print(json.dumps(server_step_growth(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]) if len(sys.argv) > 2 else measure()))
