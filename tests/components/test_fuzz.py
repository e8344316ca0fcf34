"""Foreign bytes, damaged in thousands of ways: refused in one line, or taken for what they are; never a crash, a hang or a flood.

The same with 100,000 inputs: `python -m tests.fuzz.run 100000`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from components.guards import MANIFEST_LIMIT, Rejected
from components.spec import MAX_SPEC_BYTES
from components.wire import MAX_HEADER
from tests.fuzz.mutation import Mutator
from tests.fuzz.run import Findings, fuzz, opened
from tests.fuzz.targets import Accepted, Bench, Target

INPUTS = 5000
TARGETS = ("manifest", "payload", "vouched", "header", "broadcast", "inbox", "spec", "silos")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with opened() as bench:
        yield bench


def named(bench: Bench, name: str) -> Target:
    return next(target for target in bench.targets() if target.name == name)


def assert_clean(findings: Findings) -> None:
    assert findings.clean, findings


def test_every_target_is_here_and_the_shares_add_up(bench: Bench) -> None:
    targets = bench.targets()
    assert tuple(target.name for target in targets) == TARGETS
    assert sum(target.share for target in targets) == pytest.approx(1)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input(bench: Bench, name: str) -> None:
    target = named(bench, name)
    findings = fuzz(target, round(INPUTS * target.share), "make test")
    assert_clean(findings)
    assert findings.inputs == round(INPUTS * target.share)
    assert len(findings.kinds) > 1, "the damage is either never or always noticed"


LARGEST = {
    "manifest": lambda: _filled(MANIFEST_LIMIT, b'{"metrics":{', b'"%x":""', b"}}"),
    "manifest unknown": lambda: _filled(MANIFEST_LIMIT, b"{", b'"%x":0', b"}"),
    "manifest shape": lambda: _filled(MANIFEST_LIMIT, b'{"tensors":{"a":["F32",[', b"-1", b"]]}}"),
    "header": lambda: _header(_filled(MAX_HEADER, b"{", b'"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}', b"}")),
    "header nested": lambda: _header(b'{"a":' * (MAX_HEADER // 5)),
    "header lists": lambda: _header(_filled(MAX_HEADER, b'{"a":[', b"[]", b"]}")),
    "vouched": lambda: _header(_filled(MANIFEST_LIMIT, b"{", b'"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}', b"}")),
    "spec": lambda: _filled(MAX_SPEC_BYTES, b"sources: [", b"a", b"]"),
    "spec nested": lambda: b"a: " + b"[" * (MAX_SPEC_BYTES - 3),
    "silos": lambda: _filled(MAX_SPEC_BYTES, b"{silos: [", b"{name: a%x}", b"]}"),
}


def _filled(size: int, begin: bytes, item: bytes, end: bytes) -> bytes:
    """As many items as go into this many bytes."""
    count = (size - len(begin) - len(end)) // (len(item) + 5)
    return begin + b",".join(item % number if b"%x" in item else item for number in range(count)) + end


def _header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_input_that_is_looked_at(bench: Bench, name: str) -> None:
    """What just passes the limit on its size must not cost more than a second and 200 MB either."""
    target = named(bench, name.split()[0])
    assert_clean(fuzz(replace(target, corpus=[LARGEST[name]()]), 1, ""))


# ---- the fuzzer itself


def test_the_same_seed_does_the_same_damage(bench: Bench) -> None:
    corpus = named(bench, "manifest").corpus
    first, again, other = ([mutator.next() for _ in range(300)] for mutator in (Mutator(corpus, seed) for seed in "112"))
    assert first == again != other
    assert len(set(first)) > 250
    assert sum(data in corpus for data in first) < 30


def test_structure_is_damaged_too(bench: Bench) -> None:
    """Half of the damaged documents still are JSON: they get past the parser."""
    mutator = Mutator(named(bench, "manifest").corpus, "0")
    whole = 0
    for _ in range(500):
        try:
            json.loads(mutator.next())
            whole += 1
        except (ValueError, RecursionError):
            continue
    assert 100 < whole < 400


def crashing(_: bytes) -> str:
    raise KeyError("shape")


def accepting(_: bytes) -> str:
    raise Accepted("anything")


def hanging(_: bytes) -> str:
    while True:
        pass


def hoarding(_: bytes) -> str:
    return f"{len(bytearray(400 << 20))}"


@pytest.mark.parametrize(
    ("feed", "where"),
    [(crashing, "crashes"), (accepting, "accepted"), (hanging, "hangs"), (hoarding, "memory")],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_what_must_not_happen_is_noticed(feed: object, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = Target("broken", feed, (Rejected,), 1.0, [b"{}"])  # type: ignore[arg-type]
    findings = fuzz(target, 1, "0")
    assert not findings.clean
    assert getattr(findings, where)
