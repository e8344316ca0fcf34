"""Every algorithm by name. A new one is one line here; nothing is imported until it is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """Where an algorithm lives. A preset is the same class with other defaults."""

    location: str  # module:Class inside fl_algorithms
    summary: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        module, name = self.location.split(":")
        return getattr(importlib.import_module(f"fl_algorithms.{module}"), name)


ALGORITHMS: dict[str, Entry] = {
    "csac": Entry("csac:CSAC", "layer-wise fusion by divergence, then calibration against each silo's own frozen model"),
    "fedavg": Entry("fedavg:FedAvg", "weighted average of locally trained models"),
    "fedccrl": Entry("fedccrl:FedCCRL", "foreign channel statistics and AugMix views, aligned in representation and prediction"),
    "fedprox": Entry("fedprox:FedProx", "FedAvg with a proximal pull towards the received model"),
    "power-of-choice": Entry("power_of_choice:PowerOfChoice", "FedAvg on the silos with the largest reported loss"),
    # presets: the released code where it differs from the paper (specs say how)
    "csac-official": Entry(
        "csac:CSAC", "CSAC as released: alignment of logits only, epochs of 60/20 steps, no smoothing", {
            "align": "logits", "acquisition_steps": 60, "steps_per_epoch": 20, "acquisition_smoothing": 0.0, "proj_persist": False},
    ),
    "fedccrl-official": Entry(
        "fedccrl:FedCCRL", "FedCCRL as released: summed cross-entropy, wrapping pixels, shared AugMix operations", {
            "classification": "sum", "lambda2": 0.1, "self_in_positives": True, "wrap_pixels": True,
            "augmix_shared_ops": True, "augmix_ops": "torchvision13", "persist_optimizer": True},
    ),
}  # fmt: skip
