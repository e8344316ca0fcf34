"""Which of a device's fast ways are used: `choose` turns what the device reports into a choice. On a CPU that is none of them.

The same bits every time come first. Whatever may differ between two runs on the same device stays off while torch is told to
be deterministic, as every worker tells it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

import torch

RESIDENT_SHARE = 8  # several silos may share a device, and each trains in what is left


@dataclass(frozen=True)
class Report:
    """What a device says of itself, and whether this process wants the same bits every time."""

    kind: str  # as in torch.device
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    bf16: bool = False  # in hardware, not emulated
    free_memory: int = 0  # bytes of its own, beside the host's
    deterministic: bool = True


@dataclass(frozen=True)
class Choice:
    """The default is what a CPU gets."""

    amp: torch.dtype | None = None  # of body and neck; bfloat16 has float32's range, so that no gradient needs scaling
    tf32: bool = False  # in convolutions; the products inside losses are differences of nearly equal numbers and stay exact
    benchmark: bool = False  # cuDNN tries its convolutions and keeps the fastest, which need not be the same one next time
    resident: int = 0  # a silo's pixels up to so many bytes are kept on the device
    pinned: bool = False  # other pixels are copied from page-locked memory, one batch ahead

    def __str__(self) -> str:
        precision = "float32" if self.amp is None else str(self.amp).removeprefix("torch.")
        return (
            f"{precision}, tf32 {_switch(self.tf32)}, cudnn.benchmark {_switch(self.benchmark)}, "
            f"up to {self.resident >> 20} MB of pixels resident, pinned copies {_switch(self.pinned)}"
        )


def _switch(on: bool) -> str:
    return "on" if on else "off"


def choose(report: Report) -> Choice:
    """Only CUDA devices have anything to choose.

    A CPU gets nothing even if it reports bfloat16: with AVX512-BF16 training took 1.3 to 1.5 times as long as in float32, and a
    virtual machine may report AMX and then end the process at its first AMX instruction.
    """
    if report.kind != "cuda":
        return Choice()
    return Choice(
        amp=torch.bfloat16 if report.bf16 else None,
        tf32=report.capability >= (8, 0),
        benchmark=not report.deterministic,
        resident=report.free_memory // RESIDENT_SHARE,
        pinned=True,
    )


def report(device: torch.device) -> Report:
    deterministic = torch.are_deterministic_algorithms_enabled()
    if device.type != "cuda":
        return Report(device.type, deterministic=deterministic)
    return Report(
        "cuda",
        torch.cuda.get_device_name(device),
        torch.cuda.get_device_capability(device),
        torch.cuda.is_bf16_supported(including_emulation=False),
        torch.cuda.mem_get_info(device)[0],
        deterministic,
    )


@cache
def choice(device: torch.device) -> Choice:
    """The same for as long as the process lives: memory that is used later on does not change it."""
    return choose(report(device))


def prepare(device: torch.device) -> None:
    """Set the switches that torch keeps for the whole process, and log the choice."""
    chosen = choice(device)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = chosen.tf32
        torch.backends.cudnn.benchmark = chosen.benchmark
    logging.info("device %s: %s", device, chosen)
