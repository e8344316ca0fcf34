"""The pipeline `resident`: one long-lived task per silo, one for the server, one for the evaluator. For hundreds of rounds.

The store is the barrier, so no pod starts inside a round. All pods must be schedulable together.
"""

from typing import Any

from components.layout import EVALUATOR, SERVER
from pipelines.form import Form
from pipelines.pods import METRICS_PORT, settle
from pipelines.silos import SilosFile


def build(file: SilosFile, form: Form, newer: bool) -> Any:
    from kfp import dsl

    from components.evaluate.component import evaluate
    from components.plan_run.component import plan_resident
    from components.report.component import report

    store, job, names = file.store, dsl.PIPELINE_JOB_ID_PLACEHOLDER, file.names
    both = [SERVER, EVALUATOR]

    @dsl.pipeline(name="siloflow-resident", description=form.description("one long-lived task per silo"))
    def resident(  # type: ignore[no-untyped-def]
        algorithm: str = form.algorithm, dataset: str = form.dataset, target: str = form.target, rounds: int = form.rounds,
        seed: int = form.seed, overrides: str = "", spec: str = form.spec, run: str = "",
    ):  # fmt: skip
        planned = plan_resident(
            store=store, run=run, job=job, silos=names, algorithm=algorithm, dataset=dataset, target=target,
            rounds=rounds, seed=seed, overrides=overrides, spec=spec,
        )  # fmt: skip
        settle(planned, file, both, "plan", newer)
        done = everybody(file, planned.output, newer)
        evaluated = settle(evaluate(store=store, run=run, job=job).after(*done), file, both, "evaluate", newer)
        settle(report(store=store, run=run, job=job).after(evaluated), file, both, "report", newer)

    return resident


def everybody(file: SilosFile, runs: Any, newer: bool) -> list[Any]:
    """The tasks that play the roles of these runs to their end."""
    from components.evaluate.component import evaluator_resident
    from components.server_step.component import server_resident
    from components.silo_step.component import silo_resident

    tasks = [settle(silo_resident(store=file.store, runs=runs, silo=silo), file, [silo], silo, newer) for silo in file.names]
    tasks.append(settle(server_resident(store=file.store, runs=runs), file, [SERVER], "server", newer))
    tasks.append(settle(evaluator_resident(store=file.store, runs=runs), file, [EVALUATOR], "evaluator", newer))
    for task in tasks:  # only these live long enough to be scraped
        task.set_env_variable("SILOFLOW_METRICS_PORT", str(METRICS_PORT))
    return tasks
