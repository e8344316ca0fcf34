"""KFP components that check the run form and publish the plan, before anything that costs money is started."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def plan(
    store: str, run: str, job: str, silos: list, most: int,
    algorithm: str, dataset: str, target: str, rounds: int, seed: int, overrides: str, spec: str,
) -> list:  # fmt: skip
    """Check the run form; returns the steps of the run.

    Args:
        store: Address of the exchange store.
        run: Name of the run there; empty for the name in job.
        job: Name that KFP gave the run.
        silos: Names of the silos that the pipeline has tasks for.
        most: Steps that one run may have here; 0 for any number.
        algorithm: Algorithm or preset.
        dataset: Data set.
        target: Domain that no silo has.
        rounds: Communication rounds.
        seed: Root of every random stream.
        overrides: Further fields of the spec, YAML or JSON.
        spec: Spec text that the other fields go on top of.
    """
    from components.tasks import ending, plan_task

    with ending():
        return plan_task(store, run or job, silos, (algorithm, dataset, target, rounds, seed, overrides, spec), most)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def plan_resident(
    store: str, run: str, job: str, silos: list,
    algorithm: str, dataset: str, target: str, rounds: int, seed: int, overrides: str, spec: str,
) -> list:  # fmt: skip
    """Check the run form; returns the name of the run, in a list.

    Args:
        store: Address of the exchange store.
        run: Name of the run there; empty for the name in job.
        job: Name that KFP gave the run.
        silos: Names of the silos that the pipeline has tasks for.
        algorithm: Algorithm or preset.
        dataset: Data set.
        target: Domain that no silo has.
        rounds: Communication rounds.
        seed: Root of every random stream.
        overrides: Further fields of the spec, YAML or JSON.
        spec: Spec text that the other fields go on top of.
    """
    from components.tasks import ending, plan_task

    with ending():
        plan_task(store, run or job, silos, (algorithm, dataset, target, rounds, seed, overrides, spec), 0)
        return [run or job]


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def plan_benchmark(
    store: str, run: str, job: str, silos: list,
    algorithms: list, dataset: str, targets: list, rounds: int, seed: int, overrides: str, spec: str,
) -> list:  # fmt: skip
    """Check the run form for every algorithm and target; returns the names of the runs, one for each pair.

    Args:
        store: Address of the exchange store.
        run: What the names of the runs begin with; empty for the name in job.
        job: Name that KFP gave the run.
        silos: Names of the silos that the pipeline has tasks for.
        algorithms: Algorithms or presets.
        dataset: Data set.
        targets: Domains, each in turn the one that no silo has.
        rounds: Communication rounds.
        seed: Root of every random stream.
        overrides: Further fields of the spec, YAML or JSON.
        spec: Spec text that the other fields go on top of.
    """
    from components.resident_tasks import benchmark_task
    from components.tasks import ending

    with ending():
        return benchmark_task(store, run or job, silos, algorithms, targets, (dataset, rounds, seed, overrides, spec))
