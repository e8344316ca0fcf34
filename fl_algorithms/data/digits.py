"""The real handwritten digits that come with scikit-learn (UCI optdigits test set): 1,797 pictures of 8x8, 17 greys."""

from __future__ import annotations

import numpy as np

from fl_algorithms.randomness import permutation

CLASSES = tuple("0123456789")


def bundled_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pictures (float32 [1797, 10, 10], 0 to 1, one pixel of empty margin) and labels."""
    # Imported here: scikit-learn takes a second to load and is needed only when the cache is empty.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pictures = np.pad(bunch.images, ((0, 0), (1, 1), (1, 1))) / 16
    return pictures.astype(np.float32), bunch.target.astype(np.int64)


def by_class(labels: np.ndarray, purpose: str) -> list[np.ndarray]:
    """Indices of each class in a fixed shuffled order, the same for every run: what a data set contains has no seed."""
    order = permutation(len(labels), 0, purpose)
    return [order[labels[order] == label] for label in range(len(CLASSES))]
