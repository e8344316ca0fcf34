"""Layers and optimisers that are faster than the plain ones: the same numbers, the same gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_algorithms.models import build_model
from fl_algorithms.models.layers import PooledPatchConv2d, PoolTo, QuarterDropout
from fl_algorithms.training import make_optimizer


@pytest.mark.parametrize(("size", "padding", "stride"), [(28, 0, 1), (28, 2, 1), (31, 1, 2)])
def test_patches_give_the_pooled_convolution_and_all_its_gradients(size: int, padding: int, stride: int) -> None:
    torch.manual_seed(0)
    fast = PooledPatchConv2d(1, 8, 5, stride, padding).double()
    plain = nn.Conv2d(1, 8, 5, stride, padding).double()
    plain.load_state_dict(fast.state_dict())
    images = [torch.rand(3, 1, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in "ab"]
    outputs = [fast(images[0]), F.max_pool2d(plain(images[1]), 2)]
    assert outputs[0].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    for output in outputs:
        (output * torch.arange(output.numel(), dtype=torch.float64).view_as(output)).sum().backward()
    for a, b in [(fast.weight, plain.weight), (fast.bias, plain.bias), images]:
        assert a is not None and b is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_two_bits_each_are_enough_for_dropout(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer, values = QuarterDropout(), torch.ones(64, 8, 17, 17).contiguous(memory_format=layout).requires_grad_()
    dropped = layer(values)
    dropped.sum().backward()
    assert values.grad is not None and torch.equal(dropped.detach(), values.grad)  # where a value stayed, so did its gradient
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    kept = (dropped > 0).double()
    assert kept.mean().item() == pytest.approx(0.75, abs=5 * (0.1875 / kept.numel()) ** 0.5)
    assert kept.mean((0, 2, 3)).std() < 0.02  # no place is favoured
    drawn = kept.permute(0, 2, 3, 1).flatten() if layout is torch.channels_last else kept.flatten()
    bits = drawn[: len(drawn) // 16 * 16].view(16, -1)  # a row for each pair of bits in the random words
    assert bits.mean(1).sub(0.75).abs().max() < 0.02
    assert bits.corrcoef().fill_diagonal_(0).abs().max() < 0.06  # and no pair knows of another
    assert torch.equal(layer.eval()(values), values)


def test_dropout_of_other_precision_is_torchs() -> None:
    values = torch.ones(1000, dtype=torch.float64)
    assert QuarterDropout()(values).unique().tolist() == pytest.approx([0.0, 4 / 3])


def test_pooling_to_the_size_that_is_there_copies_nothing() -> None:
    maps = torch.rand(2, 3, 4, 4)
    assert PoolTo(4)(maps) is maps
    assert torch.equal(nn.AdaptiveAvgPool2d(4)(maps), maps)
    larger = torch.rand(2, 3, 9, 9)
    assert torch.equal(PoolTo(4)(larger), nn.AdaptiveAvgPool2d(4)(larger))


def test_pooling_before_rectifying_changes_nothing() -> None:
    """The FEMNIST CNN against its layers in the order of the paper, forwards and backwards."""
    torch.manual_seed(0)
    network, images = build_model("femnist-cnn", 62, 1, 28).double().eval(), torch.rand(5, 1, 28, 28, dtype=torch.float64)
    labels = torch.arange(5)
    F.cross_entropy(network(images), labels).backward()
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    state = {name: tensor.detach().requires_grad_() for name, tensor in network.state_dict().items()}
    maps = images
    for block in ("body.0.0", "body.1.0"):
        maps = F.max_pool2d(F.conv2d(maps, state[f"{block}.weight"], state[f"{block}.bias"]).relu(), 2)
    hidden = F.linear(maps.flatten(1), state["neck.2.weight"], state["neck.2.bias"]).relu()
    F.cross_entropy(F.linear(hidden, state["head.weight"], state["head.bias"]), labels).backward()
    for name, tensor in state.items():
        torch.testing.assert_close(found[name], tensor.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 1e-4), (0.5, 0.0), (0.0, 0.0)])
def test_the_fused_optimiser_takes_the_same_steps(momentum: float, decay: float) -> None:
    torch.manual_seed(0)
    start = torch.randn(7, 33)
    ours, plain = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [make_optimizer("sgd", iter([ours]), momentum, decay), torch.optim.SGD([plain], 0.0, momentum, weight_decay=decay)]
    for step in range(4):
        gradient = torch.randn(7, 33)
        for optimizer, parameter in zip(optimizers, (ours, plain), strict=True):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            parameter.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-7)
    assert not torch.equal(ours, start)
