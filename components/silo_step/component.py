"""KFP components of a silo: one step, or whole runs."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def silo_step(store: str, run: str, job: str, silo: str, step: str):  # type: ignore[no-untyped-def]
    """One step of one silo, with that silo's keys, images and device.

    Args:
        store: Address of the exchange store.
        run: Name of the run there; empty for the name in job.
        job: Name that KFP gave the run.
        silo: Name of the silo.
        step: Round and exchange, such as 3/train.
    """
    from components.tasks import ending, silo_task

    with ending():
        silo_task(store, run or job, silo, step)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def silo_resident(store: str, runs: list, silo: str):  # type: ignore[no-untyped-def]
    """Every step of one silo; it meets the others in the store.

    Args:
        store: Address of the exchange store.
        runs: Names of the runs there, done one after another.
        silo: Name of the silo.
    """
    from components.resident_tasks import silo_runs
    from components.tasks import ending

    with ending():
        silo_runs(store, runs, silo)
