"""A port of a Kubernetes service through the API server, as `kubectl port-forward` does it; the kubeconfig says where and who."""

from __future__ import annotations

from typing import Any

import urllib3
from urllib3.connection import HTTPConnection

from components.errors import InputError
from pipelines.kfp_client import KfpError, one_line

NO_HOST = "no Kubeflow Pipelines: give --host URL or set KF_PIPELINES_ENDPOINT"


def cluster() -> Any:
    """The core API of the cluster that the kubeconfig names."""
    import kubernetes

    try:
        kubernetes.config.load_kube_config()
    except Exception as error:  # a missing, broken or foreign file; each has its own class
        raise InputError(f"{NO_HOST}, or a KUBECONFIG through which to forward its port ({one_line(str(error), 120)})") from None
    return kubernetes.client.CoreV1Api()


def pod_log(core: Any, namespace: str, pod: str) -> str | None:
    """None without the right to read logs, or without the pod."""
    try:
        return str(core.read_namespaced_pod_log(pod, namespace, container="main", _request_timeout=10))
    except Exception:  # the kubernetes client's own, urllib3's, the exec plug-ins'
        return None


def forwarded(namespace: str, service: str, port: int) -> urllib3.HTTPConnectionPool:
    """A pool whose connections end at a pod of the service; each at one that runs, for pods are replaced while a run is watched."""
    core = cluster()
    _behind(core, namespace, service, port)

    class Forwarded(HTTPConnection):
        def _new_conn(self) -> Any:
            from kubernetes.stream import portforward

            pod, target = _behind(core, namespace, service, port)
            try:
                return portforward(core.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(target)).socket(target)
            except Exception as error:
                raise urllib3.exceptions.NewConnectionError(self, f"port-forward to pod {pod}: {_said(error)}") from None

    pool = urllib3.HTTPConnectionPool(service, port)
    pool.ConnectionCls = Forwarded
    return pool


def _behind(core: Any, namespace: str, service: str, port: int) -> tuple[str, int]:
    try:
        found = core.read_namespaced_service(service, namespace, _request_timeout=10)
        labels = ",".join(f"{name}={value}" for name, value in (found.spec.selector or {}).items())
        pods = core.list_namespaced_pod(namespace, label_selector=labels, _request_timeout=10).items
    except Exception as error:  # the kubernetes client's own, urllib3's, the exec plug-ins'
        status = getattr(error, "status", None)
        if status == 404:
            raise InputError(f"{NO_HOST}; the cluster of the kubeconfig has no service {service} in namespace {namespace}") from None
        raise KfpError(f"cluster of the kubeconfig: {_said(error)}; give --host, or a KUBECONFIG that may forward ports") from None
    ready = [pod.metadata.name for pod in pods if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None]
    if not labels or not ready:
        raise KfpError(f"service {service} of namespace {namespace}: no pod of it is running; look at them with kubectl")
    targets = [entry.target_port for entry in found.spec.ports if entry.port == port]
    return sorted(ready)[0], targets[0] if targets and isinstance(targets[0], int) else port


def _said(error: Exception) -> str:
    status = getattr(error, "status", None)
    text = one_line(str(getattr(error, "reason", None) or error), 160)
    return f"refused us ({status} {text})" if status in (401, 403) else text
