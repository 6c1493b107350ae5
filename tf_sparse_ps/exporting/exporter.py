"""`tsps.export`: writes a model as a served version."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError
from tf_sparse_ps.exporting import plain_model
from tf_sparse_ps.exporting.captured_tables import CapturedTables, Options
from tf_sparse_ps.exporting.saved_model import ModelGraph
from tf_sparse_ps.exporting.shard_collection import WRITER, ShardCollection
from tf_sparse_ps.node import activity
from tf_sparse_ps.serving import fault_points
from tf_sparse_ps.serving.version import Version
from tf_sparse_ps.serving.version_builder import VersionBuilder
from tf_sparse_ps.urls import local_path


def export(
    model: Any,
    path: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    rows: str | None = None,
    absent: str = "initial",
    signatures: Mapping[str, Any] | None = None,
    diff: bool = False,
    custom_ops: bool = True,
) -> str:
    """Writes a model as a version that is served from one copy of its tables per machine (docs/serving.md).

    Call it between two steps, on all ranks. Rank 0 writes; without sharded tables, other ranks return at once, and rank
    0 may call it alone. The version appears when all of it is on the disk. A killed call leaves nothing that servers
    see.

    Args:
      model: A Keras model, which must be built.
      path: The folder of the version, which must not exist. Servers take the folder with the greatest number as its
        name in a directory.
      base: An earlier version of the same model. The new one then shares its files, and adds what has changed. A table
        is written with all rows, and a line says so, if the changes since are not known: the version is of another job,
        or very many rows were erased since.
      rows: How rows are stored: "float32", "bfloat16", "float16" or "int8". None: as each table stores them.
      absent: What a key without a row reads: its "initial" value, as in training, or "zeros".
      signatures: Functions by name, as for `tf.saved_model.save`. None: what `model.export` makes.
      diff: Where the changes since `base` are not known, compare all rows with its.
      custom_ops: False: write a SavedModel of plain TensorFlow, which any TensorFlow loads. Its tables are variables
        of at most 2 GB each, and keys without a row read zeros. It is no version: it cannot be given as `base`.

    Returns:
      The folder.

    Raises:
      InvalidArgumentError: `path` exists; an argument has another value; a row cannot be stored as `rows`.
      UnsupportedError: The model, or another argument, does not work without custom ops.
      NotFoundError: `base` is not a version.
      WriterLockedError: Another process is writing the version.

    Example:
      >>> tsps.export(model, "serve/1")
      >>> model.fit(...)
      >>> tsps.export(model, "serve/2", base="serve/1")    # writes what fit has changed
    """
    folder = local_path(path)
    if not isinstance(model, _keras.Layer):
        raise InvalidArgumentError(f"`model` must be a Keras model. Received: {type(model).__name__}")
    bindings = model_tables.of(model)
    shards = ShardCollection(bindings, f"exporting to {folder}")
    rank = job.current().rank if bindings else 0
    if rank != WRITER and not shards:
        return folder
    if not custom_ops:
        others = {"base": base, "rows": rows, "signatures": signatures, "diff": diff or None}
        given = [name for name, value in others.items() if value is not None]
        if given or absent != "initial":
            raise UnsupportedError(f"with custom_ops=False, `{(given or ['absent'])[0]}` must be left out")
        with activity.doing(f"exporting to {folder}"), VersionBuilder(folder, f"rank {WRITER}") as builder:
            plain_model.write(model, bindings, builder.folder)
            builder.finish_without_manifest()
        return folder
    with activity.doing(f"exporting to {folder}"):
        if rank != WRITER:
            shards.send()
            return folder
        with contextlib.ExitStack() as within:
            within.enter_context(shards.telling_others())
            earlier = None if base is None else Version(base)
            tables = CapturedTables(bindings, earlier, Options(rows, absent, diff), shards=shards)
            within.callback(tables.close)
            builder = within.enter_context(VersionBuilder(folder, f"rank {WRITER}"))
            tables.begin(builder)
            graph = ModelGraph.write(model, builder.folder, signatures, tables.assets)
            fault_points.reach("model_saved")
            builder.finish(graph.manifest(tables.step, tables.write(builder)))
    return folder
