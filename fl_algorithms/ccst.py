"""CCST (Chen et al. 2023, arXiv:2210.00912): each silo retells its images in the other silos' styles, then FedAvg.

Round 1 begins with the exchange `style`: each silo shows its style (channel means and deviations of a fixed encoder's maps,
or of pixels), the server publishes all of them as the part `bank`, which stays in force. The retold images are made once per
process, always the same ones, and kept in memory as uint8: K times the silo's own pixels, and nothing of them is stored or sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge

from fl_algorithms.adain import StylePair, load_pair, overall_style, pixel_pair, single_styles
from fl_algorithms.contract import Broadcast, Exchange, Layout, Server, Silo, Task, Tensors, TensorShape, Update, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.models import Network
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Samples

BANK = "bank"
PAIR = "pair"  # digest of the weight files, on the wire where there are any
ENCODED_AT_ONCE = 32


@dataclass(frozen=True)
class CCSTHyper(FedAvgHyper):
    weighting: Annotated[Literal["samples", "uniform"], "aggregation weight of a silo: n_k/N or 1/K"] = "uniform"
    mode: Annotated[Literal["overall", "single"], "a silo's style: one of all its images, or one of each of J images"] = "overall"
    styles: Annotated[int, Ge(1), "K: different silos whose style an image takes; its own leaves it as it is"] = 2
    style_images: Annotated[int | None, Ge(1), "J: images whose styles a silo shows with mode=single; null: all"] = None
    encoder: Annotated[str | None, "file with AdaIN's encoder, the same at every silo; null: the style is that of the pixels"] = None
    decoder: Annotated[str | None, "file with the decoder that belongs to the encoder"] = None
    style_channels: Annotated[int, Ge(1), "channels of the encoder's maps"] = 512
    unbiased: Annotated[bool, "released code: the content's variance is divided by n-1"] = False


class CCST(FedAvg[CCSTHyper]):
    """FedAvg on images retold in the styles of a bank that all silos fill once."""

    Hyper: ClassVar[type] = CCSTHyper
    paper: ClassVar[str] = "Chen et al., WACV 2023, arXiv:2210.00912"
    leaves_silo: ClassVar[str] = (
        FedAvg.leaves_silo
        + "; once, the channel means and deviations of all its images together, or of each of J images (4096 bytes a style with"
        " AdaIN's encoder, 24 bytes with RGB pixels), shown to all silos under the silo's name"
    )

    def __init__(self, hyper: CCSTHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._pair: StylePair | None = None
        self._retold: Samples | None = None

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        hyper = self.hyper
        if len(silos) < 2:
            raise Unusable("algorithm ccst: needs at least 2 silos, found 1: a lone silo has no other style to take")
        if hyper.styles > len(silos):
            raise Unusable(f"hyper.styles: {hyper.styles} different silos' styles an image, but the federation has {len(silos)}; lower it")
        if (hyper.encoder is None) != (hyper.decoder is None):
            raise Unusable("hyper.encoder, hyper.decoder: expected both files or neither, found one; give the other, or use pixels")

    def exchanges(self, round: int) -> Sequence[Exchange]:
        steps = list(super().exchanges(round))
        if round == 1:
            steps.insert(0, Exchange("style", self.show_style, self.publish_bank, self.style_upload))
        return steps

    @cached_property
    def style_upload(self) -> Layout:
        hyper = self.hyper
        channels = self.task.channels if hyper.encoder is None else hyper.style_channels
        rows = TensorShape(torch.float32, (1 if hyper.mode == "overall" else None, channels))
        pair = {} if hyper.encoder is None else {PAIR: TensorShape(torch.uint8, (32,))}
        return {"mean": rows, "std": rows, **pair}

    def initialise(self, server: Server, updates: Updates) -> Broadcast:
        # every silo shows its style, also one that is not drawn for the first round
        return replace(super().initialise(server, updates), participants=None)

    # ---- exchange `style`

    def pair(self, silo: Silo) -> StylePair:
        """The encoder and decoder, or the pixels themselves."""
        hyper = self.hyper
        if self._pair is None and hyper.encoder is not None and hyper.decoder is not None:
            self._pair = load_pair(hyper.encoder, hyper.decoder, silo.device)
            if self._pair.channels != hyper.style_channels:
                raise Unusable(
                    f"hyper.style_channels: {hyper.style_channels}, but {hyper.encoder} ends in {self._pair.channels}; set it to that"
                )
        return self._pair or pixel_pair(self.task.channels)

    def show_style(self, silo: Silo) -> Update:
        count, pair = len(silo.train), self.pair(silo)
        order = torch.arange(count)
        if self.hyper.mode == "single":
            order = torch.randperm(count, generator=stream(silo.seed, "shown styles", silo.name))[: self.hyper.style_images]
        maps = (pair.encode(pixels) for pixels, _ in self._pixels(silo, order, len(order)))
        if self.hyper.mode == "overall":
            mean, std = (row[None] for row in overall_style(maps))
        else:
            pairs = [single_styles(one) for one in maps]
            mean, std = torch.cat([mean for mean, _ in pairs]), torch.cat([std for _, std in pairs])
        style = {"mean": mean.float().cpu(), "std": std.float().cpu()}
        return Update(style if self.hyper.encoder is None else {**style, PAIR: pair.digest})

    def _pixels(self, silo: Silo, order: torch.Tensor, total: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Images in 0..1 and their row numbers, a few at a time: out of the network's normalisation, for which no encoder is made."""
        mean, std = (torch.tensor(values, device=silo.device).view(1, -1, 1, 1) for values in (self.task.mean, self.task.std))
        done = 0
        for index in order.split(ENCODED_AT_ONCE):
            yield (silo.train.images(index) * std + mean).clamp_(0, 1), index
            done += len(index)
            silo.report("style", done, total)

    def publish_bank(self, server: Server, updates: Updates) -> Broadcast:
        bank = {
            f"{key}.{name}": tensor.clone()
            for key in ("mean", "std")
            for name, tensor in zip(updates.names, updates.each(key), strict=True)
        }
        if self.hyper.encoder is not None:
            digests = [tensor.clone() for tensor in updates.each(PAIR)]
            for name, digest in zip(updates.names, digests, strict=True):
                if not torch.equal(digest, digests[0]):
                    raise Unusable(f"hyper.encoder, hyper.decoder: silo {name} has other files than {updates.names[0]}; give all the same")
            bank[PAIR] = digests[0]
        return Broadcast({BANK: bank}, participants=self.sample(replace(server, round=server.round - 1)))

    # ---- exchange `train`

    def local_epochs(self, model: Network, silo: Silo) -> float:
        if self._retold is None:
            self._retold = self.retell(silo)
        return super().local_epochs(model, replace(silo, train=self._retold))

    def retell(self, silo: Silo) -> Samples:
        """Every image in K styles; labels and domains are copied. Depends on seed, silo and bank only, so it is the same every round."""
        bank, pair, train = silo.received[BANK], self.pair(silo), silo.train
        if PAIR in bank and not torch.equal(bank[PAIR], pair.digest):
            raise Unusable(f"silo {silo.name}: its encoder and decoder are not the files of round 1; restore them or start a new run")
        style, foreign = draw_styles(bank, silo, self.hyper.styles)
        means, stds = (join_styles(bank, key).to(silo.device) for key in ("mean", "std"))
        copies = style.shape[1]
        size = self.task.image_size
        retold = torch.empty((copies, len(train), size, size, self.task.channels), dtype=torch.uint8)
        for pixels, index in self._pixels(silo, torch.arange(len(train)), len(train)):
            maps = pair.encode(pixels)
            for copy in range(copies):
                result, drawn = pixels.clone(), style[index, copy]
                other = foreign[index, copy].nonzero().squeeze(1)
                if len(other):
                    drawn = drawn[other]
                    result[other] = pair.restyle(pixels[other], maps[other], means[drawn], stds[drawn], self.hyper.unbiased)
                retold[copy, index] = (result * 255).round_().to(torch.uint8).permute(0, 2, 3, 1).cpu()
        rows = torch.arange(copies * len(train))
        labels = train.labels.repeat(copies)
        samples = Samples([(retold.flatten(0, 1).numpy(), labels.numpy(), rows.numpy())], self.task.mean, self.task.std, silo.device)
        samples.domains = train.domains.repeat(copies)
        return samples


def silos_in(bank: Tensors) -> list[str]:
    return sorted(key.removeprefix("mean.") for key in bank if key.startswith("mean."))


def join_styles(bank: Tensors, key: str) -> torch.Tensor:
    """All styles of the bank as rows [R,C], silo after silo."""
    return torch.cat([bank[f"{key}.{name}"] for name in silos_in(bank)])


def draw_styles(bank: Tensors, silo: Silo, styles: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each image K different silos of the bank and one style of each: rows of `join_styles` and whether foreign, both [n,K]."""
    names, count = silos_in(bank), len(silo.train)
    draw = stream(silo.seed, "styles", silo.name)
    chosen = torch.rand(count, len(names), generator=draw).argsort(dim=1, stable=True)[:, :styles]
    sizes = torch.tensor([len(bank[f"mean.{name}"]) for name in names])
    within = torch.randint(2**62, chosen.shape, generator=draw) % sizes[chosen]
    foreign = torch.tensor([name != silo.name for name in names])
    return (sizes.cumsum(0) - sizes)[chosen] + within, foreign[chosen]
