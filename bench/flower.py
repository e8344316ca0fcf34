"""The peer of `bench.exchange`: rounds without training in Flower's simulation engine. Run by the Python of .peer, which has Flower.

    .peer/bin/python bench/flower.py ROUNDS SILOS LOG

Virtual clients receive a model of ResNet-18's size and send it back decoded and encoded again; the server averages. Nothing is
written to disk. LOG gets Flower's version and the moments at which rounds began, and the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SHAPES: list[tuple[int, tuple[int, ...]]] = [  # ResNet-18 with 1,000 classes: how many tensors of which shape
    (1, (64, 3, 7, 7)), (4, (64, 64, 3, 3)), (1, (128, 64, 3, 3)), (3, (128, 128, 3, 3)), (1, (128, 64, 1, 1)), (1, (256, 128, 3, 3)),
    (3, (256, 256, 3, 3)), (1, (256, 128, 1, 1)), (1, (512, 256, 3, 3)), (3, (512, 512, 3, 3)), (1, (512, 256, 1, 1)), (20, (64,)),
    (20, (128,)), (20, (256,)), (20, (512,)), (1, (1000, 512)), (1, (1000,)),
]  # fmt: skip


def client_app() -> Any:
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    client = ClientApp()

    @client.train()
    def train(message: Any, context: Any) -> Any:
        tensors = {name: array.numpy() for name, array in message.content["arrays"].items()}
        arrays = ArrayRecord({name: Array(tensor) for name, tensor in tensors.items()})
        return Message(content=RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return client


def server_app(rounds: int, silos: int, log: Path) -> Any:
    import flwr
    import numpy as np
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    server, marks = ServerApp(), []

    class Timed(FedAvg):  # type: ignore[misc]
        def configure_train(self, *arguments: Any, **options: Any) -> Any:
            marks.append(time.time())
            return super().configure_train(*arguments, **options)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        draw = np.random.default_rng(0)
        shapes = [shape for count, shape in SHAPES for _ in range(count)]
        model = ArrayRecord({f"t{i:03}": Array(draw.standard_normal(shape, dtype=np.float32)) for i, shape in enumerate(shapes)})
        strategy = Timed(fraction_evaluate=0.0, min_train_nodes=silos, min_available_nodes=silos)
        strategy.start(grid=grid, initial_arrays=model, num_rounds=rounds)
        log.write_text(json.dumps({"version": flwr.__version__, "marks": [*marks, time.time()]}))

    return server


def main() -> None:
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
    from flwr.simulation import run_simulation

    rounds, silos, log = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    backend = {
        "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app(rounds, silos, log), client_app(), num_supernodes=silos, backend_config=backend)


if __name__ == "__main__":
    main()
