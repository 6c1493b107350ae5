"""Results of reading a whole table: `Scan` and its `Block`s of rows, `Changes`, `Report`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.table.arrays import Keys, Rows, block_rows
from tf_sparse_ps.table.shards import Shard

JOINED_BYTES = 4 << 20  # of the rows of joined blocks, without slots


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `Table.verify`.

    Attributes:
      ok: Whether no problem was found.
      problems: The problems, as sentences.
      rows: The number of live keys.
      step: The group's committed step.
    """

    ok: bool
    problems: tuple[str, ...]
    rows: int
    step: int


@dataclasses.dataclass(frozen=True)
class Changes:
    """The result of `Table.changes_since`.

    Attributes:
      everything: Whether the changes are unknown. Then `written` has all keys, and any other key may have been erased.
      written: The live keys that were written, int64[n], each once.
      erased: The keys that were erased, int64[m], each once. A key that is also in `written` was written after that.
    """

    everything: bool
    written: Keys
    erased: Keys


class Block(NamedTuple):
    """Rows of a `Scan`."""

    keys: Keys
    """int64[n]."""
    rows: Rows
    """float32[n, dim]."""
    slots: tuple[Rows, ...]
    """float32[n, width] each; empty if the scan was made with `slots=False`."""
    metadata: dict[str, npt.NDArray[Any]]
    """Arrays by the names of their planes, as `Table.metadata` returns them; empty if `slots=False`."""

    def where(self, kept: npt.NDArray[Any]) -> Block:
        """Returns the block with some of its rows. `kept`: bool[n], or the numbers of rows, integers [m]."""
        slots = tuple(slot[kept] for slot in self.slots)
        return Block(
            self.keys[kept], self.rows[kept], slots, {name: plane[kept] for name, plane in self.metadata.items()}
        )


def concatenated(blocks: Sequence[Block]) -> Block:
    """Returns all rows of one or more blocks as one block."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        np.concatenate([block.keys for block in blocks]),
        np.concatenate([block.rows for block in blocks]),
        tuple(np.concatenate(parts) for parts in zip(*(block.slots for block in blocks), strict=True)),
        {name: np.concatenate([block.metadata[name] for block in blocks]) for name in blocks[0].metadata},
    )


def joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Joins blocks into larger ones, because each is a mutation of a table."""
    parts: list[Block] = []
    n = 0
    for block in blocks:
        if not len(block.keys):
            continue
        parts.append(block)
        n += len(block.keys)
        if n >= JOINED_BYTES // (4 * block.rows.shape[1]):
            yield concatenated(parts)
            parts, n = [], 0
    if parts:
        yield concatenated(parts)


class Scan:
    """A table at one committed state; see `Table.scan`. Ends with its `with` block, or when the object is dropped.

    Attributes:
      step: The step of that state.
      optimizer: The update rule that the slots belong to, as the core describes it.
      trained_by: The identity of the optimizer that made the slots, 0 if any optimizer may use them, and its number of
        steps.
      erased: For a scan since a mark, the keys that were erased since, int64[m]; a key that is also among the rows was
        written after that. None: the scan returns all rows, and the results of earlier scans must be dropped.
    """

    def __init__(self, core: Any, dim: int) -> None:
        self._core = core
        self._block = block_rows(dim)
        self.step = int(core.step())
        self.optimizer: dict[str, Any] = core.optimizer()
        self.trained_by: tuple[int, int] = core.trained_by()
        self.erased: Keys | None = core.erased()
        self._rows = int(core.rows())

    def __len__(self) -> int:
        """Returns the number of rows of the table. A scan since a mark, or of a shard, returns fewer."""
        return self._rows

    def take_shard(self, shard: Shard) -> None:
        """Skips the rows and erased keys of other shards. Call it before the first row is read."""
        self._core.take_shard(shard.node, shard.nodes)
        self.erased = self._core.erased()

    def __iter__(self) -> Iterator[Block]:
        while len((block := self._next()).keys):
            yield block

    def _next(self) -> Block:
        return self.take(self._block)

    def write_to(self, writer: Any, n: int) -> int:
        """Appends about `n` of the next rows to a `_table.ParameterFileWriter`. Returns their number, 0 at the end."""
        return int(writer.append_scan(self._core, n))

    def add_to(self, rows: Any, n: int) -> int:
        """Adds about `n` of the next rows to a `_table.ServingRows`. Returns their number, 0 at the end."""
        return int(rows.add_scan(self._core, n))

    def take(self, n: int) -> Block:
        """Returns the next rows, at most `n`; an empty block at the end."""
        keys, rows, slots, metadata = self._core.next(n)
        return Block(keys, rows, tuple(slots), metadata)

    def read(self) -> Block:
        """Returns all remaining rows as one block."""
        blocks = [self._next()]
        while len(blocks[-1].keys):
            blocks.append(self._next())
        return concatenated(blocks)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the scan. The writer stops keeping images of rows for it."""
        self._core.close()
