"""The tables of a checkpoint: sparse-parameter files with slots, one for each table and node.

Each node's leader writes its node's rows of a table as of one committed state. Of a sharded table these are the rows
that the node has. Of a replicated table they are the rows that the node would have if the table were sharded. An
increment holds the rows that were written since a mark, and the keys that were erased. To restore a table, each node's
leader reads all files, and keeps the rows that its node has.

The counts of keys without a row (`tsps.Admission`) are stored like a table of their own, after all tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _table, job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.checkpoints import fault_points, manifest, schema
from tf_sparse_ps.checkpoints.allowance import Allowance, Objection
from tf_sparse_ps.checkpoints.captured import Captured
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.config.metadata import USE
from tf_sparse_ps.config.policies import describe_changes
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, StateError, UnsupportedError
from tf_sparse_ps.job.table_binding import TableBinding, number_of
from tf_sparse_ps.layers import rows
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.table import newer_rows, parameter_files, several_tables
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block, joined
from tf_sparse_ps.table.shards import describe


def of(model: Any) -> list[TableBinding]:
    """Returns the tables of a model's layers, in the order of its layers, each once."""
    bindings = [binding for layer in _keras.layers_of(model, TableLayer) for binding in layer.bindings]
    return list({binding.ordinal: binding for binding in bindings}.values())


def committed_step() -> int:
    """Returns the committed step of this node's tables."""
    return job.current().group.committed_step()


@dataclasses.dataclass(frozen=True)
class _Source:
    """Rows or a sketch of a table, which are stored alike.

    Attributes:
      binding: The table.
      name, uuid: The name and identity of the source.
      reader: The rows or the sketch, a `tsps.Table`.
      sketch_of: The number of the table that the sketch belongs to; None: these are rows.
    """

    binding: TableBinding
    name: str
    uuid: str
    reader: Any
    sketch_of: int | None = None


def _sources(bindings: Sequence[TableBinding]) -> list[_Source]:
    """Returns all tables, in their order, and then all sketches."""
    sources = [_Source(binding, binding.config.name, binding.uuid, binding.reader()) for binding in bindings]
    for number, binding in enumerate(bindings):
        if binding.config.admission is not None:
            sketch = binding.sketch()
            sources.append(_Source(binding, binding.config.name + SKETCH, sketch.uuid, sketch, number))
    return sources


def _facts_of_kind(source: _Source) -> dict[str, Any]:
    if source.sketch_of is not None:
        return {"sketch_of": source.sketch_of, "nodes": source.binding.parts}
    policies = source.binding.config.policies()
    return {"policies": policies} if policies else {}  # so that the facts of other tables stay as they were


def facts(bindings: Sequence[TableBinding]) -> list[dict[str, Any]]:
    """Returns what a manifest says of tables, without `parts`, which are known when they have been written."""
    return [
        {
            "name": source.name,
            "id": source.uuid,
            "dim": source.reader.config.dim,
            "key_limit": source.reader.config.key_limit,
            "dtype": source.reader.config.dtype,
            "placement": source.binding.placement,
            "index_seed": int(source.reader.stats()["index_seed"]),
            **_facts_of_kind(source),
        }
        for source in _sources(bindings)
    ]


def mark_changes(bindings: Sequence[TableBinding]) -> dict[str, str]:
    """Begins to note what changes in the tables. Leaders call it between two steps.

    Returns:
      A mark of each table, by the table's uuid, as `Table.mark_changes`.
    """
    if not bindings:
        return {}
    this_job = job.current()
    for binding in bindings:
        newer_rows.flush(binding.path)
    with eager_ops(f"marking changes of {this_job.group_path}") as _ops:
        generation = int(_ops.mark_changes(this_job.group_path))
    return {source.uuid: source.reader.mark(generation) for source in _sources(bindings)}


