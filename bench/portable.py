"""Does training have the same digest on another CPU, with the kernels of the nightly benchmark's exact run? Prints JSON.

Small enough for an emulator that shows torch and MKL another CPU (some minutes):

    python -m bench.portable
    PYTHONPATH=.:.venv/lib/python3.11/site-packages qemu-x86_64 -cpu EPYC-v1 $(readlink -f .venv/bin/python) -m bench.portable
"""

from __future__ import annotations

import json
import os

from pipelines.bench_lanes import PORTABLE

STEPS, IMAGES = 3, 16


def main() -> None:
    os.environ.update(PORTABLE)  # before torch is loaded
    import torch

    from components.process import compute_with
    from components.wire import model_digest
    from fl_algorithms.losses import cross_entropy
    from fl_algorithms.models import build_model
    from fl_algorithms.training import make_optimizer
    from fl_algorithms.uncompiled import take_step

    compute_with(1)
    digests = {}
    for kind in ("sgd", "adam"):
        torch.manual_seed(0)
        model = build_model("small-cnn", 10, 3, 32)
        optimizer = make_optimizer(kind, model.parameters(), 0.9, 1e-4)
        optimizer.param_groups[0]["lr"] = 0.01
        images, labels = torch.randn(IMAGES, 3, 32, 32), torch.arange(IMAGES) % 10
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(images), labels).backward()
            take_step(optimizer)
        digests[kind] = model_digest(model.state_dict())
    print(json.dumps({"torch": torch.__version__, **digests}))


if __name__ == "__main__":
    main()
