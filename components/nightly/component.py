"""KFP components `nightly`, one night of the benchmark with its report, and `verdict`, which is as red as that night."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def nightly(
    store: str, job: str, benchmark: dict, baseline: dict, metrics: Output[Metrics], page: Output[HTML]
) -> NamedTuple("Ended", [("code", int), ("why", str)]):  # type: ignore[valid-type]  # fmt: skip
    """Run the benchmark and compare it with its baseline and with the nights before. KFP shows no report of a task that
    fails, so a red night ends well here and the task verdict fails.

    Args:
        store: Address of the exchange store, where the history is kept.
        job: Name that KFP gave the run, and so the night.
        benchmark: The benchmark, with the fields of bench/nightly.yaml; empty for the one in the image.
        baseline: Its baseline, as siloflow gate --accept writes it; empty for the one in the image.
        metrics: Accuracy of every algorithm on every target, CPU seconds and bytes a round, the exit code.
        page: The report, with the nights before.
        code: Exit code of the command.
        why: What it said last, if it did not end well.
    """
    from components.nightly.night import night_task
    from components.tasks import ending

    with ending():
        ended = night_task(store, job, benchmark, baseline, page.path)
        for name, value in ended.figures.items():
            metrics.log_metric(name, value)
        return ended.code, ended.why


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def verdict(code: int, why: str):  # type: ignore[no-untyped-def]
    """Ends with the exit code of the night: 6 if a gate failed.

    Args:
        code: Exit code of the command.
        why: What it said last, if it did not end well.
    """
    from components.nightly.night import verdict_task
    from components.tasks import ending

    with ending():
        verdict_task(code, why)
