"""The pipeline `stepwise`: a loop over the steps of a run, one task per silo in each, then the server's. For seeing and retrying rounds.

The loop runs one step at a time. After a failed step Argo still starts the later ones: each sees that the broadcast before it is
missing and fails at once.
"""

from typing import Any

from components.layout import EVALUATOR, SERVER
from pipelines.form import Form
from pipelines.pods import settle
from pipelines.silos import SilosFile


def build(file: SilosFile, form: Form, newer: bool) -> Any:
    """`most`, the steps that fit into Argo's object, is known once the package is; the compiler fills it in."""
    from kfp import dsl

    from components.evaluate.component import evaluate
    from components.plan_run.component import plan
    from components.report.component import report
    from components.server_step.component import server_step
    from components.silo_step.component import silo_step

    store, job, names = file.store, dsl.PIPELINE_JOB_ID_PLACEHOLDER, file.names
    both = [SERVER, EVALUATOR]

    @dsl.pipeline(name="siloflow-stepwise", description=form.description("one task per silo and step"))
    def stepwise(  # type: ignore[no-untyped-def]
        algorithm: str = form.algorithm, dataset: str = form.dataset, target: str = form.target, rounds: int = form.rounds,
        seed: int = form.seed, overrides: str = "", spec: str = form.spec, run: str = "",
    ):  # fmt: skip
        planned = plan(
            store=store, run=run, job=job, silos=names, most=0, algorithm=algorithm, dataset=dataset, target=target,
            rounds=rounds, seed=seed, overrides=overrides, spec=spec,
        )  # fmt: skip
        settle(planned, file, both, "plan", newer)
        with dsl.ParallelFor(items=planned.output, parallelism=1, name="step") as step:
            trained = []
            for silo in names:
                task = silo_step(store=store, run=run, job=job, silo=silo, step=step)
                trained.append(settle(task, file, [silo], silo, newer))
            combined = server_step(store=store, run=run, job=job, step=step).after(*trained)
            settle(combined, file, both, "server", newer)
        evaluated = settle(evaluate(store=store, run=run, job=job).after(combined), file, both, "evaluate", newer)
        settle(report(store=store, run=run, job=job).after(evaluated), file, both, "report", newer)

    return stepwise