def capture(bindings: Sequence[TableBinding], since: Mapping[str, str], step: int, *, split: bool) -> list[Captured]:
    """Captures what this node writes. Leaders call it between two steps.

    Args:
      bindings: All tables, in the model's order.
      since: Marks of tables, by the tables' uuids. Only what has changed since its mark is captured of such a table.
      step: The step that the tables are expected to be at.
      split: Each node writes the rows of replicated tables whose keys a hash assigns to it. False: it writes all.

    Raises:
      StateError: A table is at another step.
    """
    if not bindings:
        return []
    sources = _sources(bindings)
    # Training may change all rows meanwhile: then their old values take as much memory as they do.
    most_bytes = max(1 << 30, sum(int(source.reader.stats()["bytes"]) for source in sources))
    scans = several_tables.scan(
        {source.reader: since.get(source.uuid) for source in sources},
        max_bytes=most_bytes,
    )
    captured = []
    for number, source in enumerate(sources):
        binding, scan = source.binding, scans[source.reader]
        shard = binding.shard if split or binding.placement == "sharded" else None
        has_all = scan.erased is None
        if shard is not None and binding.placement == "replicated":
            scan.take_shard(shard)
            has_all = False
        file = manifest.table_file_name(number, source.name, None if shard is None else shard.node)
        header = parameter_files.header(source.reader, scan, shard=shard, slots=True)
        captured.append(Captured(file, scan, header, n_rows=len(scan) if has_all else None))
    for source in sources:
        if (found := scans[source.reader].step) != step:
            for table_part in captured:
                table_part.close()
            raise StateError(
                f"table {source.name!r} is at step {found}, the other tables are at {step}: something other than this "
                "job's ranks trains it"
            )
    return captured


