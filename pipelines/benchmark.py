"""The pipeline `benchmark`: every algorithm on every target in one run, by the same long-lived tasks, and a table at the end."""

from typing import Any

from components.layout import EVALUATOR, SERVER
from pipelines.form import Form
from pipelines.pods import settle
from pipelines.resident import everybody
from pipelines.silos import SilosFile


def build(file: SilosFile, form: Form, newer: bool) -> Any:
    from kfp import dsl

    from components.plan_run.component import plan_benchmark
    from components.report.component import compare

    store, names = file.store, file.names

    @dsl.pipeline(name="siloflow-benchmark", description=form.description("algorithms x targets"))
    def benchmark(  # type: ignore[no-untyped-def]
        algorithms: list = form.algorithms, dataset: str = form.dataset, targets: list = form.targets, rounds: int = form.rounds,
        seed: int = form.seed, overrides: str = "", spec: str = form.spec, run: str = "",
    ):  # fmt: skip
        planned = plan_benchmark(
            store=store, run=run, job=dsl.PIPELINE_JOB_ID_PLACEHOLDER, silos=names, algorithms=algorithms, dataset=dataset,
            targets=targets, rounds=rounds, seed=seed, overrides=overrides, spec=spec,
        )  # fmt: skip
        settle(planned, file, [SERVER, EVALUATOR], "plan", newer)
        done = everybody(file, planned.output, newer)
        settle(compare(store=store, runs=planned.output).after(*done), file, [SERVER], "compare", newer)

    return benchmark
