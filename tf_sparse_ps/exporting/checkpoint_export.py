"""`publish`: writes a version from a checkpoint, without the job that has saved it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tf_sparse_ps._compat import _keras, _keras_state
from tf_sparse_ps.checkpoints import array_file, manifest
from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.exporting.captured_tables import Options
from tf_sparse_ps.exporting.saved_model import ModelGraph
from tf_sparse_ps.exporting.table_plan import TablePlan
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.serving import table_files
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import TableEntry, Version
from tf_sparse_ps.serving.version_builder import VersionBuilder
from tf_sparse_ps.table.scan import Block


def publish(checkpoint: StoredCheckpoint, path: Path, *, base: Version | None, model: Any, options: Options) -> None:
    """Writes a version with the dense weights and the tables of a checkpoint.

    Args:
      checkpoint: The checkpoint, which is whole.
      path: The folder of the version, which must not exist.
      base: An earlier version of the same model. The new one has its graph and shares its files; its layers have the
        rows that differ. None: `model` is given.
      model: A built Keras model, from which the graph is made; only used if there is no `base`.
      options: How tables are exported.

    Raises:
      InvalidArgumentError: The model is not that of the checkpoint; or an option has another value.
      DamagedFileError, NotFoundError: A file is not what it should be.
    """
    stored = checkpoint.manifest.row_tables
    with VersionBuilder(path, "tf-sparse-ps publish") as builder, tempfile.TemporaryDirectory() as scratch:
        if base is not None:
            graph = ModelGraph.of_version(base)
            assets, names = [entry.asset for entry in base.tables], [entry.name for entry in base.tables]
        else:
            bindings = model_tables.of(model)
            assets, names = [os.path.basename(binding.path) for binding in bindings], [b.config.name for b in bindings]
            graph = ModelGraph.write(model, Path(scratch), None, assets)
        if names != [table["name"] for table in stored]:
            raise InvalidArgumentError(
                f"the model has tables {names}, and checkpoint {checkpoint.path} has {[t['name'] for t in stored]}. "
                "Name the model that was saved"
            )
        weights = _weights(checkpoint)
        if base is None:
            graph.rename(_stored_names(model, weights, checkpoint.path))
        graph.write_again(builder.folder, graph.with_names(weights, str(checkpoint.path)))
        entries = [
            _write_table(builder, StoredRows(checkpoint, number), facts, base, assets[number], options)
            for number, facts in enumerate(stored)
        ]
        builder.finish(graph.manifest(checkpoint.manifest.table_step, entries))


Weights = list[tuple[str, npt.NDArray[Any]]]


def _weights(checkpoint: StoredCheckpoint) -> Weights:
    """Returns the names and the values of the dense weights of rank 0, in the order of the model."""
    _, arrays = array_file.read(checkpoint.path / manifest.VARIABLES)
    facts = checkpoint.manifest.variables
    return [(str(facts[number]["name"]), array) for number, array in arrays if facts[number]["kind"] == "weight"]


def _stored_names(model: Any, weights: Weights, where: Path) -> dict[str, str]:
    """Returns the stored name of each weight of a model. Names depend on what else a process has built.

    Raises:
      InvalidArgumentError: The model has another number of weights.
    """
    others = {id(variable) for variable in (*_keras_state.metric_variables(model), *_keras_state.seed_variables(model))}
    names = [
        _keras.variable_name(variable)
        for variable in _keras_state.all_variables(model)
        if id(variable) not in others and binding_of(variable) is None
    ]
    if len(names) != len(weights):
        raise InvalidArgumentError(
            f"the model has {len(names)} dense weights, and checkpoint {where} has {len(weights)}. Name the model that "
            "was saved"
        )
    return {name: stored for name, (stored, _) in zip(names, weights, strict=True)}


class _Content:
    """The rows of a table of a checkpoint, as `table_files.write_base` takes them."""

    def __init__(self, rows: StoredRows) -> None:
        self._rows, self.step = rows, int(rows.info["step"])

    def __len__(self) -> int:
        return self._rows.at_most

    def __iter__(self) -> Iterator[Block]:
        yield from self._rows.blocks(slots=False)


def _write_table(
    builder: VersionBuilder,
    rows: StoredRows,
    stored: Mapping[str, Any],
    base: Version | None,
    asset: str,
    options: Options,
) -> TableEntry:
    info = rows.info
    table_files.check_options(options.rows, options.absent)
    facts = TableFacts(
        name=str(stored["name"]),
        uuid=str(stored["id"]),
        dim=int(info["dim"]),
        dtype=str(info["dtype"]),
        key_limit=int(info["key_limit"]),
        initializer=table_files.initializer_for(options.absent, info["initializer"]),
        rows=options.rows or str(info["dtype"]),
        hash_seed=table_files.new_hash_seed(),
    )
    files, content = builder.new_table(asset), _Content(rows)
    TablePlan.of(facts, options.absent, base, asset).write_rows(files, content, diff=True)
    files.merge()
    return files.finish(facts.name, facts, step=content.step, marks=[], absent=options.absent)
