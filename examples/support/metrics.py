"""Exact metrics of scored samples, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auc(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """Area under the ROC curve: the share of (positive, negative) pairs in the right order, ties one half.

    Args:
        labels: [n], 0 or 1.
        scores: [n], any monotone score.

    Raises:
        ValueError: only one class is present.
    """
    positives = int(np.count_nonzero(labels))
    negatives = labels.size - positives
    if not positives or not negatives:
        raise ValueError(f"AUC needs both classes. Received: {positives} positives and {negatives} negatives")
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(sizes) - (sizes - 1) / 2  # ranks from 1; equal scores share their mean
    rank_sum = float(mean_rank[group.reshape(-1)][labels.reshape(-1) > 0].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def log_loss(labels: NDArray[np.floating], logits: NDArray[np.floating]) -> float:
    """Mean negative log-likelihood of `labels` [n] under `logits` [n], in nats."""
    logits = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - labels * logits))


def hit_rate_and_ndcg(ranks: NDArray[np.integer], cutoff: int = 10) -> tuple[float, float]:
    """HR@cutoff and NDCG@cutoff when every case has one relevant item.

    Args:
        ranks: [cases], how many candidates stand before the relevant item.
        cutoff: length of the list that is shown.
    """
    hit = ranks < cutoff
    return float(hit.mean()), float(np.where(hit, np.log(2) / np.log(ranks + 2.0), 0.0).mean())
