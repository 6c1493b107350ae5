"""Figures in the progress line of `fit`, beside the metrics. No other callback sees them."""

from __future__ import annotations

import weakref
from typing import Any

_shown: weakref.WeakKeyDictionary[Any, dict[str, float]] = weakref.WeakKeyDictionary()


def show(model: Any, figures: dict[str, float]) -> None:
    """Has the progress line of the model show figures, by name, until the next call."""
    if model is not None:
        _shown[model] = figures


def of(model: Any) -> dict[str, float]:
    """Returns the figures of a model."""
    return _shown.get(model, {})
