"""The losses that more than one algorithm, or an algorithm and its presets, share. All are differentiable batch means.

Equation numbers are those of FedCCRL (Wang and Tang) and of CSAC (Yuan et al., the federated DG version).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

SmoothingForm = Literal["eps/C", "eps/(C-1)"]

KERNEL_SCALES = tuple(3.0**k for k in range(-3, 2))
_LEAST_BANDWIDTH = 1e-30


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0, form: SmoothingForm = "eps/C") -> Tensor:
    """Mean cross-entropy; `form` says what each wrong class receives of the smoothing mass (papers differ)."""
    if form == "eps/(C-1)":
        # torch spreads over all C classes, so the same targets need the mass scaled up by C/(C-1).
        smoothing *= logits.shape[1] / (logits.shape[1] - 1)
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def supervised_contrastive(
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    temperature: float,
    self_in_positives: bool = False,
) -> Tensor:
    """FedCCRL eq 11 over the 2B rows of two views [B,V] of the same images, as a mean so that B does not scale it.

    `self_in_positives` counts an anchor among its own positives (not among its contrasts), as the released code does.
    """
    rows = F.normalize(torch.cat([first, second]), dim=1)
    similarity = rows @ rows.T / temperature
    both = torch.cat([labels, labels])
    itself = torch.eye(len(both), dtype=torch.bool, device=both.device)
    positive = both[:, None] == both[None, :]
    if not self_in_positives:
        positive = positive & ~itself
    contrast = similarity.masked_fill(itself, -math.inf).logsumexp(1)
    attraction = (similarity * positive).sum(1) / positive.sum(1)
    return (contrast - attraction).mean()


def jensen_shannon(views: Sequence[Tensor]) -> Tensor:
    """FedCCRL eqs 13-14: mean over views and batch of KL(view || mean of the views).

    Takes logits [B,C] of each view; log-probabilities are logits too.
    """
    log_views = torch.stack([view.log_softmax(1) for view in views])
    log_mean = log_views.logsumexp(0) - math.log(len(views))
    divergence = F.kl_div(log_mean.expand_as(log_views), log_views, reduction="none", log_target=True)
    return divergence.sum(-1).mean()


def multi_kernel_mmd(x: Tensor, y: Tensor, scales: Sequence[float] = KERNEL_SCALES, constant: bool = False) -> Tensor:
    """Squared MMD of two sets of n >= 2 rows under the sum of Gaussian kernels (the discrepancy D of CSAC eq 6).

    A kernel's bandwidth is its scale times the mean squared distance of all (2n)^2 pairs, without gradient. Within a
    set the diagonal is left out, hence the value may be negative; `constant` adds the released code's 2/(n-1).
    """
    n = len(x)
    if n < 2 or len(y) != n:
        raise ValueError(f"multi_kernel_mmd: expected two sets of the same size >= 2, found {n} and {len(y)} rows")
    rows = torch.cat([x, y]).flatten(1)
    # Distances do not change with the origin; rows near it lose fewer digits in |u|^2 + |v|^2 - 2uv.
    rows = rows - rows.detach().mean(0)
    norms = rows.square().sum(1)
    diagonal = torch.eye(2 * n, dtype=torch.bool, device=rows.device)
    distances = (norms[:, None] + norms[None, :] - 2 * rows @ rows.T).clamp_min(0).masked_fill(diagonal, 0)
    bandwidth = distances.detach().mean().clamp_min(_LEAST_BANDWIDTH)
    kernel = torch.stack([torch.exp(distances / (-2 * scale * bandwidth)) for scale in scales]).sum(0)
    within = kernel.masked_fill(diagonal, 0)
    inside = (within[:n, :n].sum() + within[n:, n:].sum()) / (n * (n - 1))
    return inside - 2 * kernel[:n, n:].mean() + (2 / (n - 1) if constant else 0)


@torch.no_grad()
def layer_attention(fused: Sequence[Tensor], local: Sequence[Tensor], kind: Literal["both", "position", "channel"] = "both") -> Tensor:
    """CSAC eqs 7-9: how much each of L fused layers should match each of M local ones, [L,M] with rows that sum to 1.

    All maps are projected to one shape [B,c,g,w] before. The mean of A^T B is the product of the means over positions,
    that of A B^T the product of the means over channels, so the d x d and c x c attention maps are never formed.
    """
    queries, keys = (torch.stack([layer.flatten(2) for layer in layers]) for layers in (fused, local))
    position = torch.einsum("lbc,mbc->lm", queries.mean(3), keys.mean(3)) / queries.shape[1]
    channel = torch.einsum("lbd,mbd->lm", queries.mean(2), keys.mean(2)) / queries.shape[1]
    chosen = {"both": [position, channel], "position": [position], "channel": [channel]}[kind]
    return torch.stack([scores.softmax(1) for scores in chosen]).mean(0)
