"""Where everything lies in the exchange store. The only place that spells a bucket or a key."""

from __future__ import annotations

from collections.abc import Iterable

GLOBAL, EVALUATOR = "global", "evaluator"
SERVER = "server"  # as an author and as a role
ADMIN = "admin"  # a role that only sets the store up
INBOX = "inbox"  # in a silo's bucket, the one place there that the server writes
RESERVED = (ADMIN, EVALUATOR, GLOBAL, SERVER)  # no silo may be called like these
VALIDATE, EVALUATE = "validate", "evaluate"  # counts of right answers: on a silo's validation images, on the target domain


def silo_bucket(silo: str) -> str:
    return f"silo-{silo}"


def author_bucket(author: str) -> str:
    return EVALUATOR if author == EVALUATOR else silo_bucket(author)


def buckets(silos: Iterable[str]) -> list[str]:
    """All of a federation."""
    return [GLOBAL, EVALUATOR, *map(silo_bucket, silos)]


def plan_key(run: str) -> str:
    return f"runs/{run}/plan.json"


def result_key(run: str) -> str:
    return f"runs/{run}/result.json"


def reference_key(federation: str) -> str:
    """FedAvg's result on a federation, by the federation's digest; in the global bucket."""
    return f"references/{federation}.json"


def history_key(bench: str) -> str:
    """Of a benchmark, in the global bucket."""
    return f"benchmarks/{bench}/history.json"


def night_key(bench: str, when: str) -> str:
    return f"benchmarks/{bench}/nights/{when.replace(':', '')}.jsonl"


def failure_key(run: str) -> str:
    """Why an author gave up for good, in its own bucket (the server: in the global one): nobody need wait for its deadline."""
    return f"runs/{run}/failed.json"


def step_key(run: str, round: int, exchange: str) -> str:
    return f"runs/{run}/rounds/{round}/{exchange}"


def update_keys(run: str, round: int, exchange: str) -> tuple[str, str]:
    """Payload and manifest of what a silo (or the evaluator) publishes, in its own bucket."""
    step = step_key(run, round, exchange)
    return f"{step}/update.safetensors", f"{step}/update.json"


def broadcast_key(run: str, round: int, exchange: str) -> str:
    """Manifest of what the server publishes, in the global bucket. It is written last: a broadcast without it does not exist."""
    return f"{step_key(run, round, exchange)}/broadcast.json"


def part_place(run: str, round: int, exchange: str, part: str, silo: str | None) -> tuple[str, str]:
    """Bucket and key of one part: the global bucket, or `inbox/` of the one silo it is for."""
    key = f"{step_key(run, round, exchange)}/{part}.safetensors"
    return (GLOBAL, key) if silo is None else (silo_bucket(silo), f"{INBOX}/{key}")


def inbox_key(run: str, round: int, exchange: str) -> str:
    """Digests of the personal parts, beside them: what one silo receives is no other silo's business."""
    return f"{INBOX}/{step_key(run, round, exchange)}/inbox.json"
