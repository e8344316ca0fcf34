"""Batch normalisation folded into convolutions: the same predictions, for every network and every algorithm."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.folding import folded
from fl_algorithms.models import MODELS, build_model
from fl_algorithms.registry import ALGORITHMS
from tests.federations import ALGORITHMS as BASE
from tests.federations import SMALL_TASK

NORMALISED = ("small-cnn", "mobilenet-v2", "mobilenet-v3-large", "resnet-18", "resnet-50")
CPU = torch.device("cpu")


def lived_in(network: nn.Module) -> nn.Module:
    """Statistics, scales and shifts as after training: none of them is 0 or 1."""
    draw = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            for tensor, low, high in ((module.running_mean, -0.3, 0.3), (module.running_var, 0.5, 2.0)):
                tensor.copy_(low + (high - low) * torch.rand(tensor.shape, generator=draw))
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=draw)
            nn.init.uniform_(module.bias, -0.3, 0.3, generator=draw)
    return network


def left(network: nn.Module) -> int:
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())


@pytest.mark.parametrize("name", MODELS)
def test_every_network_predicts_the_same(name: str) -> None:
    torch.manual_seed(0)
    size = max(MODELS[name].smallest_image, 32)
    network, images = lived_in(build_model(name, 7, 3, size)).double(), torch.rand(4, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        expected = copy.deepcopy(network).eval()(images)
        found = folded(network)(images)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert found.std() > 0
    assert (left(network) > 0, left(folded(network))) == (name in NORMALISED, 0)


def test_the_network_itself_is_not_touched() -> None:
    network = lived_in(build_model("small-cnn", 3, 3, 16)).train()
    before = copy.deepcopy(network.state_dict())
    assert folded(network) is not network
    assert network.training and left(network) == 4
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_other_normalisations_stay() -> None:
    class Special(nn.BatchNorm2d):
        pass

    network = nn.Sequential(
        nn.Conv2d(3, 4, 1), Special(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), nn.BatchNorm2d(4)
    )
    assert folded(network) is network


def algorithm(name: str, **hyper: Any) -> Any:
    cls = ALGORITHMS[name].load()
    task = SMALL_TASK.__class__("small-cnn", 3, 3, 16, SMALL_TASK.mean, SMALL_TASK.std, domains=2)
    return cls(cls.Hyper(**{**ALGORITHMS[name].defaults, **hyper}), task)


@pytest.mark.parametrize("name", BASE)
def test_every_algorithm_predicts_the_same(name: str) -> None:
    """Also those that put modules of their own between the layers."""
    torch.manual_seed(0)
    one, images = algorithm(name), torch.rand(4, 3, 16, 16)
    plain = lived_in(one.build()).eval()
    with torch.no_grad():
        found, expected = one.predictor({MODEL: plain.state_dict()}, CPU)(images), plain(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_statistics_of_the_evaluated_batch_cannot_be_folded() -> None:
    one = FedAvg(FedAvgHyper(bn_buffers="local"), algorithm("fedavg").task)
    network = lived_in(one.build())
    predictor = one.predictor({MODEL: network.state_dict()}, CPU)
    assert left(predictor) == left(network) > 0
    assert all(module.training for module in predictor.modules() if isinstance(module, nn.BatchNorm2d))
