"""The pipeline `nightly`: the benchmark of every night in one pod, its report, and a verdict. For `siloflow submit --cron`.

The cells exchange through files of that pod: of the store it needs the server's keys, to keep the history.
"""

from typing import Any

from components.layout import SERVER
from pipelines.form import Form
from pipelines.pods import settle
from pipelines.silos import SilosFile


def build(file: SilosFile, form: Form, newer: bool) -> Any:
    from kfp import dsl

    from components.nightly.component import nightly, verdict

    @dsl.pipeline(name="siloflow-nightly", description=form.description("the nightly benchmark"))
    def night(benchmark: dict = {}, baseline: dict = {}):  # type: ignore[no-untyped-def]  # noqa: B006  KFP copies them
        ended = nightly(store=file.store, job=dsl.PIPELINE_JOB_ID_PLACEHOLDER, benchmark=benchmark, baseline=baseline)
        settle(ended, file, [SERVER], "nightly", newer)
        judged = verdict(code=ended.outputs["code"], why=ended.outputs["why"])
        settle(judged, file, [SERVER], "verdict", newer)
        judged.set_retry(0)  # red stays red

    return night
