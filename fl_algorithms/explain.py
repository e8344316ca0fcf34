"""What a trained model makes of images: answers, features, a map of them in the plane, and where it looked.

For people to look at after a run; nothing here trains anything, and the same model and images always give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fl_algorithms.models import Network
from fl_algorithms.randomness import permutation, stream_seed
from fl_algorithms.samples import Samples

BATCH = 64
PERPLEXITY = 30.0  # neighbours that t-SNE looks at
STEPS = 500  # of its optimiser


@dataclass(frozen=True)
class Answers:
    """One row per image. `features` is None where the network does not show its representation."""

    labels: np.ndarray  # int64 [N]
    predicted: np.ndarray  # int64 [N]
    confidence: np.ndarray  # float32 [N], probability of the predicted class
    features: np.ndarray | None  # float32 [N,V]

    def __len__(self) -> int:
        return len(self.labels)


def spread(labels: np.ndarray, count: int, seed: int, purpose: str) -> np.ndarray:
    """At most `count` rows, of every class about as many, drawn; in ascending order."""
    order = permutation(len(labels), seed, "report", purpose)
    rank = np.empty(len(labels), np.int64)  # how many of its class come before a row
    for label in np.unique(labels):
        own = order[labels[order] == label]
        rank[own] = np.arange(len(own))
    place = np.empty(len(labels), np.int64)
    place[order] = np.arange(len(labels))
    return np.sort(np.lexsort((place, rank))[:count])


def answer(model: nn.Module, samples: Samples, seed: int) -> Answers:
    """The model is used as it is: the caller has put it into evaluation mode."""
    torch.manual_seed(stream_seed(seed, "report", "answers"))  # some models draw when they predict
    predicted, confidence, features = [], [], []
    with torch.inference_mode():
        for images, _, _ in samples.batches(BATCH):
            if isinstance(model, Network):
                features.append(model.features(images).float().cpu())
            best = model(images).softmax(1).max(1)
            predicted.append(best.indices.cpu())
            confidence.append(best.values.float().cpu())
    rows = len(samples) > 0
    return Answers(
        samples.labels.numpy(),
        torch.cat(predicted).numpy() if rows else np.zeros(0, np.int64),
        torch.cat(confidence).numpy() if rows else np.zeros(0, np.float32),
        torch.cat(features).numpy() if features else None,
    )


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Counts [true class, predicted class]."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def embed(features: np.ndarray, seed: int) -> np.ndarray | None:
    """t-SNE of the rows, scaled into the unit square; None where there are too few rows to arrange."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    finite = np.nan_to_num(features.astype(np.float32), posinf=0.0, neginf=0.0)
    if len(finite) < 5 or float(np.ptp(finite)) == 0.0:
        return None
    scale = float(finite.std(0).max())
    arranger = TSNE(
        2, perplexity=min(PERPLEXITY, (len(finite) - 1) / 3), init="pca" if finite.shape[1] > 1 else "random", learning_rate="auto",
        max_iter=STEPS, random_state=stream_seed(seed, "report", "t-sne") % 2**32,
    )  # fmt: skip
    with threadpool_limits(1):  # so few points are slower on several cores, and ten times so on busy ones
        drawn = arranger.fit_transform(finite / scale)
    low, high = drawn.min(0), drawn.max(0)
    side = float((high - low).max()) or 1.0
    place: np.ndarray = (drawn - (low + high) / 2) / side + 0.5
    return place


def choose(answers: Answers, each: int) -> tuple[list[int], list[int]]:
    """Rows to look at: right answers and wrong ones, the most confident of a class before the second of any."""
    return _surest(answers, answers.predicted == answers.labels, each), _surest(answers, answers.predicted != answers.labels, each)


def _surest(answers: Answers, wanted: np.ndarray, count: int) -> list[int]:
    seen: dict[int, int] = {}
    ranked = []
    for row in sorted(np.flatnonzero(wanted).tolist(), key=lambda row: (-float(answers.confidence[row]), row)):
        label = int(answers.labels[row])
        ranked.append((seen.get(label, 0), -float(answers.confidence[row]), row))
        seen[label] = seen.get(label, 0) + 1
    return [row for _, _, row in sorted(ranked)[:count]]


def grad_cam(model: nn.Module, images: torch.Tensor, classes: Sequence[int]) -> np.ndarray | None:
    """Grad-CAM (Selvaraju et al. 2017, arXiv:1610.02391) of each image for its class, at the maps of the last layer of the body.

    [N,h,w] from 0 to 1; None where the network has no such layer or its maps are single numbers.
    """
    if not isinstance(model, Network) or not len(model.body):
        return None
    from captum.attr import LayerGradCam

    layer = list(model.body.children())[-1]
    with torch.enable_grad():
        maps = LayerGradCam(model, layer).attribute(images.requires_grad_(), torch.tensor(list(classes)), relu_attributions=True)
    assert isinstance(maps, torch.Tensor)
    heat = maps.detach().float().cpu().squeeze(1).numpy()
    if heat.ndim != 3 or heat.shape[1] * heat.shape[2] == 1:
        return None
    largest = heat.max((1, 2), keepdims=True)
    heat_map: np.ndarray = np.divide(heat, largest, out=np.zeros_like(heat), where=largest > 0)
    return heat_map
