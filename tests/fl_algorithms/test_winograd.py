"""Convolutions that multiply less: the same maps and gradients, in the layers where they pay, and only on a CPU in float32."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_algorithms.folding import folded
from fl_algorithms.models import MODELS, build_model
from fl_algorithms.models.winograd import WinogradConv2d, WinogradKernels, multiply_less

TILED = {"resnet-18": 13, "resnet-50": 13, "alexnet": 4, "femnist-cnn": 1}


def both(kernel: int, padding: int, bias: bool = True) -> tuple[nn.Conv2d, WinogradConv2d]:
    torch.manual_seed(0)
    plain = nn.Conv2d(6, 10, kernel, padding=padding, bias=bias)
    fast = WinogradConv2d(6, 10, kernel, padding=padding, bias=bias)
    fast.load_state_dict(plain.state_dict())
    return plain, fast


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 0), (3, 1), (3, 2), (5, 0), (5, 2), (5, 4)])
def test_maps_and_gradients_of_every_size_are_those_of_the_direct_way(kernel: int, padding: int, layout: torch.memory_format) -> None:
    """Sizes around whole tiles, down to a single result, and maps that are not square."""
    plain, fast = both(kernel, padding)
    for size in range(max(1, kernel - 2 * padding), 15):
        images = torch.randn(2, 6, size, size + 3).contiguous(memory_format=layout).requires_grad_()
        expected, found = plain(images), fast(images)
        upstream = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, [images, *plain.parameters()], upstream)
        got = torch.autograd.grad(found, [images, *fast.parameters()], upstream)
        for a, b in zip([found, *got], [expected, *wanted], strict=True):
            assert a.shape == b.shape
            assert (a - b).abs().max() <= 5e-5 * b.abs().max()


@pytest.mark.parametrize(("channels", "size", "kernel", "padding"), [(512, 7, 3, 1), (128, 28, 3, 1), (64, 27, 5, 2), (32, 12, 5, 0)])
def test_no_more_than_a_digit_is_lost(channels: int, size: int, kernel: int, padding: int) -> None:
    """Beside float64, in the layers of the networks."""
    torch.manual_seed(0)
    layer = WinogradConv2d(channels, 64, kernel, padding=padding)
    images = torch.randn(2, channels, size, size).relu()
    exact = copy.deepcopy(layer).double()(images.double())
    error = (layer(images) - exact).abs().max() / exact.abs().max()
    assert error < 3e-5


def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    _, fast = both(3, 1)
    images = torch.randn(2, 6, 8, 8)
    fast(images).sum().backward()
    assert fast.weight.grad is not None and images.grad is None
    fast.requires_grad_(False)
    images.requires_grad_()
    fast(images).sum().backward()
    assert images.grad is not None


def test_its_maps_may_be_changed_in_place() -> None:
    """As rectifiers do."""
    for bias in (True, False):
        plain, fast = both(3, 1, bias)
        images = torch.randn(2, 6, 8, 8)
        for layer in (plain, fast):
            F.relu_(layer(images)).sum().backward()
        torch.testing.assert_close(fast.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-4)


def test_what_was_first_used_for_inference_can_be_trained() -> None:
    _, fast = both(5, 2, bias=False)
    with torch.inference_mode():
        fast(torch.randn(1, 6, 9, 9))
    fast(torch.randn(1, 6, 9, 9)).square().sum().backward()
    assert fast.weight.grad is not None and fast.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16])
def test_in_another_precision_it_is_torchs_convolution(other: torch.dtype) -> None:
    plain, fast = both(3, 1)
    images = torch.randn(2, 6, 8, 8, dtype=other)
    assert torch.equal(fast.to(other)(images), plain.to(other)(images))


def test_on_another_device_it_is_torchs_convolution() -> None:
    _, fast = both(3, 1)
    assert fast.to("meta")(torch.empty(2, 6, 8, 9, device="meta")).shape == (2, 10, 8, 9)


@pytest.mark.parametrize(("cpu", "onednn", "cut"), [("AVX2", True, True), ("AVX512", True, False), ("AVX512", False, True)])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 0), (3, 1), (5, 2)])
def test_of_few_channels_only_the_kernels_gradient_is_cut_where_that_pays(
    kernel: int, padding: int, cpu: str, onednn: bool, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, few = both(kernel, padding)
    few.__class__ = WinogradKernels
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: cpu)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", onednn)
    for size in range(max(1, kernel - 2 * padding), 15):
        images = torch.randn(2, 6, size, size + 3, requires_grad=True)
        expected, found = plain(images), few(images)
        upstream = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, [images, *plain.parameters()], upstream)
        got = torch.autograd.grad(found, [images, *few.parameters()], upstream)
        torch.testing.assert_close([found, got[0], got[2]], [expected, wanted[0], wanted[2]], rtol=1e-4, atol=1e-4)
        assert (got[1] - wanted[1]).abs().max() <= 5e-5 * wanted[1].abs().max()
    assert torch.equal(got[1], wanted[1]) is not cut


@pytest.mark.parametrize("name", MODELS)
def test_networks_have_it_where_it_pays(name: str) -> None:
    with torch.device("meta"):
        network = build_model(name, 7, 3, 64)
    assert sum(isinstance(layer, WinogradConv2d) for layer in network.modules()) == TILED.get(name, 0)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(128, 128, 3, stride=2, padding=1),
        nn.Conv2d(128, 128, 3, padding=2, dilation=2),
        nn.Conv2d(128, 128, 3, padding=1, groups=2),
        nn.Conv2d(128, 128, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(128, 128, (3, 5), padding=1),
        nn.Conv2d(128, 128, 3, padding=(0, 1)),
        nn.Conv2d(128, 128, 3, padding="same"),
        nn.Conv2d(128, 128, 7, padding=3),
        nn.Conv2d(63, 128, 3, padding=1),
    ],
)
def test_what_it_cannot_do_stays_as_it_is(layer: nn.Conv2d) -> None:
    network = nn.Sequential(layer, nn.Conv2d(128, 128, 3, padding=1))
    multiply_less(network)
    assert [type(part) for part in network] == [nn.Conv2d, WinogradConv2d]


def test_how_many_channels_decide() -> None:
    network = nn.Sequential(*(nn.Conv2d(channels, 128, 3) for channels in (63, 64, 127, 128)))
    multiply_less(network)
    assert [type(part) for part in network] == [nn.Conv2d, WinogradKernels, WinogradKernels, WinogradConv2d]


@pytest.mark.parametrize("name", ["resnet-18", "alexnet", "femnist-cnn"])
def test_networks_compute_what_they_did(name: str) -> None:
    torch.manual_seed(0)
    network, images = build_model(name, 7, 3, 64).eval(), torch.rand(3, 3, 64, 64)
    plain = copy.deepcopy(network)
    for layer in plain.modules():
        if isinstance(layer, WinogradConv2d):
            layer.__class__ = nn.Conv2d
    labels = torch.arange(3)
    losses = [F.cross_entropy(one(images), labels) for one in (network, plain)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for (key, a), b in zip(network.named_parameters(), plain.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert (a.grad - b.grad).norm() <= 1e-3 * b.grad.norm(), key


def test_normalisation_is_folded_into_it() -> None:
    network = folded(build_model("resnet-18", 7, 3, 64))
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    assert sum(isinstance(layer, WinogradConv2d) for layer in network.modules()) == TILED["resnet-18"]
