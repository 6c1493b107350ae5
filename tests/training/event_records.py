"""Reads files for TensorBoard with TensorFlow alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf


def read(directory: Path) -> dict[str, dict[int, Any]]:
    """Returns the values of a run by name and step: numbers, and histograms as float64[bins, 3]."""
    found: dict[str, dict[int, Any]] = {}
    for path in sorted(directory.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                tensor = tf.make_ndarray(value.tensor)
                assert value.metadata.plugin_data.plugin_name == ("histograms" if tensor.ndim else "scalars")
                of_name = found.setdefault(value.tag, {})
                assert event.step not in of_name, (value.tag, event.step)
                of_name[event.step] = tensor if tensor.ndim else tensor.item()
    return found
