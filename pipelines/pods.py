"""How a task of a pipeline becomes a pod: what silos.yaml says of its role, and what holds for every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components import layout
from components.environment import IMAGE
from pipelines.silos import Pod, SilosFile, Volume, secret_name

CREDENTIALS, CA = "/credentials", "/ca"
USER = 10001  # of the image
RETRIES = 2
METRICS_PORT = 9464  # as in the chart's values
KEYS = {"access_key": "SILOFLOW_ACCESS_KEY", "secret_key": "SILOFLOW_SECRET_KEY"}
LONGEST = "864000s"  # KFP's default of an hour would end the retries of a long training


def settle(task: Any, file: SilosFile, roles: Sequence[str], display: str, newer: bool) -> Any:
    """The first role's machine; the keys of all of them; the images of the last. `newer`: the server of pipelines is 2.17 or later."""
    from kfp import kubernetes

    pods = file.pods()
    first, last = pods[roles[0]], pods[roles[-1]]
    task.set_display_name(display).set_container_image(file.image.name).set_caching_options(False)
    task.set_env_variable(IMAGE, file.image.name)
    task.set_retry(RETRIES, backoff_duration="10s", backoff_factor=2.0, backoff_max_duration=LONGEST)
    kubernetes.set_image_pull_policy(task, file.image.pull_policy)
    if file.image.pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(file.image.pull_secrets))
    kubernetes.add_pod_label(task, "app.kubernetes.io/name", "siloflow")
    kubernetes.add_pod_label(task, "siloflow.io/role", roles[0] if roles[0] in layout.RESERVED else "silo")
    if roles[0] not in layout.RESERVED:
        kubernetes.add_pod_label(task, "siloflow.io/silo", roles[0])
    _machine(task, first)
    _volumes(task, first.state, last.data, newer)
    for role in roles:
        _keys(task, role, pods[role], alone=len(roles) == 1)
    if file.ca_secret:
        kubernetes.use_secret_as_volume(task, file.ca_secret, CA)
        task.set_env_variable("SILOFLOW_CA", f"{CA}/ca.crt")
    if newer:
        kubernetes.set_security_context(task, run_as_user=USER, run_as_group=USER, run_as_non_root=True)
    return task


def _machine(task: Any, pod: Pod) -> None:
    from kfp import kubernetes

    requests, limits = pod.resources.requests, pod.resources.limits
    for set_amount, amount in (
        (task.set_cpu_request, requests.cpu), (task.set_cpu_limit, limits.cpu),
        (task.set_memory_request, requests.memory), (task.set_memory_limit, limits.memory),
    ):  # fmt: skip
        if amount is not None:
            set_amount(amount)
    task.set_env_variable("SILOFLOW_THREADS", str(threads(pod)))
    if pod.gpu is not None:  # one without the other gives no GPU, silently
        task.set_accelerator_type(pod.gpu.type).set_accelerator_limit(pod.gpu.count)
    for label, value in sorted(pod.node_selector.items()):
        kubernetes.add_node_selector(task, label, value)
    for toleration in pod.tolerations:
        kubernetes.add_toleration(task, toleration.key, toleration.operator, toleration.value, toleration.effect)
    if pod.shm is not None:
        kubernetes.empty_dir_mount(task, "shm", "/dev/shm", medium="Memory", size_limit=pod.shm)


def threads(pod: Pod) -> int:
    """Whole cores that the pod may use."""
    cores = pod.resources.limits.cpu or pod.resources.requests.cpu or "1"
    return max(1, int(float(cores[:-1]) / 1000 if cores.endswith("m") else float(cores)))


def _volumes(task: Any, state: Volume | None, data: Volume | None, newer: bool) -> None:
    """Older servers ignore a sub path: there the whole volume is mounted, and the process is told where its folder is."""
    folder = _mounted(task, state, newer) if state is not None else "/tmp/siloflow"
    task.set_env_variable("SILOFLOW_STATE", folder).set_env_variable("SILOFLOW_CACHE", f"{folder}/cache")
    if data is not None:
        task.set_env_variable("SILOFLOW_DATA", _mounted(task, data, newer))


def _mounted(task: Any, volume: Volume, newer: bool) -> str:
    from kfp import kubernetes

    if newer and volume.sub_path:
        kubernetes.mount_pvc(task, volume.claim, volume.path, volume.sub_path)
        return volume.path
    kubernetes.mount_pvc(task, volume.claim, volume.path)
    return f"{volume.path}/{volume.sub_path}" if volume.sub_path else volume.path


def _keys(task: Any, role: str, pod: Pod, alone: bool) -> None:
    from kfp import kubernetes

    if pod.secret_as == "env" and alone:  # two roles in one pod cannot have the same variables
        kubernetes.use_secret_as_env(task, secret_name(role, pod), KEYS)
    else:
        kubernetes.use_secret_as_volume(task, secret_name(role, pod), f"{CREDENTIALS}/{role}")
        task.set_env_variable("SILOFLOW_CREDENTIALS", CREDENTIALS)
