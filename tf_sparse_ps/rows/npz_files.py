"""Rows in NumPy archives: arrays `keys`, `rows`, `slot_0`, ... and `facts`, which `numpy.load` reads.

They are written and read in blocks. Until the number of rows is known, each array is in a temporary file next to the
archive.
"""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError
from tf_sparse_ps.rows import row_files
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.table.arrays import as_keys, block_rows
from tf_sparse_ps.table.scan import Block

_COPIED_BYTES = 4 << 20
_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


class _Writer(row_files.Writer):
    def __init__(self, path: Path, facts: RowFacts) -> None:
        self._path, self._facts, self._n = path, facts, 0
        self._end = contextlib.ExitStack()
        floats = {"rows": facts.dim, **{f"slot_{i}": width for i, width in enumerate(facts.widths)}}
        self._arrays: dict[str, tuple[np.dtype[Any], int]] = {"keys": (np.dtype(np.int64), 0)}
        self._arrays |= {name: (np.dtype(np.float32), width) for name, width in floats.items()}
        self._parts: dict[str, IO[bytes]] = {}
        for name in self._arrays:
            part = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
            self._parts[name] = self._end.enter_context(part)

    def append(self, block: Block) -> None:
        self._n += len(block.keys)
        for part, values in zip(self._parts.values(), (block.keys, block.rows, *block.slots), strict=True):
            part.write(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)

    def finish(self) -> None:
        facts = np.frombuffer(self._facts.encode().encode(), np.uint8)
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            with archive.open("facts.npy", "w") as member:
                npy_format.write_array(member, facts, allow_pickle=False)
            for name, (dtype, width) in self._arrays.items():
                part = self._parts.pop(name)
                part.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    shape = (self._n, width) if width else (self._n,)
                    member.write(_header(dtype, shape))
                    shutil.copyfileobj(part, member, _COPIED_BYTES)
                part.close()

    def close(self) -> None:
        self._end.close()


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    facts = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(stream, facts)
    return stream.getvalue()


class _Member(NamedTuple):
    """An array of an archive."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Reader(row_files.Reader):
    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if not {"keys", "rows"} <= set(names):
                raise InvalidArgumentError(f"{path} must have the arrays `keys` and `rows`. It has {sorted(names)}")
            slots = [f"slot_{i}" for i in range(sum(name.startswith("slot_") for name in names))]
            self._members: dict[str, _Member] = {}
            for name in ("keys", "rows", *slots):
                with archive.open(f"{name}.npy") as stream:
                    self._members[name] = self._member(stream, name)
            facts = None
            if "facts" in names:
                with archive.open("facts.npy") as stream:
                    facts_member = self._member(stream, "facts")
                    facts = RowFacts.decode(stream.read(facts_member.shape[0]), str(path))
        n = self._members["keys"].shape
        for name, member in self._members.items():
            if (len(n), len(member.shape)) != (1, 1 if name == "keys" else 2) or member.shape[0] != n[0]:
                raise InvalidArgumentError(
                    f"{path} must have keys [n], rows [n, dim] and slots [n, width]. Received: "
                    f"{ {name: member.shape for name, member in self._members.items()} }"
                )
        row_files.check_slots(path, facts, [self._members[name].shape[1] for name in slots])
        dim = self._members["rows"].shape[1]
        if facts is not None and facts.dim != dim:
            raise DamagedFileError(f"{path} says that its rows have {facts.dim} floats, and they have {dim}")
        if dim < 1:
            raise InvalidArgumentError(f"{path} has rows of {dim} floats")
        self.facts = RowFacts(path.stem, dim) if facts is None else facts
        self.at_most = n[0]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        """Opens the archive. Any error of its format becomes a DamagedFileError."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except (zipfile.BadZipFile, EOFError, NotImplementedError, KeyError, zlib.error) as error:
            raise DamagedFileError(f"{self._path} is not a NumPy archive, or is damaged: {error}") from None

    def _member(self, stream: IO[bytes], name: str) -> _Member:
        """Reads the header of an array. The stream is then at its data."""
        try:
            version = npy_format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of NumPy's format")
            shape, fortran, dtype = _HEADERS[version](stream)
        except (ValueError, SyntaxError, tokenize.TokenError) as error:
            raise DamagedFileError(f"array `{name}` of {self._path} is damaged: {error}") from None
        kinds = {"keys": "iu", "facts": "u"}.get(name, "f")
        if dtype.kind not in kinds or (fortran and len(shape) > 1):
            wanted = {"iu": "integers", "u": "bytes", "f": "floats"}[kinds]
            raise InvalidArgumentError(
                f"array `{name}` of {self._path} must be of {wanted}, in C order. It has dtype {dtype}"
                f"{', in Fortran order' if fortran else ''}"
            )
        return _Member(shape, dtype)

    def blocks(self, slots: bool) -> Iterator[Block]:
        size = block_rows(self.facts.dim)
        names = list(self._members) if slots else ["keys", "rows"]
        with self._opened() as archive, contextlib.ExitStack() as stack:
            streams = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in names}
            for name, stream in streams.items():
                self._member(stream, name)
            for start in range(0, self.at_most, size):
                n = min(size, self.at_most - start)
                keys, rows, *values = (self._read(stream, name, n) for name, stream in streams.items())
                floats = [np.ascontiguousarray(array, np.float32) for array in (rows, *values)]
                yield Block(as_keys(keys), floats[0], tuple(floats[1:]), {})
            for name, stream in streams.items():  # the end of a member is where its checksum is compared
                if stream.read(1):
                    raise DamagedFileError(f"array `{name}` of {self._path} has more data than its header says")

    def _read(self, stream: IO[bytes], name: str, n: int) -> npt.NDArray[Any]:
        member = self._members[name]
        shape = (n, *member.shape[1:])
        data = stream.read(math.prod(shape) * member.dtype.itemsize)
        if len(data) != math.prod(shape) * member.dtype.itemsize:
            raise DamagedFileError(f"array `{name}` of {self._path} has less data than its header says")
        return np.frombuffer(data, member.dtype).reshape(shape)


class Npz(row_files.Format):
    """The format `.npz`."""

    def reader(self, path: Path) -> row_files.Reader:
        return _Reader(path)

    def writer(self, path: Path, facts: RowFacts) -> row_files.Writer:
        return _Writer(path, facts)
