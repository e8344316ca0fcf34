"""Rows of a benchmark that nobody ran, for what is made of rows."""

from __future__ import annotations

from typing import Any

SYSTEM = {"python": "3.11", "system": "Linux x86_64", "torch": "2.9", "processor": "P", "cores": "1", "device": "cpu"}


def row(algorithm: str = "fedavg", target: str = "yew", seed: int = 0, last: float = 0.5, **fields: Any) -> dict[str, Any]:
    return {
        "bench": "small", "algorithm": algorithm, "target": target, "seed": seed, "exact": False, "status": "done", "error": None,
        "exit_code": 0, "asked": "0", "version": "0.1.0", "when": f"2026-01-01T00:00:{seed:02}Z", "dataset": "folder",
        "setting": {"image_size": 16, "weights": None, "backbone": "small-cnn", "rounds": 2, "silos_per_domain": 1},
        "silos": 3, "accuracy": {"last": last, "best_validation": last - 0.1, "oracle": last + 0.1}, "validation": 0.9, "digest": "ab" * 32,
        "spec_digest": "cd" * 32, "data": "blake3:0", "weights": "random", "seconds": 2.0, "cpu_seconds": 4.0,
        "bytes": {"up": 2000, "down": 3000}, "commit": "abc", "system": SYSTEM, **fields,
    }  # fmt: skip


def failed(algorithm: str = "fedavg", target: str = "yew", seed: int = 0, code: int = 3) -> dict[str, Any]:
    head = ("bench", "algorithm", "target", "seed", "exact", "asked", "version", "when")
    return {**{name: row(algorithm, target, seed)[name] for name in head}, "status": "failed", "error": "silo ash: late", "exit_code": code,
            "seconds": 1.0}  # fmt: skip


def small() -> list[dict[str, Any]]:
    """Two algorithms, two targets, three seeds, and the exact run. fedavg: 50 ± 1.2 on yew, 60 ± 1.2 on oak."""
    rows = [row(seed=0, exact=True, digest="e" * 64)]
    for algorithm, better in (("fedavg", 0.0), ("fedprox", 0.05)):
        for target, mean in (("yew", 0.5), ("oak", 0.6)):
            rows += [row(algorithm, target, seed, mean + better + 0.02 * (seed - 1), cpu_seconds=4.0 + seed) for seed in range(3)]
    return rows
