"""A pipeline that prints what a federation prints. Its annotations are looked at by kfp, so they are not put off."""

import os
from pathlib import Path

from components import VERSION

IMAGE = os.environ.get("KFP_STEP_IMAGE", "localhost/kfp/python:dev")


def compile_pipeline(path: Path, name: str) -> Path:
    """A plan, a loop over rounds with two silos and a server, a report. The silo that `run` names fails."""
    from kfp import compiler, dsl

    component = dsl.component(base_image=IMAGE, install_kfp_package=False)

    @component
    def plan_run(rounds: int, overrides: str) -> list[int]:
        print("overrides:", overrides)
        return list(range(1, rounds + 1))

    @component
    def silo_step(step: int, silo: str, failing: str):
        import sys

        print(f"silo {silo}: round {step}", flush=True)
        if failing == silo:
            print(f"error: silo {silo}: data: expected a folder, found none; mount it", file=sys.stderr, flush=True)
            raise SystemExit(2)

    @component
    def server_step(step: int, rounds: int):
        import json

        told = {
            "round": step,
            "rounds": rounds,
            "exchange": "train",
            "accuracy": step / 10,
            "evaluated_round": step,
            "accepted": 2,
            "seconds": 1.0,
        }
        print("siloflow-round " + json.dumps(told), flush=True)

    @component
    def report(seconds: int):
        import time

        time.sleep(seconds)

    @dsl.pipeline(name=name, description=f"Prints what a federation prints.\n\nsiloflow {VERSION}")
    def pipeline(
        algorithm: str = "fedavg", target: str = "paper", rounds: int = 2, seed: int = 0, overrides: str = "", spec: str = "", run: str = ""
    ):
        plan = plan_run(rounds=rounds, overrides=overrides).set_caching_options(False).set_display_name("plan")
        with dsl.ParallelFor(plan.output, name="rounds", parallelism=1) as step:
            silos = [
                silo_step(step=step, silo=silo, failing=run).set_caching_options(False).set_display_name(silo).set_retry(1, "1s", 1.0)
                for silo in ("north", "south")
            ]
            server = server_step(step=step, rounds=rounds).after(*silos).set_caching_options(False).set_display_name("server")
        report(seconds=seed).after(server).set_caching_options(False).set_display_name("report")

    compiler.Compiler().compile(pipeline, str(path))
    return path
