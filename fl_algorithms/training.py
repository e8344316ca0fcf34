"""Local training shared by all algorithms: optimiser, learning rate as a function of the global round, the loop over batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fl_algorithms.contract import Silo
from fl_algorithms.errors import Unusable
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Batch
from fl_algorithms.uncompiled import leave_the_compiler_alone, take_step

Draw = Callable[[int, int, torch.Generator], torch.Tensor]  # (available, wanted, generator) -> row numbers of one epoch


def learning_rate(
    base: float, schedule: str, epoch: int, epochs: int, round: int, milestones: tuple[int, ...] = (), decay: float = 0.1
) -> float:
    """Learning rate of global epoch `epoch` (0-based, counted over all rounds) of `epochs`.

    It never depends on what the silo did before, so a silo that was absent or restarted is not behind the others.
    """
    if schedule == "cosine":
        return 0.5 * base * (1.0 + math.cos(math.pi * epoch / epochs))
    if schedule == "step":
        return base * decay ** sum(round >= milestone for milestone in milestones)
    return base


def make_optimizer(kind: str, parameters: Iterator[nn.Parameter], momentum: float, weight_decay: float) -> Optimizer:
    """The learning rate is set before every epoch, so the one given here is never used."""
    leave_the_compiler_alone()
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if kind == "adam":
        return torch.optim.Adam(trainable, lr=0.0, weight_decay=weight_decay, fused=True)
    return torch.optim.SGD(trainable, lr=0.0, momentum=momentum, weight_decay=weight_decay, fused=True)


def optimizer_slots(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's memory (momentum, second moments, step counts) as flat tensors that can be stored."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {f"optimizer.{index}.{slot}": value for index, slots in state.items() for slot, value in slots.items() if value is not None}


def restore_slots(optimizer: Optimizer, stored: dict[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in stored.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".")
            state.setdefault(int(index), {})[slot] = value
    if state:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode without gradients; afterwards each of its modules is in the mode it was in before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        yield
    for module, mode in modes:
        module.training = mode


def fails_on_one_image(model: nn.Module, image: torch.Tensor) -> bool:
    """Whether batch normalisation over 1x1 maps makes a batch of one image impossible for this network."""
    try:
        with torch.no_grad():
            copy.deepcopy(model).train()(image[:1])
    except ValueError:
        return True
    return False


def fit(
    model: nn.Module,
    silo: Silo,
    optimizer: Optimizer,
    rates: Sequence[float],
    batch_size: int,
    loss: Callable[[Batch], torch.Tensor],
    before_step: Callable[[], None] | None = None,
    steps_per_epoch: int | None = None,
    stage: str = "train",
    draw: Draw | None = None,
) -> float:
    """Minimise `loss` with one optimiser, an epoch per entry of `rates`. Returns the mean loss of the last epoch."""

    def step(batch: Batch, rate: float) -> torch.Tensor:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        value = loss(batch)
        value.backward()
        if before_step is not None:
            before_step()
        take_step(optimizer)
        return value.detach()

    return run_epochs(model, silo, rates, batch_size, step, steps_per_epoch, stage, draw)


def run_epochs(
    model: nn.Module,
    silo: Silo,
    rates: Sequence[float],
    batch_size: int,
    step: Callable[[Batch, float], torch.Tensor],
    steps_per_epoch: int | None = None,
    stage: str = "train",
    draw: Draw | None = None,
) -> float:
    """Call `step(batch, rate)` for every batch; it returns a detached loss. The only device-to-host copy is one per epoch."""
    samples, mean_loss, done = silo.train, math.nan, 0
    if rates:
        model.to(memory_format=torch.channels_last)  # 1.4x as fast in the convolutions
    generator = stream(silo.seed, "shuffle", silo.name, silo.round, stage)
    per_epoch = len(samples) if steps_per_epoch is None else steps_per_epoch * batch_size
    for rate in rates:
        total, count = torch.zeros((), device=silo.device), 0
        for batch in samples.batches(batch_size, (draw or shuffled)(len(samples), per_epoch, generator)):
            size = len(batch.labels)
            if size == 1 and fails_on_one_image(model, batch.images):
                if count:
                    continue
                raise Unusable(
                    f"silo {silo.name}: a batch of one image, expected two or more where this network normalises 1x1 maps; "
                    "give the silo more images, raise hyper.batch_size or enlarge the images"
                )
            total += step(batch, rate) * size
            count, done = count + size, done + size
            silo.report(stage, done, per_epoch * len(rates), mean_loss)
        mean_loss = float(total) / max(count, 1)
    model.to(memory_format=torch.contiguous_format)  # as the wire wants it: what is published need not be copied again
    return mean_loss


def shuffled(available: int, wanted: int, generator: torch.Generator) -> torch.Tensor:
    """Shuffled row numbers; an epoch longer than the data goes through it several times, each time in a new order."""
    passes = [torch.randperm(available, generator=generator) for _ in range(math.ceil(wanted / available))]
    return torch.cat(passes)[:wanted]
