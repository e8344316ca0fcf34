"""MobileNetV3's layers with a shorter way back: the same results and gradients as torch's own, in and out of the network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import mobilenet_v3_large
from torchvision.ops.misc import SqueezeExcitation

from fl_algorithms.folding import folded
from fl_algorithms.models import MODELS, build_model
from fl_algorithms.models.depthwise import DepthwiseConv2d, halve_wide_kernels
from fl_algorithms.models.layers import float32_on_cpu
from fl_algorithms.models.mobilenet import SqueezeBySum

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def both(stride: int, channels: int = 6) -> tuple[nn.Conv2d, DepthwiseConv2d]:
    torch.manual_seed(0)
    plain, fast = (kind(channels, channels, 5, stride, padding=2, groups=channels, bias=False) for kind in (nn.Conv2d, DepthwiseConv2d))
    fast.load_state_dict(plain.state_dict())
    return plain, fast


def alike(found: nn.Module, expected: nn.Module, maps: Tensor, after: Callable[[Tensor], Tensor] = lambda x: x) -> None:
    """Results and all gradients of two layers."""
    upstream = None
    each = []
    for layer in (found, expected):
        images = maps.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        results = after(layer(images))
        upstream = torch.randn_like(results) if upstream is None else upstream
        each.append([results, *torch.autograd.grad(results, [images, *layer.parameters()], upstream)])
    for a, b in zip(*each, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 2e-5 * b.abs().max()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_maps_and_gradients_of_every_size_are_torchs(stride: int, layout: torch.memory_format) -> None:
    """From a single pixel on, odd and even, not square."""
    plain, fast = both(stride)
    for height in range(1, 10):
        for width in (1, 2, 3, 6, 7):
            alike(fast, plain, torch.randn(3, 6, height, width).contiguous(memory_format=layout))


@pytest.mark.parametrize(("channels", "size", "stride"), [(72, 56, 2), (120, 28, 1), (672, 14, 2), (960, 7, 1)])
def test_no_digit_is_lost_in_the_layers_of_the_network(channels: int, size: int, stride: int) -> None:
    plain, fast = both(stride, channels)
    maps = torch.randn(8, channels, size, size).contiguous(memory_format=torch.channels_last)
    plain = plain.double()
    exact = plain(maps.double())
    upstream = torch.randn_like(exact)
    (wanted,) = torch.autograd.grad(exact, plain.weight, upstream)
    (got,) = torch.autograd.grad(fast(maps), fast.weight, upstream.float())
    assert (got - wanted).abs().max() <= 3e-6 * size**2 * 8 / stride**2  # a rounding of sums of so many products


def test_neighbouring_rows_and_images_do_not_leak_into_each_other() -> None:
    """The zeros after one row are those before the next: one pixel, one answer."""
    plain, fast = both(1)
    for row, column in ((0, 0), (0, 4), (2, 4), (3, 0), (3, 4)):
        maps, upstream = torch.zeros(2, 6, 4, 5), torch.zeros(2, 6, 4, 5)
        maps[0, :, row, column] = 1
        upstream[:] = torch.arange(1, 41).view(2, 1, 4, 5)
        (wanted,) = torch.autograd.grad(plain(maps), plain.weight, upstream)
        (got,) = torch.autograd.grad(fast(maps), fast.weight, upstream)
        assert torch.equal(got, wanted)


def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    _, fast = both(1)
    maps = torch.randn(2, 6, 8, 8)
    fast(maps).sum().backward()
    assert fast.weight.grad is not None and maps.grad is None
    fast.weight.grad = None
    fast.requires_grad_(False)
    maps.requires_grad_()
    fast(maps).sum().backward()
    assert maps.grad is not None and fast.weight.grad is None


def test_its_maps_may_be_changed_in_place_and_first_used_for_inference() -> None:
    plain, fast = both(2)
    with torch.inference_mode():
        fast(torch.randn(1, 6, 9, 9))
    alike(fast, plain, torch.randn(2, 6, 8, 8), F.relu_)


@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16])
def test_in_another_precision_or_on_another_device_it_is_torchs_convolution(other: torch.dtype) -> None:
    plain, fast = both(1)
    maps = torch.randn(2, 6, 8, 8, dtype=other)
    assert torch.equal(fast.to(other)(maps), plain.to(other)(maps))
    assert fast.to("meta")(torch.empty(2, 6, 8, 9, dtype=other, device="meta")).shape == (2, 6, 8, 9)


def test_where_half_precision_is_chosen_it_is_torchs_convolution() -> None:
    plain, fast = both(1)
    maps = torch.randn(2, 6, 8, 8)
    assert float32_on_cpu(maps)
    with torch.autocast("cpu", torch.bfloat16):
        assert not float32_on_cpu(maps)
        results = [layer(maps) for layer in (fast, plain)]
    for one in results:
        one.float().sum().backward()
    assert results[0].dtype == torch.bfloat16 and torch.equal(*results)
    assert fast.weight.grad is not None and plain.weight.grad is not None and torch.equal(fast.weight.grad, plain.weight.grad)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
        nn.Conv2d(6, 6, 5, padding=2, groups=6),
        nn.Conv2d(6, 6, 5, padding=2, groups=3, bias=False),
        nn.Conv2d(6, 12, 5, padding=2, groups=6, bias=False),
        nn.Conv2d(6, 6, 5, padding=1, groups=6, bias=False),
        nn.Conv2d(6, 6, 5, padding="same", groups=6, bias=False),
        nn.Conv2d(6, 6, 5, 3, padding=2, groups=6, bias=False),
        nn.Conv2d(6, 6, 5, (1, 2), padding=2, groups=6, bias=False),
        nn.Conv2d(6, 6, 5, padding=2, dilation=2, groups=6, bias=False),
        nn.Conv2d(6, 6, 5, padding=2, groups=6, bias=False, padding_mode="reflect"),
    ],
)
def test_what_it_cannot_do_stays_as_it_is(layer: nn.Conv2d) -> None:
    network = nn.Sequential(layer, both(1)[0], both(2)[0])
    halve_wide_kernels(network)
    assert [type(part) for part in network] == [nn.Conv2d, DepthwiseConv2d, DepthwiseConv2d]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_squeeze_and_excitation_is_torchs(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    plain, fast = (kind(24, 8, scale_activation=nn.Hardsigmoid) for kind in (SqueezeExcitation, SqueezeBySum))
    fast.load_state_dict(plain.state_dict())
    for size in (1, 2, 7):
        alike(fast, plain, torch.randn(3, 24, size, size + 1).contiguous(memory_format=layout))


def test_the_whole_network_computes_what_torchvisions_does() -> None:
    """In training, where batches are normalised by themselves, as well as in evaluation."""
    torch.manual_seed(0)
    network, plain = build_model("mobilenet-v3-large", 7, 3, 64), mobilenet_v3_large(weights=None, num_classes=7)
    plain.load_state_dict(dict(zip(plain.state_dict(), network.state_dict().values(), strict=True)))
    for module in [*network.modules(), *plain.modules()]:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    images, labels = torch.rand(8, 3, 64, 64), torch.arange(8) % 7
    for mode in (False, True):
        losses = [F.cross_entropy(one.train(mode)(images), labels) for one in (network, plain)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    # In float64 both take torch's convolutions, and only the squeezing differs: nothing is hidden in a tolerance.
    losses = [F.cross_entropy(one.double().train()(images.double()), labels) for one in (network, plain)]
    for one, loss in zip((network, plain), losses, strict=True):
        one.zero_grad()
        loss.backward()
    for (key, a), b in zip(network.named_parameters(), plain.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-7, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_the_network_that_has_such_layers_uses_them(name: str) -> None:
    with torch.device("meta"):
        layers = list(build_model(name, 7, 3, 64).modules())
    counts = tuple(sum(isinstance(layer, kind) for layer in layers) for kind in (DepthwiseConv2d, SqueezeBySum))
    assert counts == ((6, 8) if name == "mobilenet-v3-large" else (0, 0))
    assert not any(layer.inplace for layer in layers if isinstance(layer, nn.Hardswish))


def test_normalisation_is_folded_into_it() -> None:
    network = folded(build_model("mobilenet-v3-large", 7, 3, 64))
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    assert sum(isinstance(layer, DepthwiseConv2d) for layer in network.modules()) == 6
