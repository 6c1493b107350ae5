"""`opened`: finds out what a source of rows is. Only checkpoints of TensorFlow need TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tf_sparse_ps.rows import sources, weight_files
from tf_sparse_ps.rows.sources import Source
from tf_sparse_ps.urls import local_path


def opened(source: Any, name: str | None = None) -> Source:
    """Returns a source.

    Args:
      source: What `sources.opened` takes; a `.keras` or `.h5` file of Keras; or the prefix of a checkpoint of
        TensorFlow.
      name: The name of the table in a group, a checkpoint or a version, or of the weight in a file of a model. None:
        the only one.

    Raises:
      NotFoundError, InvalidArgumentError, DamagedFileError, UnsupportedError: As `sources.opened` and
        `weight_files.opened`.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(local_path(source, "source"))
        is_model = path.is_file() and path.suffix.lower() in weight_files.ENDINGS
        if is_model or weight_files.is_tensorflow_checkpoint(path):
            return weight_files.opened(path, name)
    return sources.opened(source, name)
