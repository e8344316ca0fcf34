"""KFP components of the server: combine one exchange, or every one of a run; the numbers of a round become metrics."""

from kfp import dsl
from kfp.dsl import Metrics, Output

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def server_step(store: str, run: str, job: str, step: str, metrics: Output[Metrics]):  # type: ignore[no-untyped-def]
    """Check and combine what the silos published, then count right answers on the target domain.

    Args:
        store: Address of the exchange store.
        run: Name of the run there; empty for the name in job.
        job: Name that KFP gave the run.
        step: Round and exchange, such as 3/train.
        metrics: Numbers of this round.
    """
    from components.tasks import ending, server_task

    with ending():
        for name, value in server_task(store, run or job, step).items():
            metrics.log_metric(name, value)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def server_resident(store: str, runs: list, metrics: Output[Metrics]):  # type: ignore[no-untyped-def]
    """Check and combine every exchange as soon as the silos have published.

    Args:
        store: Address of the exchange store.
        runs: Names of the runs there, done one after another.
        metrics: Numbers of the last round.
    """
    from components.resident_tasks import server_runs
    from components.tasks import ending

    with ending():
        for name, value in server_runs(store, runs).items():
            metrics.log_metric(name, value)
