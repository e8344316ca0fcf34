"""How much of a bare `minio` client's throughput an exchange keeps, digests included, on a MinIO server on the loopback.

Run from the repository: `python -m bench.s3`. Prints one JSON object; megabytes are 10^6 bytes.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from minio import Minio

from components.store import Store, open_store
from components.wire import Payload, encode
from tests.minio_server import running_minio

MODEL_BYTES = 46_800_000  # the tensors of a ResNet-18
TENSOR_BYTES = 400_000
REPETITIONS = 15


def bare_put(client: Minio, content: bytes) -> None:
    client.put_object(bucket_name="bench-bare", object_name="model", data=io.BytesIO(content), length=len(content))


def bare_get(client: Minio) -> None:
    response = client.get_object(bucket_name="bench-bare", object_name="model")
    try:
        if len(response.read()) != MODEL_BYTES:
            raise RuntimeError("short read")
    finally:
        response.close()
        response.release_conn()


def our_put(store: Store, tensors: dict[str, torch.Tensor]) -> None:
    """As a silo publishes: safetensors, content digest, put."""
    store.put("ours", "model", encode(tensors).chunks)


def our_get(store: Store, digest: str) -> None:
    """As the server reads: fetch, compare the digest, map the tensors."""
    found = store.fetch("ours", "model", limit=2 * MODEL_BYTES)
    if found is None:
        raise RuntimeError("nothing was put")
    with found:
        if found.digest() != digest:
            raise RuntimeError("the store changed the object")
        Payload(found.path)


def seconds_of(actions: dict[str, Callable[[], None]]) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of every turn of each action. They take turns, so that a busy machine slows all of them alike."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for _ in range(REPETITIONS):
        for name, action in actions.items():
            started, spent = time.perf_counter(), time.process_time()
            action()
            seconds[name].append((time.perf_counter() - started, time.process_time() - spent))
    return seconds


def summary(seconds: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """MB/s at the median and at best; `kept` is the share of the bare client's throughput, the median of neighbouring turns."""
    report: dict[str, Any] = {}
    for way in ("put", "get"):
        ours, bare = seconds[f"our_{way}"], seconds[f"bare_{way}"]
        pairs = list(zip(ours, bare, strict=True))
        report[way] = {
            "our_mb_s": rate(median(wall for wall, _ in ours)), "our_best_mb_s": rate(min(wall for wall, _ in ours)),
            "bare_mb_s": rate(median(wall for wall, _ in bare)), "bare_best_mb_s": rate(min(wall for wall, _ in bare)),
            "kept": round(median(theirs[0] / mine[0] for mine, theirs in pairs), 3),
            "client_cpu_ratio": round(median(mine[1] / theirs[1] for mine, theirs in pairs), 3),
        }  # fmt: skip
    return report


def rate(seconds: float) -> float:
    return round(MODEL_BYTES / 1e6 / seconds, 1)


def measure() -> dict[str, Any]:
    content = os.urandom(MODEL_BYTES)
    values = torch.frombuffer(bytearray(content), dtype=torch.float32)
    tensors = {f"t{i:03}": piece for i, piece in enumerate(values.split(TENSOR_BYTES // 4))}
    digest = encode(tensors).digest
    with running_minio() as server:
        os.environ.update(server.environment)
        store = open_store(f"s3://{server.endpoint}/bench")
        store.prepare(["bare", "ours"])
        client = Minio(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key, secure=False)
        found = seconds_of(
            {
                "bare_put": lambda: bare_put(client, content),
                "our_put": lambda: our_put(store, tensors),
                "bare_get": lambda: bare_get(client),
                "our_get": lambda: our_get(store, digest),
            }
        )
    return {"object_bytes": MODEL_BYTES, "repetitions": REPETITIONS, **summary(found)}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
