"""KFP components of the evaluator: the result of a run as artifacts that the UI shows, and every round of resident runs."""

from kfp import dsl
from kfp.dsl import ClassificationMetrics, Metrics, Model, Output

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(  # type: ignore[no-untyped-def]
    store: str, run: str, job: str, model: Output[Model], metrics: Output[Metrics], confusion: Output[ClassificationMetrics]
):
    """Target accuracy under the three selection rules, the final model, and which class was taken for which.

    Args:
        store: Address of the exchange store.
        run: Name of the run there; empty for the name in job.
        job: Name that KFP gave the run.
        model: The final global model, safetensors.
        metrics: Accuracies, bytes and digests.
        confusion: True and predicted classes on the target domain.
    """
    from components.tasks import ending, evaluate_task

    with ending():
        found = evaluate_task(store, run or job, model.path)
        model.metadata.update(found["model"])
        for name, value in found["metrics"].items():
            metrics.log_metric(name, value)
        confusion.log_confusion_matrix(found["classes"], found["confusion"])


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluator_resident(store: str, runs: list):  # type: ignore[no-untyped-def]
    """Count right answers on the target domain with the model of every round that is due.

    Args:
        store: Address of the exchange store.
        runs: Names of the runs there, done one after another.
    """
    from components.resident_tasks import evaluator_runs
    from components.tasks import ending

    with ending():
        evaluator_runs(store, runs)
