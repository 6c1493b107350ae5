"""`EventFiles`: scalars and histograms in files for TensorBoard, which need not be installed.

`tf.summary.scalar` and `histogram` are functions of TensorBoard. TensorFlow itself writes the same summaries if they
come with their metadata, which this module makes. One operation writes all values of a step.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

_BINS = 30  # as many as TensorBoard shows
_SCALAR, _TENSOR = 1, 2  # values of the protocol buffer's DataClass


class EventFiles:
    """The event files of the runs in a directory. A run is a subdirectory; "" is the directory itself."""

    def __init__(self, directory: str) -> None:
        """Makes no file before the first value."""
        self._directory = directory
        self._writers: dict[str, Any] = {}

    def write(self, run: str, scalars: dict[str, float], histograms: dict[str, npt.NDArray[Any]], step: int) -> None:
        """Writes values of a step by name. Values of histograms that are not finite are left out.

        Args:
          run: The run.
          scalars: Numbers.
          histograms: The numbers of each histogram, [n].
          step: The step.
        """
        summary = tf.compat.v1.Summary()
        for name, value in scalars.items():
            _add(summary, name, "scalars", _SCALAR, np.float32(value))
        for name, values in histograms.items():
            finite = values[np.isfinite(values)].astype(np.float64)
            if finite.size:
                counts, edges = np.histogram(finite, _BINS)
                # TensorBoard's form: left, right, count
                _add(summary, name, "histograms", _TENSOR, np.stack([edges[:-1], edges[1:], counts], 1))
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(os.path.join(self._directory, run))
        with self._writers[run].as_default(), tf.summary.record_if(True), tf.init_scope():
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)
        self._writers[run].flush()

    def close(self) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _add(summary: Any, name: str, plugin: str, data_class: int, value: Any) -> None:
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin), data_class=data_class
    )
    summary.value.add(tag=name, metadata=metadata, tensor=tf.make_tensor_proto(value))
