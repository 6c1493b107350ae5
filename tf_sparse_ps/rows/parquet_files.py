"""Rows in Parquet files, by pyarrow: columns `key`, `row` (a list of floats) and `slot_0`, ..., without compression."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, UnsupportedError
from tf_sparse_ps.rows import row_files
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.table.arrays import as_keys
from tf_sparse_ps.table.scan import Block, concatenated

_FACTS = b"tf_sparse_ps"
_GROUP_BYTES = 16 << 20  # a row group, which is in memory while it is written


def _pyarrow() -> Any:
    """Returns pyarrow with its module `parquet`.

    Raises:
      UnsupportedError: It is not installed.
    """
    try:
        import pyarrow  # optional, and it takes long to import
        import pyarrow.parquet  # as above
    except ImportError as error:
        raise UnsupportedError(
            f"Parquet files need the package pyarrow: {error}. Run: pip install 'tf_sparse_ps[parquet]'. Or use a file "
            "that ends with .npz"
        ) from error
    return pyarrow


class _Writer(row_files.Writer):
    def __init__(self, path: Path, facts: RowFacts) -> None:
        self._pa = pa = _pyarrow()
        widths = {"row": facts.dim, **{f"slot_{i}": width for i, width in enumerate(facts.widths)}}
        self._fields = [pa.field("key", pa.int64(), nullable=False)]
        for name, width in widths.items():
            element = pa.field("element", pa.float32(), nullable=False)
            self._fields.append(pa.field(name, pa.list_(element, width), nullable=False))
        self._schema = pa.schema(self._fields, metadata={_FACTS: facts.encode().encode()})
        self._group_rows = max(1, _GROUP_BYTES // (8 + 4 * sum(widths.values())))
        self._waiting: list[Block] = []
        self._thread = ThreadPoolExecutor(1, "tsps-parquet")
        self._writing: Future[None] = Future()
        self._writing.set_result(None)
        self._file = pa.parquet.ParquetWriter(
            path,
            self._schema,
            compression="none",
            use_dictionary=False,
            write_statistics=["key"],
            write_page_checksum=True,
        )

    def append(self, block: Block) -> None:
        self._waiting.append(block._replace(metadata={}))
        if sum(len(waiting.keys) for waiting in self._waiting) >= self._group_rows:
            self._write()

    def _write(self) -> None:
        """Writes the waiting rows as a row group, in another thread while the next rows are read."""
        self._writing.result()
        self._writing = self._thread.submit(self._write_group, concatenated(self._waiting))
        self._waiting = []

    def _write_group(self, block: Block) -> None:
        pa = self._pa
        columns = [pa.array(block.keys)]
        for field, values in zip(self._fields[1:], (block.rows, *block.slots), strict=True):
            floats = pa.array(np.ascontiguousarray(values).reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(floats, type=field.type))
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema), row_group_size=len(block.keys))

    def finish(self) -> None:
        if self._waiting:
            self._write()
        self._writing.result()

    def close(self) -> None:
        self._thread.shutdown()
        self._file.close()


class _Reader(row_files.Reader):
    def __init__(self, path: Path) -> None:
        self._pa = pa = _pyarrow()
        self._path = path
        try:
            self._file = pa.parquet.ParquetFile(
                path, memory_map=False, pre_buffer=False, page_checksum_verification=True
            )
        except pa.ArrowInvalid as error:
            raise DamagedFileError(f"{path} is not a Parquet file, or is damaged: {error}") from None
        schema = self._file.schema_arrow
        self._check_columns(schema)
        stored = (schema.metadata or {}).get(_FACTS)
        facts = None if stored is None else RowFacts.decode(stored, str(path))
        self.at_most = int(self._file.metadata.num_rows)
        names = [f"slot_{i}" for i in range(sum(name.startswith("slot_") for name in schema.names))]
        widths = [self._width(schema, name) for name in names]
        row_files.check_slots(path, facts, widths)
        dim = self._width(schema, "row")
        if facts is not None and facts.dim != dim:
            raise DamagedFileError(f"{path} says that its rows have {facts.dim} floats, and they have {dim}")
        self.facts = RowFacts(path.stem, dim) if facts is None else facts
        self._names = {"row": dim, **dict(zip(names, widths, strict=True))}

    def _check_columns(self, schema: Any) -> None:
        types = self._pa.types
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        known = {name: schema.field(name).type for name in schema.names}
        if not types.is_integer(known.get("key", self._pa.null())) or "row" not in known:
            raise InvalidArgumentError(
                f"{self._path} must have an integer column `key` and a column `row` of lists of floats. It has "
                f"{ {name: str(kind) for name, kind in known.items()} }"
            )
        for name, kind in known.items():
            if name == "key" or not (name == "row" or name.startswith("slot_")):
                continue
            if not any(is_list(kind) for is_list in lists) or not types.is_floating(kind.value_type):
                raise InvalidArgumentError(f"column `{name}` of {self._path} must have lists of floats. It has {kind}")

    def _width(self, schema: Any, name: str) -> int:
        kind = schema.field(name).type
        if self._pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in self._batches([name]):  # the first row says how long all lists must be
            if len(batch):
                return len(batch.column(0)[0].as_py() or ())
        raise InvalidArgumentError(f"{self._path} has no rows, and does not say how many floats rows have")

    def _batches(self, names: list[str]) -> Iterator[Any]:
        size = max(1, _GROUP_BYTES // (4 * (2 + sum(getattr(self, "_names", {}).values()))))
        try:
            yield from self._file.iter_batches(batch_size=min(size, 1 << 17), columns=names, use_threads=False)
        except (self._pa.ArrowInvalid, OSError) as error:
            raise DamagedFileError(f"{self._path} is damaged: {error}") from None

    def blocks(self, slots: bool) -> Iterator[Block]:
        names = list(self._names) if slots else ["row"]
        for batch in self._batches(["key", *names]):
            if batch.column("key").null_count:
                raise InvalidArgumentError(f"{self._path} has a row without a key")
            keys = as_keys(batch.column("key").to_numpy(zero_copy_only=False))
            rows, *values = (self._floats(batch.column(name), name) for name in names)
            yield Block(keys, rows, tuple(values), {})

    def _floats(self, column: Any, name: str) -> npt.NDArray[np.float32]:
        width = self._names[name]
        values = column.flatten()
        if column.null_count or values.null_count or len(values) != width * len(column):
            raise InvalidArgumentError(
                f"column `{name}` of {self._path} must have {width} floats in each row, and has a row with others"
            )
        if not self._pa.types.is_fixed_size_list(column.type):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            if (lengths != width).any():
                raise InvalidArgumentError(
                    f"column `{name}` of {self._path} must have {width} floats in each row, and has a row of "
                    f"{lengths[lengths != width][0]}"
                )
        floats = values.to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(floats, dtype=np.float32).reshape(len(column), width)


class Parquet(row_files.Format):
    """The format `.parquet`."""

    def reader(self, path: Path) -> row_files.Reader:
        return _Reader(path)

    def writer(self, path: Path, facts: RowFacts) -> row_files.Writer:
        return _Writer(path, facts)
