"""The bytes of a table on one machine, by the rules of the core (docs/storage.md, docs/tiers.md).

A file in memory is longer than its content: when less than an eighth is left, the writer's helper reserves a quarter
more, 64 KiB to 64 MiB. So on average three quarters of that quarter are reserved ahead.
"""

from __future__ import annotations

import dataclasses
import math

from tf_sparse_ps import _table
from tf_sparse_ps.config import TableConfig, Tiered

_SEGMENT, _SEGMENT_ENTRIES = 64 << 10, 4092  # of the index (cc/core/table/layout.h)
_MOST_USED, _SPREAD = _SEGMENT_ENTRIES * 4 // 5, _SEGMENT_ENTRIES // 4
_LEAST_AHEAD, _MOST_AHEAD = 64 << 10, 64 << 20
_KEY, _CHANGED, _USE = 8, 4, 8
_UNDO_ROW = 7  # bytes per row of the undo log in addition to the row: its number and its share of a block's head
_ELEMENTS = {"float32": 4, "bfloat16": 2, "float16": 2, "uint32": 4, "int64": 8}
_FIXED = 160 << 10  # config, directory, list of planes, and empty files of a table
_SKETCH_LINE, _SKETCH_KEYS = 64, 66
# The division of a tiered table's memory (cc/core/table/memory_plan.cc).
_TIER_ROW, _PLACE, _PLACE_USE, _PLACE_PARTS = 58, 12, 20, 36
_BUFFERS, _SPARE_SHARE, _MOST_SPARE, _CACHE_SHARE, _FILE_SHARE = 12, 32, 32 << 20, 6, 16
_PLACE_MEAN = 10.5  # bytes per row of the index of records, 9 to 12
_RECORD, _LOG_FACTOR, _LOG_FILES = 16, 1.6, 3


@dataclasses.dataclass(frozen=True)
class TableBytes:
    """The bytes of a table on one machine.

    Attributes:
      rows: Rows in memory.
      slots: Slots of the optimizer in memory.
      index: The index, and that of the rows on disk.
      metadata: Keys, change generations, uses, metadata planes, and the sketch of an admission.
      tier: Memory of a tiered table for records that were read.
      slack: Bytes that are reserved ahead.
      undo: The part of the undo log in which a step of this table saves its rows.
      buffers: Buffers of a tiered table's reads and writes, in the heaps of processes.
      disk: Bytes on disk.
      rows_in_memory: The number of rows in memory, on this machine.
      rows_on_disk: The number of rows on disk, on this machine.
    """

    rows: int
    slots: int
    index: int
    metadata: int
    tier: int
    slack: int
    undo: int
    buffers: int
    disk: int
    rows_in_memory: int
    rows_on_disk: int

    @property
    def memory(self) -> int:
        """All bytes in memory."""
        return self.shared + self.buffers

    @property
    def shared(self) -> int:
        """The bytes in shared memory."""
        return self.table + self.undo

    @property
    def table(self) -> int:
        """The bytes in shared memory of the table alone: the `bytes` of `Table.stats()`."""
        return self.rows + self.slots + self.index + self.metadata + self.tier + self.slack


def row_bytes(config: TableConfig) -> int:
    """Returns the bytes of a row's embedding."""
    return config.dim * _ELEMENTS[config.dtype]


def slot_bytes(config: TableConfig) -> int:
    """Returns the bytes of a row's slots."""
    return sum(_slots(config))


def _slots(config: TableConfig) -> list[int]:
    """Returns the bytes of each slot of a row."""
    if config.optimizer is None:
        return []
    return [4 * width for width in _table.slot_widths(config.optimizer.kind, config.dim)]


def index_segments(rows: float) -> float:
    """Returns the expected number of segments of the index.

    Each prefix of the hash splits its segment when the keys with it exceed the segment's limit. The limits are spread
    evenly, and keys per prefix are nearly normally distributed.
    """
    segments, depth = 1.0, 0
    while (mean := rows / 2**depth) > _MOST_USED - _SPREAD - 300:
        spread = math.sqrt(mean)
        steps = [_MOST_USED - _SPREAD * (i + 0.5) / 32 for i in range(32)]
        above = sum(0.5 * math.erfc((limit - mean) / spread / math.sqrt(2)) for limit in steps) / len(steps)
        segments += 2**depth * above
        depth += 1
    return segments


