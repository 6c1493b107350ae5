"""`tsps.transfer`: writes rows into the table of a layer, on all ranks of a job together."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import job, optimizers
from tf_sparse_ps.collectives.all_or_none import UNREACHABLE, all_or_none, must_agree
from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError
from tf_sparse_ps.job.table_binding import number_of
from tf_sparse_ps.rows import layer_sources, targets
from tf_sparse_ps.rows.facts import check_dim
from tf_sparse_ps.rows.layer_sources import LayerSource
from tf_sparse_ps.rows.selection import KeyMapping, Selection, check_finite, check_range
from tf_sparse_ps.rows.sources import ArraySource, RowFileSource, Source
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.table.scan import Block


def transfer(
    source: Any,
    layer: Any,
    keys: npt.ArrayLike | None = None,
    mapping: KeyMapping | None = None,
    slots: bool = False,
    *,
    table: str | None = None,
    source_table: str | None = None,
) -> int:
    """Writes rows of a source into the table of a layer, between two steps. All ranks call it with equal arguments.

    Rows replace those of the same keys; other rows of the table stay. Keys without a row in the source are left out, so
    they keep reading what the table has. Each machine reads the source itself and writes the rows that it keeps, in
    blocks. Checkpoints and exports after the call have the rows.

    Args:
      source: A layer of this library; a `tsps.Table` or `tsps.ServingTable`; a path of a table, a sparse-parameter
        file, a checkpoint or a directory of them, a served version or a directory of them, a file of rows or
        of a model (docs/rows.md); a pair (keys, rows) of arrays, integers or strings [n] and floats [n, dim]; a
        `keras.layers.Embedding`, or a matrix, float [n, dim], whose row i is that of key i.
      layer: A `tsps.Embedding`, `EmbeddingReduce` or `EmbeddingCollection`, which is built.
      keys: The keys of the source whose rows are taken, integers or strings of any shape. None: all.
      mapping: The keys under which rows are written: a dict from keys of the source to keys of the table, or a pair of
        such arrays. Rows of other keys are not taken. None: rows keep their keys.
      slots: Whether to take the optimizer's slots too. Both tables must have the same row optimizer. A table that was
        never trained gets it. Otherwise rows that exist keep their slots, and new rows get initial ones. The number of
        steps of the Keras optimizer (`iterations`), which Adam uses, is not transferred.
      table: The name of the table of an EmbeddingCollection (`TableConfig.name`). None: the only table of the layer.
      source_table: The name of the table in the source. None: the only one, or the one with the name of the layer's.

    Returns:
      The number of rows that were written, on all machines together.

    Raises:
      InvalidArgumentError: The source has rows of another width, or one that is not finite; or an argument has a
        wrong value.
      KeyRangeError: A key is outside the bounded table of the layer. Blocks of rows before it may have been written.
      UnsupportedError: `slots` is True, and the source has none or those of another optimizer.
      NotFoundError, DamagedFileError: The source does not exist or is damaged.
      ValueError: On all ranks: the ranks transfer different rows.
      StateError: A file of rows has several rows of a key, and nothing is written. Or another rank failed: the table
        may have old and new rows, so transfer again.

    Example:
      >>> tsps.transfer("checkpoints", model.get_layer("words"), mapping={17: "rome", 18: "oslo"})
    """
    if not tf.executing_eagerly():
        raise InvalidArgumentError("call tsps.transfer() eagerly between two steps, not in a tf.function")
    binding = layer_sources.binding_of_layer(layer, table, "layer")
    ranks, target = job.current().collectives, f"the table of layer {binding.config.name!r}"
    call = f"transferring rows to table {binding.ordinal} ('{binding.config.name}')"
    opened: Source | None = None
    selection: Selection | None = None

    def prepare() -> dict[str, str]:
        nonlocal opened, selection
        opened = layer_sources.opened(source, binding.config.name, source_table)
        selection = Selection(keys, mapping)
        check_dim(opened.name, opened.facts.dim, target, binding.config.dim)
        selection.check_target(target, binding.config.key_limit)
        if selection.everything and isinstance(opened, ArraySource):
            check_range(opened.keys, target, binding.config.key_limit)
            for block in opened.blocks(False):
                check_finite(block, opened.name)
        if isinstance(opened, RowFileSource) and job.current().is_leader:
            limit = binding.config.key_limit if selection.everything else None
            # Finds what is wrong before a row is written.
            targets.read_keys(opened, target, limit, slots=bool(slots), progress=True)
        if slots:
            _check_slots(binding, opened, target)
        return {"call": call, "source": opened.identity, "slots": str(bool(slots)), **selection.describe()}

    facts = all_or_none(ranks, prepare, call, "tsps.transfer.begin")
    must_agree(facts)
    assert opened is not None
    assert selection is not None
    written = _Writing(binding, opened, selection, target, slots=bool(slots))
    what = number_of("transferred", *sorted(facts[0].items()))
    rows = all_or_none(ranks, lambda: written.run(what), call, "tsps.transfer.end")
    leaders = job.current().leaders
    return sum(rows[leader] for leader in leaders) if binding.placement == "sharded" else rows[leaders[0]]


def _check_slots(binding: TableBinding, source: Source, target: str) -> None:
    """Raises UnsupportedError if a table cannot take the slots of a source."""
    source.facts.check_slots(source.name)
    rule = binding.optimizer
    theirs = optimizers.of_kind(source.facts.optimizer, source.facts.slot_init).slot_identity
    if rule is not None and rule.slot_identity != theirs:
        raise UnsupportedError(
            f"{source.name} has slots of {theirs[0]} with initial values {theirs[1]}, and {target} is trained by "
            f"{rule.kind} with initial values {rule.slot_identity[1]}, which has other slots. Leave slots out, to take "
            "the rows alone"
        )


class _Writing:
    """Writes the selected rows of a source on this machine."""

    def __init__(
        self, binding: TableBinding, source: Source, selection: Selection, target: str, *, slots: bool
    ) -> None:
        self._binding, self._source, self._selection, self._slots = binding, source, selection, slots
        self._target = target

    def run(self, what: int) -> int:
        """Writes the rows. Every rank calls it; the leader of each machine writes.

        Args:
          what: A number that stands for the rows, equal on all ranks.

        Returns:
          The number of rows that this rank has written; 0 on ranks that are not leaders.
        """
        binding, facts = self._binding, self._source.facts
        if self._slots and binding.optimizer is None:
            binding.bind_optimizer(optimizers.of_kind(facts.optimizer, facts.slot_init))
        error: Exception | None = None
        written = 0
        binding.leader_wrote_values = True
        collective = isinstance(self._source, LayerSource) and self._source.collective
        with binding.writing(what) as writes:
            try:
                if writes or collective:
                    written = self._write(writes=writes, collective=collective)
            except UNREACHABLE:
                raise
            except Exception as caught:  # the other ranks of this machine wait for the end of the write
                error = caught
        if error is not None:
            raise error
        return written

    def _write(self, *, writes: bool, collective: bool) -> int:
        binding, written = self._binding, 0
        error: Exception | None = None
        with (
            bar(self._source.at_most, f"transfer to {binding.config.name}", show=writes) as progress,
            contextlib.closing(self._source.selected(self._selection, self._slots)) as selected,
        ):

            def blocks() -> Iterator[Block]:
                for block, n_read in selected:
                    yield block
                    progress.update(n_read)

            for block in joined(blocks()):
                if not writes or error is not None:
                    continue
                try:
                    written += self._write_block(block)
                except Exception as caught:
                    if not collective:
                        raise
                    error = caught  # the other ranks read on, and so must this one
        if error is not None:
            raise error
        return written

    def _write_block(self, block: Block) -> int:
        binding = self._binding
        check_range(block.keys, self._target, binding.config.key_limit)
        check_finite(block, self._source.name)
        if binding.placement == "sharded" and binding.shard is not None:
            block = block.where(binding.shard.has(block.keys))
        binding.write_rows(block.keys, block.rows, block.slots)
        return len(block.keys)