class Stored:
    """The tables of a checkpoint.

    Attributes:
      changes: What differs between the policies of the stored tables and those of the model, in sentences. Known after
        `check`.
      match: Which stored tables those of the model are. Known after `check`.
    """

    def __init__(self, checkpoint: StoredCheckpoint) -> None:
        """Reads nothing."""
        self._checkpoint, self._shown = checkpoint, checkpoint.shown
        self._facts = checkpoint.manifest.row_tables
        # The number of the sketch of each table that has one.
        self._sketches = {
            facts["sketch_of"]: number
            for number, facts in enumerate(checkpoint.manifest.tables)
            if number >= len(self._facts)
        }
        self.changes: list[str] = []
        self.match = schema.TableMatch([])
        self._step = checkpoint.manifest.table_step
        self._damage: Exception | None = None

    def check(
        self, bindings: Sequence[TableBinding], allowance: Allowance, classes: Collection[str]
    ) -> list[Objection]:
        """Compares the stored tables with those of the model, and reads the headers of the files.

        Args:
          bindings: The tables of the model.
          allowance: The differences that are accepted.
          classes: The names that Keras gives to layers of the model's classes, without numbers.

        Returns:
          What is not accepted.

        Raises:
          StateError: A file is of another step than the checkpoint.
          DamagedFileError, NotFoundError: A file is not what it should be.
        """
        configs = [binding.config for binding in bindings]
        tables = [{"name": config.name, "dim": config.dim, "key_limit": config.key_limit} for config in configs]
        self.match = schema.match_tables(tables, self._facts, allowance, classes, self._shown)
        if self.match.objections:
            return self.match.objections
        restored = self._restored(bindings)
        for binding, number in restored:
            self._rows(binding, number)
        self.changes = [
            change
            for binding, number in restored
            for change in [*self._policy_changes(binding, number), *self._lost_counts(binding, number)]
        ]
        return []

    def ordinals(self, bindings: Sequence[TableBinding]) -> set[int]:
        """Returns the ordinals of the tables that `restore` writes."""
        return {binding.ordinal for binding, _ in self._restored(bindings)}

    def _restored(self, bindings: Sequence[TableBinding]) -> list[tuple[TableBinding, int]]:
        """Returns the tables that are restored, with their places in the checkpoint."""
        pairs = zip(bindings, self.match.numbers, strict=True)
        return [(binding, number) for binding, number in pairs if number is not None]

    def _policy_changes(self, binding: TableBinding, number: int) -> list[str]:
        return describe_changes(binding.config.name, self._facts[number].get("policies", {}), binding.config.policies())

    def _lost_counts(self, binding: TableBinding, number: int) -> list[str]:
        """Returns why counts of keys without a row are not restored; empty if they are, or if there are none."""
        admission = binding.config.admission
        if admission is None:
            return []
        if number not in self._sketches:
            return [f"table {binding.config.name!r}: the checkpoint has no counts of keys without a row"]
        stored = self._checkpoint.manifest.tables[self._sketches[number]]
        info, present = self._sketch(binding, number).info, binding.sketch().config
        if stored["nodes"] != binding.parts:
            reason = f"{stored['nodes']} machines had counted them, and {binding.parts} share the table now"
        elif (info["key_limit"], info["metadata"][-1]["name"]) != (present.key_limit, present.metadata[-1].name):
            reason = "expected_keys or the size of `count` (up to 15, or above) is another one"
        else:
            return []
        return [f"table {binding.config.name!r}: keys without a row are counted from 0 again, because {reason}"]

    def restore(self, bindings: Sequence[TableBinding]) -> None:
        """Replaces the tables' rows by the stored ones. Every rank calls it, and then `check_read`; leaders act.

        A leader that finds damage stops reading and raises nothing: other ranks wait until it has ended.
        """
        for binding, number in self._restored(bindings):
            self._restore(binding, self._rows(binding, number), self._facts[number].get("index_seed"))
            self._restore_counts(binding, number)
            fault_points.reach("table_restored")

    def initialize(self, bindings: Sequence[TableBinding], ranks: Collectives, written: Collection[int]) -> None:
        """Gives tables that the checkpoint lacks their initial values. Every rank calls it; leaders act.

        They have other values if a named job has trained them since that checkpoint, or if a newer checkpoint turned
        out to be damaged while it was restored.

        Args:
          bindings: The tables of the model.
          ranks: The job's collectives.
          written: The ordinals of tables that such a damaged checkpoint was restored to.

        Raises:
          StateError: On all ranks: such a table began with values that the program gave it, and they are lost.
        """
        new = [binding for binding, number in zip(bindings, self.match.numbers, strict=True) if number is None]
        # A leader may be ahead of its ranks: all ask before any table is changed.
        is_written = [_is_trained(binding) or binding.ordinal in written for binding in new]
        everywhere = ranks.allgather_object(is_written, "tsps.checkpoint.new")
        other = [binding for binding, *of_ranks in zip(new, *everywhere, strict=True) if any(of_ranks)]
        for binding in other:
            if binding.leader_wrote_values or binding.weights_checksum:
                raise StateError(
                    f"table {binding.config.name!r}, which checkpoint {self._shown} lacks, has been written since the "
                    "program gave it its first values, and these are lost. If the job has a name, remove "
                    f"{job.current().group_path}, or use another TFSPS_JOB. Otherwise start the program again"
                )
        for binding in other:
            content = number_of("initialized", self._checkpoint.path.name, self._step, binding.ordinal)
            binding.replace([], content, whole=True)
            if binding.config.admission is not None and binding.group.is_leader:
                binding.reset_counts()
            binding.set_trained_by(0, 0)
            binding.agree(0, content)

    def check_read(self) -> None:
        """Raises the error of `restore` on this rank, if any: DamagedFileError, NotFoundError, or OSError."""
        if self._damage is not None:
            raise self._damage

    def set_step(self, ranks: Collectives) -> None:
        """Sets the step of the tables to that of the checkpoint. Every rank calls it; leaders act."""
        this_job = job.current()
        if this_job.is_leader:
            with eager_ops(f"setting the step of {this_job.group_path}") as _ops:
                _ops.set_step(this_job.group_path, tf.constant(self._step, tf.int64))
        ranks.barrier("tsps.checkpoint.step")
        this_job.step.assign(self._step)
        fault_points.reach("step_set")

    def _rows(self, binding: TableBinding, number: int) -> StoredRows:
        shard = binding.shard if binding.placement == "sharded" else None
        stored = StoredRows(self._checkpoint, number, shard)
        if stored.shard not in (None, shard):
            raise UnsupportedError(
                f"checkpoint {self._shown} has of table {binding.config.name!r} {describe(stored.shard)}, and this "
                f"node needs {describe(shard)}. What nodes have saved to a directory each (per_node=True) is restored "
                "by as many nodes, in the same order, with the same placement"
            )
        return stored

    def _sketch(self, binding: TableBinding, number: int) -> StoredRows:
        shard = binding.shard if binding.placement == "sharded" else None
        return StoredRows(self._checkpoint, self._sketches[number], shard)

    def _restore_counts(self, binding: TableBinding, number: int) -> None:
        """Replaces the counts of keys without a row by the stored ones. The leader acts."""
        if binding.config.admission is None or not binding.group.is_leader:
            return
        if self._lost_counts(binding, number):
            binding.reset_counts()
            return
        binding.reset_counts(self._checkpoint.manifest.tables[self._sketches[number]]["index_seed"])
        with self._noting_damage():
            for block in self._sketch(binding, number).blocks():
                binding.write_counts(block)

    @contextlib.contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except (DamagedFileError, NotFoundError, OSError) as error:
            self._damage = error

    def _restore(self, binding: TableBinding, stored: StoredRows, index_seed: int | None) -> None:
        info = stored.info
        rule = info["optimizer"]
        meta = {
            "dim": info["dim"],
            "key_limit": info["key_limit"] or None,
            "optimizer": rule["kind"],
            "slot_init": [float(value) for value in rule["slot_init"]],
            "initializer": info["initializer"],
            "trained_by": info["trained_by"],
        }
        if index_seed is not None:
            binding.take_index_seed(index_seed)

        def blocks(carried: bool) -> Iterator[Block]:
            if self._damage is not None:
                return
            with bar(stored.at_most, f"restore {binding.config.name}") as progress, self._noting_damage():
                for block in _read_ahead(joined(stored.blocks())):  # with metadata, also if the slots are not taken
                    block = block if carried else block._replace(slots=())
                    yield _with_use(block, self._step) if binding.records_use else block
                    progress.update(len(block.keys))
                    fault_points.reach("rows_restored")

        widths = [] if rule["kind"] == "none" else _table.slot_widths(rule["kind"], info["dim"])
        content = number_of("restored", self._checkpoint.path.name, self._step, binding.ordinal)
        rows.replace(binding, meta, widths, blocks, content)
        if rule["kind"] == "none":  # saved before the first step: a named job's table may have slots of a later one
            binding.reset_slots()
        binding.set_trained_by(*info["trained_by"])  # the job's optimizer becomes that of the checkpoint, too
        # All nodes have read the file: none needs to be given what another one has written.
        binding.agree(0, content)


def _is_trained(binding: TableBinding) -> bool:
    """Whether an earlier run of a named job has trained a table."""
    return job.current().identity.name is not None and binding.trained_by()[0] != 0


def _read_ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yields the blocks, and reads the next one while the caller uses one."""
    with ThreadPoolExecutor(1, "tsps-restore") as thread:
        reading = thread.submit(next, blocks, None)
        while (block := reading.result()) is not None:
            reading = thread.submit(next, blocks, None)
            yield block


def _with_use(block: Block, step: int) -> Block:
    """Returns a block with the use of its rows. If that was not saved, they count as used in `step`."""
    return block._replace(metadata={USE.name: parameter_files.use_in(step, len(block.keys)), **block.metadata})
