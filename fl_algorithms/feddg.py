"""FedDG, ELCFS (Liu et al. 2021, arXiv:2103.06030), for classification: low-frequency amplitudes travel, phases stay.

Round 1 begins with the exchange `spectrum`: each silo shows the low-frequency amplitudes of a few images and receives those of
the others, which stay in force. Its images are then learned beside copies with foreign amplitudes: in an episode (a step on the
images, then the loss of the copies after that step) or both at once. The boundary component, for segmentation only, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import nn
from torch.func import functional_call

from fl_algorithms.contract import Broadcast, Exchange, Server, Silo, Task, TensorShape, Update, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Batch

BANK = "bank"
TRANSFORMED_AT_ONCE = 256


@dataclass(frozen=True)
class FedDGHyper(FedAvgHyper):
    level: Annotated[float, Ge(0), Lt(0.5), "L: frequencies up to L times the side are exchanged; below one bin, only the mean"] = 0.01
    mix: Annotated[Literal["uniform", "full"], "share of the foreign amplitude: drawn from U(0,1) for each image, or all of it"] = "uniform"
    bank_share: Annotated[float, Gt(0), Le(1), "share of its training images whose amplitudes a silo shows, once"] = 0.125
    episodic: Annotated[bool, "take the copies' loss after a step on the images; otherwise add the two losses"] = True
    inner_lr: Annotated[float, Ge(0), "beta: learning rate of the step inside an episode"] = 1e-3
    clip: Annotated[float, Gt(0), "c: largest entry of that step's gradient"] = 100.0


class FedDG(FedAvg[FedDGHyper]):
    """FedAvg with episodes on images that have other silos' low-frequency amplitudes."""

    Hyper: ClassVar[type] = FedDGHyper
    paper: ClassVar[str] = "Liu et al., CVPR 2021, arXiv:2103.06030"
    leaves_silo: ClassVar[str] = (
        FedAvg.leaves_silo
        + "; once, the amplitudes of the lowest frequencies of a share of its images (an eighth), shown to the other silos"
        " (4 C (2b+1)(b+1) bytes an image with b = floor(L side): 180 bytes of a 224 px RGB image, 12 bytes with L=0)"
    )

    def __init__(self, hyper: FedDGHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._reach = math.floor(hyper.level * task.image_size)
        self._mean = torch.tensor(task.mean).view(1, -1, 1, 1)
        self._std = torch.tensor(task.std).view(1, -1, 1, 1)
        self._bank: tuple[torch.Tensor, torch.Tensor] | None = None
        self._draws = torch.Generator()

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        if len(silos) < 2:
            raise Unusable("algorithm feddg: needs at least 2 silos, found 1: a lone silo has no foreign amplitudes to learn from")

    def exchanges(self, round: int) -> Sequence[Exchange]:
        steps = list(super().exchanges(round))
        if round == 1:
            rows = TensorShape(torch.float32, (None, self.task.channels, 2 * self._reach + 1, self._reach + 1))
            steps.insert(0, Exchange("spectrum", self.show_amplitudes, self.deal_bank, {"amplitude": rows}))
        return steps

    def initialise(self, server: Server, updates: Updates) -> Broadcast:
        # every silo shows its amplitudes, also one that is not drawn for the first round
        return replace(super().initialise(server, updates), participants=None)

    # ---- exchange `spectrum`

    def show_amplitudes(self, silo: Silo) -> Update:
        count = math.ceil(self.hyper.bank_share * len(silo.train))
        shown = torch.randperm(len(silo.train), generator=stream(silo.seed, "shown amplitudes", silo.name))[:count]
        rows = []
        for index in shown.split(TRANSFORMED_AT_ONCE):
            rows.append(amplitudes(self._pixels(silo.train.images(index)), self._reach).cpu())
            silo.report("spectrum", sum(map(len, rows)), count)
        return Update({"amplitude": torch.cat(rows)})

    def deal_bank(self, server: Server, updates: Updates) -> Broadcast:
        """To each silo the amplitudes of all others, other silo after other silo, and how many each of them showed."""
        shown = dict(zip(updates.names, (tensor.clone() for tensor in updates.each("amplitude")), strict=True))
        banks = {}
        for silo in server.roster:
            others = [rows for name, rows in shown.items() if name != silo]
            if others:
                banks[silo] = {"amplitude": torch.cat(others), "counts": torch.tensor([len(rows) for rows in others])}
        return Broadcast(personal={BANK: banks}, participants=self.sample(replace(server, round=server.round - 1)))

    # ---- exchange `train`

    def begin(self, model: Network, silo: Silo) -> None:
        self._draws = stream(silo.seed, "amplitudes", silo.name, silo.round)
        bank = silo.received.get(BANK)
        self._bank = (bank["amplitude"].to(silo.device), bank["counts"].clone()) if bank is not None else None

    def _pixels(self, images: torch.Tensor) -> torch.Tensor:
        """Out of the network's normalisation: only of pixels, which are not negative, is the mean's phase zero."""
        return scaled(images, self._std.to(images.device), self._mean.to(images.device)).clamp_(0, 1)

    def transform(self, images: torch.Tensor, amplitude: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """T(x): each image with the amplitudes of one image of one other silo, both drawn evenly."""
        with torch.no_grad():
            silo = torch.randint(len(counts), (len(images),), generator=self._draws)
            within = torch.randint(2**62, (len(images),), generator=self._draws) % counts[silo]
            drawn = ((counts.cumsum(0) - counts)[silo] + within).to(images.device)
            full = self.hyper.mix == "full"
            share = torch.ones(len(images)) if full else torch.rand(len(images), generator=self._draws)
            pixels = mix_amplitudes(self._pixels(images), amplitude[drawn], share.to(images), self._reach).clamp_(0, 1)
            return scaled(pixels, 1 / self._std.to(images.device), -(self._mean / self._std).to(images.device))

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        """L_in(w) + L_out(w'), w' = w - beta clip(grad L_in); to first order, so dw'/dw = 1."""
        hyper, (images, labels, _) = self.hyper, batch
        inner = super().loss(model, batch, silo)
        if self._bank is None:
            return inner
        copies = self.transform(images, *self._bank)
        if not hyper.episodic:
            return inner + cross_entropy(model(copies), labels, hyper.label_smoothing)
        # w' needs the gradient now. It stays in .grad, to which the caller's backward adds that of L_out.
        inner.backward()
        logits = functional_call(model, stepped_state(model, hyper.inner_lr, hyper.clip), (copies,))
        return inner.detach() + cross_entropy(logits, labels, hyper.label_smoothing)


def scaled(images: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """images * scale + shift with a number per channel, a line of pixels at a time (see Samples), in channels_last order."""
    count, channels, height, width = images.shape
    lines = images.permute(0, 2, 3, 1).reshape(count * height, width * channels)
    moved = torch.addcmul(shift.flatten().repeat(width), lines, scale.flatten().repeat(width))
    return moved.view(count, height, width, channels).permute(0, 3, 1, 2)


def amplitudes(pixels: torch.Tensor, reach: int) -> torch.Tensor:
    """|FFT2| of images [N,C,H,W] at the frequencies -reach..reach down and 0..reach across; those left of 0 mirror the others."""
    if reach == 0:
        return pixels.sum((2, 3), keepdim=True).abs()
    rows = torch.arange(-reach, reach + 1)
    return torch.fft.rfft2(pixels)[..., rows, : reach + 1].abs()


def mix_amplitudes(pixels: torch.Tensor, foreign: torch.Tensor, share: torch.Tensor, reach: int) -> torch.Tensor:
    """Inside the window (1 - share) of the own amplitudes and `share` of the foreign; phases and all else stay. May leave 0..1,
    and may put the result where the pixels were.

    With the mean alone in the window this is a shift, exactly, because the phase of a sum of pixels is zero.
    """
    height, width = pixels.shape[-2:]
    share = share.view(-1, 1, 1, 1)
    if reach == 0:
        return pixels + share * (foreign / (height * width) - pixels.mean((2, 3), keepdim=True))
    # Only the window changes, so only its few waves are measured and added: a hundredth of the frequencies a transform computes.
    count, channels = pixels.shape[:2]
    flat = pixels.permute(0, 2, 3, 1).reshape(count * height, width * channels)
    across, down = waves(width, channels, reach, pixels.dtype, pixels.device), rows_of_waves(height, reach, pixels.dtype, pixels.device)
    parts = (flat @ across).view(count, height, 2, reach + 1, channels)
    window = torch.einsum("uh,nhvc->ncuv", down, torch.complex(parts[:, :, 0], -parts[:, :, 1]))
    change = torch.polar(torch.lerp(window.abs(), foreign, share) - window.abs(), window.angle())
    change[..., 1:] *= 2  # each stands for its mirror image too
    lines = torch.einsum("uh,ncuv->nhvc", down.conj(), change) / (height * width)
    flat.addmm_(torch.stack([lines.real, -lines.imag], 2).view(count * height, -1), across.T)
    return flat.view(count, height, width, channels).permute(0, 3, 1, 2)


@cache
def waves(size: int, channels: int, reach: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """cos and sin of the frequencies 0..reach across a line of `size` pixels of several channels, [size channels, 2 (reach+1) channels]."""
    angles = torch.arange(size, dtype=torch.float64)[:, None] * torch.arange(reach + 1) * (2 * math.pi / size)
    return torch.kron(torch.cat([angles.cos(), angles.sin()], 1), torch.eye(channels, dtype=torch.float64)).to(device, dtype)


@cache
def rows_of_waves(size: int, reach: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """exp(-i angle) of the frequencies -reach..reach down a column, [2 reach+1, size]."""
    angles = torch.arange(-reach, reach + 1, dtype=torch.float64)[:, None] * torch.arange(size) * (2 * math.pi / size)
    return torch.complex(angles.cos().to(device, dtype), -angles.sin().to(device, dtype))


def stepped_state(model: nn.Module, rate: float, clip: float) -> dict[str, torch.Tensor]:
    """w' from the gradients in .grad, with a graph back to w, and copies of the buffers: the outer pass must not move the statistics."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    steps = {
        name: parameter if parameter.grad is None else parameter - rate * parameter.grad.clamp(-clip, clip)
        for name, parameter in model.named_parameters()
    }
    return {**buffers, **steps}