def estimate(config: TableConfig, rows: int, step_keys: float, machines: int = 1) -> TableBytes:
    """Returns the bytes of a table on one machine.

    Args:
      config: The configuration. Its placement decides whether machines share the rows.
      rows: The number of rows of the whole table.
      step_keys: The number of distinct keys that a step updates on this machine.
      machines: The number of machines.
    """
    nodes = machines if config.placement != "replicated" else 1
    here = -(-rows // nodes)
    embedding, slots = row_bytes(config), slot_bytes(config)
    planes = [_KEY, _CHANGED] + [_ELEMENTS[plane.type] * plane.elements for plane in config.planes]
    undo = step_keys * (embedding + slots + _UNDO_ROW)
    undo += _ahead(undo)
    sketch = 0
    if config.admission is not None:
        count, _, expected = config.admission.for_core(nodes)
        lines = expected / (_SKETCH_KEYS if count <= 15 else _SKETCH_KEYS / 2)
        sketch = int(lines * (_SKETCH_LINE + _KEY + _CHANGED) + index_segments(lines) * _SEGMENT)
    if isinstance(config.storage, Tiered):
        return _tiered(config, config.storage, here, nodes, undo, sketch)
    files = [embedding, *_slots(config), *planes]
    index = index_segments(here) * _SEGMENT
    slack = sum(_ahead(here * width) for width in files) + _ahead(index) + _FIXED
    return TableBytes(
        rows=here * embedding,
        slots=here * slots,
        index=int(index),
        metadata=here * sum(planes) + sketch,
        tier=0,
        slack=int(slack),
        undo=int(undo),
        buffers=0,
        disk=0,
        rows_in_memory=here,
        rows_on_disk=0,
    )


def _ahead(used: float) -> float:
    """Returns the bytes that are reserved ahead in a file, on average."""
    return 0.75 * min(max(used / 4, _LEAST_AHEAD), _MOST_AHEAD) if used else 0.0


@dataclasses.dataclass(frozen=True)
class Division:
    """The division of a tiered table's memory.

    Attributes:
      rows: The number of rows in memory.
      rows_in_all: The number of rows whose places on disk fit.
      cache: The bytes for records that were read.
      file_bytes: The bytes of a file of records.
      buffers: The bytes of buffers in processes.
    """

    rows: int
    rows_in_all: int
    cache: int
    file_bytes: int
    buffers: int


def divide(config: TableConfig, memory: int, nodes: int = 1) -> Division:
    """Returns the division of the memory of a tiered table, as the core makes it.

    Args:
      config: The configuration of the table.
      memory: The bytes of memory.
      nodes: The number of machines that share the rows.
    """
    file_bytes = min(max(memory // _FILE_SHARE, 1 << 20), 64 << 20)
    buffers = _BUFFERS * min(max(file_bytes // 8, 128 << 10), 1 << 20)
    usable = memory - min(memory, buffers)
    usable -= min(usable // _SPARE_SHARE, _MOST_SPARE)
    cache = usable // _CACHE_SHARE
    left = usable - cache
    each = _stored_bytes(config) + _KEY + _CHANGED + _TIER_ROW
    place = _PLACE + (_PLACE_USE if config.eviction is not None else 0)
    limit = min((most for most in (config.key_limit, config.max_rows) if most is not None), default=0)
    most_rows = limit if nodes == 1 else int(limit / nodes * 1.01)
    index = min(most_rows * place, left) if most_rows else left // (place + _PLACE_PARTS) * place
    rows = (left - index) // each
    return Division(min(rows, most_rows) if most_rows else rows, index // place, cache, file_bytes, buffers)


def memory_for(config: TableConfig, rows: int, rows_in_memory: int, nodes: int = 1) -> int:
    """Returns the `memory` of a `Tiered` that holds `rows_in_memory` of `rows` rows of a machine."""
    low, high = 1 << 20, 1 << 50
    while low + (1 << 20) < high:
        middle = (low + high) // 2
        division = divide(config, middle, nodes)
        enough = division.rows >= rows_in_memory and division.rows_in_all >= rows
        low, high = (low, middle) if enough else (middle, high)
    return high


def _stored_bytes(config: TableConfig) -> int:
    """Returns the bytes of a row's embedding, slots, use and metadata planes."""
    planes = sum(_ELEMENTS[plane.type] * plane.elements for plane in config.planes)
    return row_bytes(config) + slot_bytes(config) + planes


def _tiered(config: TableConfig, storage: Tiered, rows: int, nodes: int, undo: float, sketch: int) -> TableBytes:
    division = divide(config, int(storage.memory), nodes)
    inside = min(rows, division.rows)
    on_disk = rows - inside
    embedding, slots = row_bytes(config), slot_bytes(config)
    metadata = _stored_bytes(config) - embedding - slots + _KEY + _CHANGED
    places = on_disk * (_PLACE_MEAN + (_PLACE_USE if config.eviction is not None else 0))
    record = (_stored_bytes(config) + _RECORD + 7) // 8 * 8
    # A row that was in memory may keep its number in the stack of free ones, and planes have space for an eighth more.
    slack = 4 * inside + min(inside / 8, division.rows - inside) * (embedding + slots + metadata) + _FIXED
    # Records are cached in 1/6 of the memory, for at most twice the rows of a bounded table.
    return TableBytes(
        rows=inside * embedding,
        slots=inside * slots,
        index=int(index_segments(inside) * _SEGMENT + places),
        metadata=inside * metadata + sketch,
        tier=division.cache,
        slack=int(slack),
        undo=int(undo),
        buffers=division.buffers,
        disk=int(on_disk * record * _LOG_FACTOR) + _LOG_FILES * division.file_bytes,
        rows_in_memory=inside,
        rows_on_disk=on_disk,
    )
