"""Reads files for TensorBoard with TensorFlow alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf


def read(directory: Path) -> dict[str, dict[int, Any]]:
    """Returns the values of a run by name and step, oldest first: numbers, and histograms as float64[bins, 3]."""
    found: dict[str, dict[int, Any]] = {}
    for event in _events(directory):
        for value in event.summary.value:
            tensor = tf.make_ndarray(value.tensor)
            assert value.metadata.plugin_data.plugin_name == ("histograms" if tensor.ndim else "scalars")
            of_name = found.setdefault(value.tag, {})
            assert event.step not in of_name, (value.tag, event.step)
            of_name[event.step] = tensor if tensor.ndim else tensor.item()
    return found


def _events(directory: Path) -> list[Any]:
    """Returns the events of all files by time. By name, file 10 of a second comes before its file 9."""
    files = map(str, directory.glob("events.*"))
    events = (event for file in files for event in tf.compat.v1.train.summary_iterator(file))
    return sorted(events, key=lambda event: event.wall_time)
