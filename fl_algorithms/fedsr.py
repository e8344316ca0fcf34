"""FedSR (Nguyen et al. 2022): a representation kept simple, so that it has no room for what is peculiar to a silo.

The encoder gives a Gaussian q(z|x); the classifier sees a draw of it. Two penalties (eq. 11 of the FedDANN paper, which
compares with it): the norm of z (L2R), and the divergence of q(z|x) from a learned reference r(z|y) of its class, a bound of the
conditional mutual information I(x; z | y) (CMI). Presets: FedL2R has the first only and no noise, FedCMI the second only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

from fl_algorithms.contract import Silo, Task
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.losses import cross_entropy
from fl_algorithms.models import Network
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Batch

REFERENCE = "fedsr.reference."  # names in the silo's private state


@dataclass(frozen=True)
class FedSRHyper(FedAvgHyper):
    """Defaults: the released code's on PACS. A round is 5 steps there."""

    optimizer: Annotated[Literal["adam", "sgd"], "local optimiser"] = "sgd"
    lr: Annotated[float, Gt(0), "learning rate of the first epoch"] = 0.01
    schedule: Annotated[Literal["cosine", "constant", "step"], "lr over the whole run, computed from the global round"] = "constant"
    momentum: Annotated[float, Ge(0), Lt(1), "SGD momentum"] = 0.9
    weight_decay: Annotated[float, Ge(0), "L2 penalty inside the optimiser"] = 5e-4
    batch_size: Annotated[int, Ge(1), "images per step"] = 64
    epochs: Annotated[int, Ge(0), "local epochs per round"] = 1
    steps_per_epoch: Annotated[int | None, Ge(1), "steps that count as an epoch; null: one pass over the silo's images"] = 5
    weighting: Annotated[Literal["samples", "uniform"], "aggregation weight of a silo: n_k/N or 1/K"] = "uniform"
    alpha_l2r: Annotated[float, Ge(0), "weight of the norm penalty L2R"] = 0.01
    alpha_cmi: Annotated[float, Ge(0), "weight of the divergence penalty CMI; 0: no reference is learned"] = 0.001
    l2r: Annotated[Literal["norm", "squared"], "L2R is the mean of |z| (released code) or |z|^2 (paper; wants a lower alpha_l2r)"] = "norm"
    probabilistic: Annotated[bool, "the encoder gives a distribution; otherwise a point, and no CMI"] = True
    share_reference: Annotated[bool, "average the reference with the model, so that all silos have one; otherwise it stays local"] = True
    width: Annotated[int | None, Ge(1), "d: numbers in the representation; null: as many as the backbone gives"] = None
    draws: Annotated[int, Ge(0), "S: predictions average the softmax of S draws of z; 0: they use the mean of z"] = 20


class FedSR(FedAvg[FedSRHyper]):
    """FedAvg on a stochastic representation with a norm penalty and a conditional information penalty."""

    Hyper: ClassVar[type] = FedSRHyper
    paper: ClassVar[str] = "Nguyen, Torr and Lim, NeurIPS 2022, https://github.com/atuannguyen/FedSR"
    leaves_silo: ClassVar[str] = (
        FedAvg.leaves_silo + "; with share_reference, the class references (2 C d + 1 numbers), otherwise they stay"
    )

    def __init__(self, hyper: FedSRHyper, task: Task) -> None:
        super().__init__(hyper, task)
        self._noise = torch.Generator()
        self._local: Reference | None = None  # where the reference is not the model's

    def refuse(self, silos: Sequence[str]) -> None:
        super().refuse(silos)
        if self.hyper.alpha_cmi and not self.hyper.probabilistic:
            raise Unusable("hyper.alpha_cmi: expected 0 with probabilistic=false, since a point has no divergence; set one or the other")

    def build(self) -> Network:
        hyper = self.hyper
        network = StochasticNetwork(super().build(), hyper.width, hyper.probabilistic, hyper.draws)
        if hyper.alpha_cmi and hyper.share_reference:
            network.reference = Reference(network.head)
        return network

    def begin(self, model: Network, silo: Silo) -> None:
        super().begin(model, silo)
        self._noise = stream(silo.seed, "representation", silo.name, silo.round)
        if self.hyper.alpha_cmi and not self.hyper.share_reference:
            self._local = Reference(model.head).to(silo.device)
            kept = {name.removeprefix(REFERENCE): tensor for name, tensor in silo.private.items() if name.startswith(REFERENCE)}
            if kept:
                self._local.load_state_dict(kept)

    def trained(self, model: Network) -> Iterator[nn.Parameter]:
        yield from super().trained(model)
        if self._local is not None:
            yield from self._local.parameters()

    def local_epochs(self, model: Network, silo: Silo) -> float:
        loss = super().local_epochs(model, silo)
        if self._local is not None:
            silo.private.update({REFERENCE + name: tensor.clone() for name, tensor in self._local.state_dict().items()})
        return loss

    def loss(self, model: Network, batch: Batch, silo: Silo) -> Tensor:
        assert isinstance(model, StochasticNetwork)
        mean, raw = model.distribution(batch.images)
        z = mean
        if raw is not None:
            z = mean + F.softplus(raw) * torch.randn(mean.shape, generator=self._noise).to(mean)
        classification = cross_entropy(model.head(z), batch.labels, self.hyper.label_smoothing)
        return self.penalised(classification, z, mean, raw, batch.labels, self._local or model.reference)

    def penalised(self, loss: Tensor, z: Tensor, mean: Tensor, raw: Tensor | None, labels: Tensor, reference: Reference | None) -> Tensor:
        """f + a_L2R L2R + a_CMI CMI"""
        hyper = self.hyper
        if hyper.alpha_l2r:
            loss = loss + hyper.alpha_l2r * l2r(z, hyper.l2r)
        if hyper.alpha_cmi and raw is not None and reference is not None:
            divergence = conditional_divergence(mean, raw, reference.mean[labels], reference.raw[labels], reference.log_scale)
            loss = loss + hyper.alpha_cmi * divergence.sum(1).mean()
        return loss


