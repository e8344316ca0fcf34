"""FedCCRL (Wang et al. 2024, arXiv:2410.11267): images restyled with other silos' channel statistics and AugMix,
aligned in representation (supervised contrast) and in prediction (Jensen-Shannon).

A round has two exchanges: `statistics` (each silo shows channel means and deviations of a few images; each receives the
pool of the others) and `train`. Where paper and released code differ, the default follows the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le

from fl_algorithms.augment import channel_statistics, sample_beta, transfer_style
from fl_algorithms.augmix import AugMix
from fl_algorithms.contract import Broadcast, Exchange, Server, Silo, Task, TensorShape, Update, Updates
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy, jensen_shannon, supervised_contrastive
from fl_algorithms.models import Network
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Batch

POOL = "pool"


@dataclass(frozen=True)
class FedCCRLHyper(FedAvgHyper):
    ratio: Annotated[float, Gt(0), Le(1), "r: share of its training images whose statistics a silo shows each round"] = 0.1
    alpha: Annotated[float, Gt(0), "CCDT mixes own and foreign style with Beta(alpha, alpha)"] = 0.1
    beta: Annotated[float, Gt(0), "AugMix concentration of Dirichlet and Beta"] = 1.0
    temperature: Annotated[float, Gt(0), "tau of the contrastive loss, eq. 11"] = 0.1
    lambda1: Annotated[float, Ge(0), "weight of representation alignment L_RA"] = 0.1
    lambda2: Annotated[float, Ge(0), "weight of prediction alignment L_JS"] = 1.0
    ccdt: Annotated[bool, "restyle with foreign statistics (ablation)"] = True
    difp: Annotated[bool, "AugMix (ablation)"] = True
    stats_once: Annotated[bool, "show the statistics of the same images every round"] = False
    classification: Annotated[Literal["mean", "sum"], "cross-entropy over the three views"] = "mean"
    self_in_positives: Annotated[bool, "released code: an anchor counts as its own positive"] = False
    wrap_pixels: Annotated[bool, "released code: pixels outside 0..255 wrap around instead of being clamped"] = False
    augmix_shared_ops: Annotated[bool, "released code: one draw of operations for the whole batch"] = False
    augmix_ops: Annotated[Literal["paper9", "torchvision13"], "AugMix operations"] = "paper9"


class FedCCRL(FedAvg[FedCCRLHyper]):
    """Cross-client feature extension with representation and prediction alignment."""

    Hyper: ClassVar[type] = FedCCRLHyper
    paper: ClassVar[str] = "Wang et al. 2024, arXiv:2410.11267"
    leaves_silo: ClassVar[str] = (
        FedAvg.leaves_silo
        + "; per round, the channel means and deviations of ceil(r n) images (24 bytes an RGB image), shown shuffled to the other silos"
    )

    def __init__(self, hyper: FedCCRLHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._augmix = AugMix(op_set=hyper.augmix_ops, shared_ops=hyper.augmix_shared_ops, alpha=hyper.beta)
        self._mean = torch.tensor(task.mean).view(1, -1, 1, 1)
        self._std = torch.tensor(task.std).view(1, -1, 1, 1)
        self._statistics: tuple[torch.Tensor, torch.Tensor] | None = None
        self._pool: tuple[torch.Tensor, torch.Tensor] | None = None
        self._views = torch.Generator()

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        if len(silos) < 2 or self.hyper.participants == 1:
            raise Unusable(
                "algorithm fedccrl: needs at least 2 silos a round, found 1: a lone silo has no foreign statistics to learn from"
            )

    def exchanges(self, round: int) -> Sequence[Exchange]:
        steps = list(super().exchanges(round))
        if round > 0:
            rows = TensorShape(torch.float32, (None, self.task.channels, 1, 1))
            steps.insert(0, Exchange("statistics", self.show_statistics, self.pool_statistics, {"mean": rows, "std": rows}))
        return steps

    # ---- exchange `statistics` (Algorithm 1, lines 3-8)

    def show_statistics(self, silo: Silo) -> Update:
        """Statistics do not depend on the model: computed once per process, re-drawn every round."""
        if self._statistics is None:
            pairs = [channel_statistics(batch.images) for batch in silo.train.batches(256)]
            self._statistics = torch.cat([mean for mean, _ in pairs]).cpu(), torch.cat([std for _, std in pairs]).cpu()
        count = max(1, math.ceil(self.hyper.ratio * len(silo.train)))
        draw = stream(silo.seed, "statistics", silo.name, 0 if self.hyper.stats_once else silo.round)
        shown = torch.randperm(len(silo.train), generator=draw)[:count]
        mean, std = self._statistics
        return Update({"mean": mean[shown], "std": std[shown]})

    def pool_statistics(self, server: Server, updates: Updates) -> Broadcast:
        """F_pool without the silo's own share, shuffled so that a row does not tell whose it is."""
        shown = {key: [tensor.clone() for tensor in updates.each(key)] for key in ("mean", "std")}
        pools = {}
        for i, silo in enumerate(updates.names):
            others = {key: [t for j, t in enumerate(rows) if j != i] for key, rows in shown.items()}
            if not others["mean"]:
                continue
            joined = {key: torch.cat(rows) for key, rows in others.items()}
            order = torch.randperm(len(joined["mean"]), generator=stream(server.seed, "pool", silo, server.round))
            pools[silo] = {key: rows[order] for key, rows in joined.items()}
        return Broadcast(personal={POOL: pools}, participants=list(updates.names))

    # ---- exchange `train`

    def begin(self, model: Network, silo: Silo) -> None:
        self._views = stream(silo.seed, "views", silo.name, silo.round)
        pool = silo.received.get(POOL)
        self._pool = (pool["mean"].to(silo.device), pool["std"].to(silo.device)) if pool is not None else None

    def view(self, images: torch.Tensor) -> torch.Tensor:
        """DIFP(CCDT(x)), each image with its own draw."""
        with torch.no_grad():
            if self.hyper.ccdt and self._pool is not None:
                images = self.restyle(images, *self._pool)
            return self.perturb(images) if self.hyper.difp else images

    def restyle(self, images: torch.Tensor, means: torch.Tensor, stds: torch.Tensor) -> torch.Tensor:
        """CCDT, eqs. 5-7: a foreign style drawn from the pool, mixed in with lambda ~ Beta(alpha, alpha)."""
        drawn = torch.randint(len(means), (len(images),), generator=self._views).to(images.device)
        mix = sample_beta(self.hyper.alpha, (len(images),), self._views).to(images).view(-1, 1, 1, 1)
        return transfer_style(images, means[drawn], stds[drawn], mix)

    def perturb(self, images: torch.Tensor) -> torch.Tensor:
        """DIFP: AugMix on pixels, so out of the network's normalisation and back."""
        mean, std = self._mean.to(images.device), self._std.to(images.device)
        pixels = (images * std).add_(mean)
        if self.hyper.wrap_pixels:
            pixels = (pixels * 255).to(torch.int64).bitwise_and(255).to(images.dtype) / 255
        return self._augmix(pixels.clamp_(0, 1), self._views).sub_(mean).div_(std)

    def loss(self, model: Network, batch: Batch, silo: Silo) -> torch.Tensor:
        """L_CLS + lambda1 L_RA + lambda2 L_JS, gradients through all three views.

        Three forwards, not one of 3B: each view has its own batch statistics, as in the paper's code.
        """
        hyper, (images, labels, _) = self.hyper, batch
        features = [model.features(view) for view in (images, self.view(images), self.view(images))]
        logits = [model.head(z) for z in features]
        classification = torch.stack([cross_entropy(y, labels, hyper.label_smoothing) for y in logits])
        total = classification.mean() if hyper.classification == "mean" else classification.sum()
        if hyper.lambda1:
            plain, first, second = features
            total = total + hyper.lambda1 * 0.5 * (
                supervised_contrastive(first, plain, labels, hyper.temperature, hyper.self_in_positives)
                + supervised_contrastive(second, plain, labels, hyper.temperature, hyper.self_in_positives)
            )
        if hyper.lambda2:
            total = total + hyper.lambda2 * jensen_shannon([F.log_softmax(y, dim=1) for y in logits])
        return total
