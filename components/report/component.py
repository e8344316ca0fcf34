"""KFP components `report`, the run as one page that the UI shows, and `compare`, several runs as one table."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def report(store: str, run: str, job: str, page: Output[HTML]):  # type: ignore[no-untyped-def]
    """One self-contained page about the run.

    Args:
        store: Address of the exchange store.
        run: Name of the run there; empty for the name in job.
        job: Name that KFP gave the run.
        page: The report.
    """
    from components.tasks import ending, report_task

    with ending():
        report_task(store, run or job, page.path)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def compare(store: str, runs: list, metrics: Output[Metrics], page: Output[HTML]):  # type: ignore[no-untyped-def]
    """Accuracy of every algorithm on every target.

    Args:
        store: Address of the exchange store.
        runs: Names of the runs there.
        metrics: Target accuracy after the last round, a number for each run.
        page: The table.
    """
    from components.resident_tasks import compare_task
    from components.tasks import ending

    with ending():
        for name, value in compare_task(store, runs, page.path).items():
            metrics.log_metric(name, value)
