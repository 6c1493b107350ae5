"""Computes exact metrics of scored samples with NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auc(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """Returns the area under the ROC curve: the share of (positive, negative) pairs in the right order, ties one half.

    Args:
        labels: the labels, [n], 0 or 1.
        scores: the scores, [n]. A higher score means positive.

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
    """Returns the mean negative log-likelihood of `labels`, [n], under `logits`, [n], in nats."""
    logits = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - labels * logits))


def hit_rate_and_ndcg(ranks: NDArray[np.integer], cutoff: int = 10) -> tuple[float, float]:
    """Returns HR@cutoff and NDCG@cutoff for cases with one relevant item each.

    Args:
        ranks: the number of candidates before the relevant item, [cases].
        cutoff: the length of the recommended list.
    """
    hit = ranks < cutoff
    return float(hit.mean()), float(np.where(hit, np.log(2) / np.log(ranks + 2.0), 0.0).mean())
