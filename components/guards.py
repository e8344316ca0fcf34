"""What the server checks before an update may be averaged. An update that fails is counted, named and never used."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from components.manifest import UpdateManifest
from components.wire import CODES, Payload
from fl_algorithms.contract import Layout, Tensors, TensorShape
from fl_algorithms.fedavg import RUNNING_VAR

MANIFEST_LIMIT = 1 << 20  # of an update: 10,000 tensors fit, and the worst that fits costs less than 200 MB and a second to refuse
HEADER_ROOM = 1 << 20  # a payload may be this much larger than its tensors
LARGEST_VALUE = 1e18  # the square of a larger one is infinite in float32, and a counter has room to count on
MOST_SAMPLES = 10**9


class Rejected(Exception):
    """`reason` is one word for counting, the message says what was expected and found."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Expected:
    """What an update of this step must look like."""

    run: str
    spec: str
    round: int
    exchange: str
    layout: Layout
    samples: int | None  # None: the silo is just joining
    most_samples: int = MOST_SAMPLES

    def most_bytes(self, samples: int) -> int:
        rows = sum(shape.dtype.itemsize * _elements(shape, samples) for shape in self.layout.values())
        return rows + HEADER_ROOM


def _elements(shape: TensorShape, samples: int) -> int:
    count = 1
    for length in shape.shape:
        count *= samples if length is None else length
    return count


def check_manifest(manifest: UpdateManifest, silo: str, expected: Expected) -> None:
    """Identity, freshness, sample count and declared size, before a byte of the payload is moved."""
    if manifest.author != silo:
        raise Rejected("author", f"expected author {silo}, found {manifest.author!r}")
    if manifest.run != expected.run:
        raise Rejected("run", f"expected run {expected.run}, found {manifest.run!r}")
    if manifest.spec != expected.spec:
        raise Rejected("spec", f"made under another spec ({manifest.spec[:12]!r}, expected {expected.spec[:12]})")
    if (manifest.round, manifest.exchange) != (expected.round, expected.exchange):
        raise Rejected("stale", f"expected round {expected.round} {expected.exchange}, found round {manifest.round} {manifest.exchange!r}")
    if manifest.samples < 1:
        raise Rejected("samples", f"expected at least 1 training image, found {manifest.samples}")
    if manifest.samples > expected.most_samples:
        raise Rejected("samples", f"expected at most {expected.most_samples} training images (samples_bound), found {manifest.samples}")
    if expected.samples is not None and manifest.samples != expected.samples:
        raise Rejected("samples", f"joined with {expected.samples} training images, now says {manifest.samples}")
    if (manifest.payload is None) != (not expected.layout):
        raise Rejected("keys", f"expected {len(expected.layout)} tensors, found {'none' if manifest.payload is None else 'a payload'}")
    if manifest.payload is not None and manifest.payload.bytes > expected.most_bytes(manifest.samples):
        raise Rejected("size", f"expected at most {expected.most_bytes(manifest.samples)} bytes, found {manifest.payload.bytes}")


def check_tensors(payload: Payload, manifest: UpdateManifest, expected: Expected) -> None:
    """Exact names, types and shapes, in the payload as in its manifest; then every value one that can be computed with."""
    if payload.shapes.keys() != expected.layout.keys():
        odd = sorted(payload.shapes.keys() ^ expected.layout.keys())
        raise Rejected("keys", f"expected {len(expected.layout)} tensors, {len(odd)} missing or unknown: {odd[0][:80]!r}")
    declared = {name: (CODES[s.dtype], list(s.shape)) for name, s in payload.shapes.items()}
    if {name: (code, shape) for name, (code, shape) in manifest.tensors.items()} != declared:
        raise Rejected("keys", "the manifest lists other tensors than the payload holds")
    for name, wanted in expected.layout.items():
        found = payload.shapes[name]
        if found.dtype != wanted.dtype:
            raise Rejected("dtype", f"tensor {name}: expected {CODES[wanted.dtype]}, found {CODES[found.dtype]}")
        if not _fits(found.shape, wanted.shape, manifest.samples):
            raise Rejected("shape", f"tensor {name}: expected {list(wanted.shape)}, found {list(found.shape)}")
    for name in payload:
        check_values(name, payload[name])
        payload.forget()


def check_values(name: str, tensor: torch.Tensor) -> None:
    low, high = extremes(tensor)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise Rejected("nonfinite", f"tensor {name}: holds NaN or infinity")
    if max(-low, high) > LARGEST_VALUE:
        raise Rejected("magnitude", f"tensor {name}: expected values up to {LARGEST_VALUE:g}, found {max(-low, high):g}")
    if name.endswith(RUNNING_VAR) and low < 0:
        raise Rejected("variance", f"tensor {name}: expected no negative variance, found {low:g}")


def _fits(found: tuple[int | None, ...], wanted: tuple[int | None, ...], samples: int) -> bool:
    if len(found) != len(wanted):
        return False
    return all(f == w if w is not None else 1 <= (f or 0) <= samples for f, w in zip(found, wanted, strict=True))


def extremes(tensor: torch.Tensor) -> tuple[float, float]:
    """Smallest and largest value in one pass without a temporary; NaN if there is one anywhere."""
    if tensor.numel() == 0:
        return 0.0, 0.0
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def is_finite(tensor: torch.Tensor) -> bool:
    return all(map(math.isfinite, extremes(tensor)))


def check_norm(payload: Payload, model: Tensors, bound: float) -> None:
    """L2 distance from the global model, where the update has the model's tensors."""
    total = 0.0
    for name in payload:
        if name in model and model[name].is_floating_point():
            total += float((payload[name].double() - model[name].double()).square().sum())
            payload.forget()
    if total**0.5 > bound:
        raise Rejected("norm", f"expected a difference of norm at most {bound:g} from the global model, found {total**0.5:.4g}")
