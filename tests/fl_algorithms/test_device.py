"""The device policy on reports of devices that are not here, and each fast way against the plain one where a CPU can show it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_algorithms import samples as samples_module
from fl_algorithms.device import Choice, Report, choice, choose, prepare, report
from fl_algorithms.mixstyle import StyleMixingNetwork
from fl_algorithms.models import Network, network
from fl_algorithms.samples import Samples, one_ahead
from tests.federations import Start, picture_samples

GB = 1 << 30
AMPERE = Report("cuda", "A100", (8, 0), bf16=True, free_memory=40 * GB)
TURING = Report("cuda", "T4", (7, 5), bf16=False, free_memory=15 * GB)


def test_a_recent_gpu_gets_all_that_keeps_the_bits_equal() -> None:
    assert choose(AMPERE) == Choice(amp=torch.bfloat16, tf32=True, benchmark=False, resident=5 * GB, pinned=True)


def test_an_older_gpu_stays_in_full_precision() -> None:
    assert choose(TURING) == Choice(amp=None, tf32=False, benchmark=False, resident=15 * GB // 8, pinned=True)


def test_cudnn_may_choose_anew_only_where_nobody_asked_for_equal_bits() -> None:
    assert choose(Report("cuda", "A100", (8, 0), True, GB, deterministic=False)).benchmark


@pytest.mark.parametrize("kind", ["cpu", "meta"])
@pytest.mark.parametrize("bf16", [False, True])
def test_everything_else_gets_nothing_whatever_it_reports(kind: str, bf16: bool) -> None:
    assert choose(Report(kind, bf16=bf16, capability=(9, 0), free_memory=64 * GB, deterministic=False)) == Choice()


def test_this_cpu_reports_itself() -> None:
    cpu = torch.device("cpu")
    assert report(cpu) == Report("cpu", deterministic=False)
    assert choice(cpu) == Choice()


def test_the_choice_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        prepare(torch.device("cpu"))
    assert caplog.messages == [f"device cpu: {Choice()}"]
    assert str(choose(AMPERE)) == "bfloat16, tf32 on, cudnn.benchmark off, up to 5120 MB of pixels resident, pinned copies on"


def test_a_role_logs_the_choice_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    run = start("fedavg")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        role = run.role(run.silos[0])
        role.samples("train")
        role.samples("validation")
    assert sum(message.startswith("device cpu:") for message in caplog.messages) == 1


# ---- pixels


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device that makes this choice; its memory is the host's."""

    def pretend(made: Choice) -> None:
        for module in (samples_module, network):
            monkeypatch.setattr(module, "choice", lambda _: made)

    return pretend


@pytest.mark.parametrize("made", [Choice(resident=GB), Choice(pinned=True), Choice(resident=GB, pinned=True), Choice(resident=100)])
@pytest.mark.parametrize("counts", [[11], [5, 7, 3], [0, 4]])
def test_resident_and_pinned_pixels_are_the_same_pixels(made: Choice, counts: list[int], chosen: Any) -> None:
    plain = picture_samples(counts)
    chosen(made)
    fast = picture_samples(counts)
    order = torch.randperm(len(plain), generator=torch.Generator().manual_seed(0)).repeat(2)
    for one, other in zip(plain.batches(4, order), fast.batches(4, order), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(plain.images(order), fast.images(order))


def test_resident_pixels_are_the_used_rows_only_and_need_the_map_no_more(chosen: Any) -> None:
    pixels = np.arange(6 * 4 * 4 * 3, dtype=np.uint8).reshape(6, 4, 4, 3).copy()
    used = np.array([4, 1])
    chosen(Choice(resident=2 * 4 * 4 * 3))

    def made(rows: np.ndarray) -> Samples:
        return Samples([(pixels, np.zeros(6, np.int64), rows)], (0.0,) * 3, (1 / 255,) * 3, torch.device("cpu"))

    resident, mapped = made(used), made(np.array([4, 1, 0]))
    before = torch.from_numpy(pixels[used]).permute(0, 3, 1, 2).float()
    pixels[:] = 0
    torch.testing.assert_close(resident.images(torch.arange(2)), before)
    assert not mapped.images(torch.arange(3)).any()  # one row more than allowed: read from the map each time


def test_the_next_batch_is_fetched_before_this_one_is_used() -> None:
    events: list[str] = []

    def fetched() -> Iterator[Tensor]:
        for number in range(3):
            events.append(f"fetch {number}")
            yield torch.tensor(number)

    for batch in one_ahead(fetched()):
        events.append(f"use {int(batch)}")
    assert events == ["fetch 0", "fetch 1", "use 0", "fetch 2", "use 1", "use 2"]
    assert list(one_ahead([])) == []


# ---- half precision


class Rounding(nn.Module):
    """Does what autocast asks for by rounding alone: a product in bfloat16 ends the process where a CPU only pretends to have it."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else inputs


def test_half_precision_ends_before_the_head(chosen: Any) -> None:
    torch.manual_seed(0)
    model = Network(nn.Sequential(Rounding(), Rounding()), nn.Sequential(nn.Flatten(), Rounding()), nn.Linear(12, 3), taps=("0", "1"))
    images = torch.rand(8, 3, 2, 2)
    assert torch.equal(model.features(images), images.flatten(1))
    chosen(Choice(amp=torch.bfloat16))
    rounded = images.bfloat16().float()
    maps, logits = model.forward_stages(images)
    assert [(one.dtype, torch.equal(one, rounded)) for one in maps] == [(torch.float32, True)] * 2
    assert torch.equal(model.features(images), rounded.flatten(1))
    assert torch.equal(logits, model(images))
    assert torch.equal(logits, model.head(rounded.flatten(1)))  # itself in full precision
    mixing = StyleMixingNetwork(model, frozenset({"0"}))
    mixing.mix = lambda maps: maps + 1
    assert torch.equal(mixing.features(images), (rounded + 1).bfloat16().float().flatten(1))
    assert not torch.is_autocast_enabled("cpu")
