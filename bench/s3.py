"""How much of a bare `minio` client's throughput an exchange keeps, digests included, on a MinIO server on the loopback.

Run from the repository: `python -m bench.s3`. Prints one JSON object; megabytes are 10^6 bytes, rates are medians.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import time
from collections.abc import Callable

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


def rates(actions: dict[str, Callable[[], None]]) -> dict[str, float]:
    """MB/s of each action. They take turns, so that a busy machine slows all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(REPETITIONS):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    return {name: MODEL_BYTES / 1e6 / statistics.median(taken) for name, taken in seconds.items()}


def measure() -> dict[str, float]:
    content = os.urandom(MODEL_BYTES)
    values = torch.frombuffer(bytearray(content), dtype=torch.float32)
    tensors = {f"t{i:03}": piece for i, piece in enumerate(values.split(TENSOR_BYTES // 4))}
    digest = encode(tensors).digest
    with running_minio() as server:
        os.environ.update(server.environment)
        store = open_store(f"s3://{server.endpoint}/bench")
        store.prepare(["bare", "ours"])
        client = Minio(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key, secure=False)
        found = rates(
            {
                "bare_put": lambda: bare_put(client, content),
                "our_put": lambda: our_put(store, tensors),
                "bare_get": lambda: bare_get(client),
                "our_get": lambda: our_get(store, digest),
            }
        )
    report = {f"{name}_mb_s": round(rate, 1) for name, rate in found.items()}
    report |= {f"{way}_ratio": round(found[f"our_{way}"] / found[f"bare_{way}"], 3) for way in ("put", "get")}
    return report | {"object_bytes": MODEL_BYTES, "repetitions": REPETITIONS}


if __name__ == "__main__":
    print(json.dumps(measure()))
