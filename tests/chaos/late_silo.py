"""A silo that comes back late, as a process of its own: `python -m tests.chaos.late_silo RUN_FOLDER SILO ROUND EXCHANGE`.

Prints what became of its update.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from components.errors import SiloflowError
from components.federation import Federation
from components.silo import Role, silo_step
from components.spec import FederationSpec


def main(folder: Path, silo: str, round: int, exchange: str) -> None:
    torch.set_num_threads(1)
    plan = json.loads((folder / "plan.json").read_text())
    role = Role(Federation(FederationSpec.model_validate(plan["spec"]), plan["run"], folder, silo), silo)
    try:
        print("published", silo_step(role, round, exchange).round)
    except SiloflowError as error:
        print("refused", error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