class Reference(nn.Module):
    """r(z|y) = N(mu_y, softplus(rho_y)^2) for each class, and the scale c > 0 of z in the CMI term, as its logarithm."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(head.out_features, head.in_features))
        self.raw = nn.Parameter(torch.ones(head.out_features, head.in_features))
        self.log_scale = nn.Parameter(torch.zeros(()))


class StochasticNetwork(Network):
    """body -> neck -> encoder, which gives (m, s) of q(z|x) = N(m, softplus(s)^2) -> a linear classifier of z."""

    def __init__(self, network: Network, width: int | None, probabilistic: bool, draws: int) -> None:
        inputs, classes = network.head.in_features, network.head.out_features
        width = width or inputs
        head = nn.Linear(width, classes)
        super().__init__(network.body, network.neck, head, network.taps, network.published_names, network.replicate_grey)
        self.probabilistic = probabilistic
        self.encoder = nn.Linear(inputs, 2 * width if probabilistic else width)
        self.reference: Reference | None = None
        # The same draws for every image: what is predicted for it depends neither on its batch nor on the order of batches.
        noise = torch.randn(draws, 1, width, generator=stream(0, "predictions"), device="cpu")
        self.noise: Tensor
        self.register_buffer("noise", noise, persistent=False)

    def distribution(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """m and s [B,d]; a point has no s."""
        encoded = self.encoder(super().features(images))
        if not self.probabilistic:
            return encoded, None
        mean, raw = encoded.chunk(2, dim=1)
        return mean, raw

    def features(self, images: Tensor) -> Tensor:
        return self.distribution(images)[0]

    def forward(self, images: Tensor) -> Tensor:
        """Logits, or the logarithm of probabilities averaged over draws of z. The encoder runs once."""
        mean, raw = self.distribution(images)
        if raw is None or not len(self.noise):
            logits: Tensor = self.head(mean)
            return logits
        return averaged(self.head(mean + F.softplus(raw) * self.noise))


def averaged(logits: Tensor) -> Tensor:
    """Logarithm [B,C] of the mean softmax of S draws [S,B,C]."""
    return logits.log_softmax(2).logsumexp(0) - math.log(len(logits))


def l2r(z: Tensor, form: str = "norm") -> Tensor:
    """Mean over the batch of the Euclidean norm of z, or of its square."""
    return torch.linalg.vector_norm(z, dim=1).mean() if form == "norm" else z.square().sum(1).mean()


def conditional_divergence(mean: Tensor, raw: Tensor, reference_mean: Tensor, reference_raw: Tensor, log_scale: Tensor) -> Tensor:
    """Elements [B,d] of KL(N(c m, (c sigma)^2) || r(z|y)); CMI is the batch mean of their sums.

    log q - log(c sigma) + ((c sigma)^2 + (c m - mu_y)^2) / (2 q^2) - 1/2,  sigma = softplus(raw), q = softplus(reference_raw)
    """
    log_sigma, log_q = log_scale + log_softplus(raw), log_softplus(reference_raw)
    distance = (log_scale.exp() * mean - reference_mean) / log_q.exp()
    return log_q - log_sigma + 0.5 * ((2 * (log_sigma - log_q)).exp() + distance.square() - 1)


def log_softplus(raw: Tensor) -> Tensor:
    """Without the underflow of softplus: from -40 down, log(softplus(x)) is x to the last digit."""
    return torch.where(raw <= -40, raw, F.softplus(raw.clamp_min(-40)).log())
