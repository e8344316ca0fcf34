"""The networks: their shape, the backbones by name, and weight files."""

from __future__ import annotations

from fl_algorithms.models.backbones import MODELS, ModelInfo, build_model
from fl_algorithms.models.network import Network, add_bottleneck
from fl_algorithms.models.weights import WeightsReport, file_digest, load_weights, read_tensors

__all__ = [
    "MODELS",
    "ModelInfo",
    "Network",
    "WeightsReport",
    "add_bottleneck",
    "build_model",
    "file_digest",
    "load_weights",
    "read_tensors",
]
