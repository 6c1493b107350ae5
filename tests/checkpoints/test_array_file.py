"""Files of arrays: every array is read as it was written, and crafted files are refused like damaged ones."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tf_sparse_ps.checkpoints import array_file
from tf_sparse_ps.errors import DamagedFileError


def npy(header: bytes, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def array(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


FACTS = array(np.frombuffer(b"{}", np.uint8))
HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }\n"


def test_arrays_of_all_kinds_are_read_as_they_were(tmp_path: Path) -> None:
    values = [
        (0, np.arange(6, dtype=np.float32).reshape(2, 3)),
        (5, np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        (7, np.zeros((0, 4), np.int64)),
        (9, np.array(True)),
    ]
    array_file.write(tmp_path / "a.npz", values, {"step": 3})
    facts, arrays = array_file.read(tmp_path / "a.npz")
    assert facts == {"step": 3}
    for (number, array_read), (expected_number, expected) in zip(arrays, values, strict=True):
        assert number == expected_number
        assert array_read.dtype == expected.dtype
        np.testing.assert_array_equal(array_read, expected)
        array_read[...] = 0  # the array is writable


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "no item named 'facts.npy'"),
        ({"facts.npy": array(np.frombuffer(b"[1]", np.uint8))}, "its facts are list"),
        ({"facts.npy": array(np.frombuffer(b"{", np.uint8))}, "JSONDecodeError"),
        ({"facts.npy": FACTS, "b.npy": FACTS}, "its members are not those of a checkpoint"),
        ({"facts.npy": FACTS, "../a000001.npy": FACTS}, "its members are not those of a checkpoint"),
        ({"facts.npy": FACTS, "a000001.npy": b"none of NumPy's"}, "ValueError"),
        ({"facts.npy": FACTS, "a000001.npy": npy(b"{'descr': '<f4', 'shape': (1")}, "a.npz is damaged"),
        ({"facts.npy": FACTS, "a000001.npy": npy(b"(" * 5000)}, "a.npz is damaged"),
        ({"facts.npy": FACTS, "a000001.npy": npy(HEADER % b"2", b"1234")}, "has 4 bytes for shape"),
        ({"facts.npy": FACTS, "a000001.npy": npy(HEADER % b"-1", b"")}, r"has shape \(-1,\)"),
        ({"facts.npy": FACTS, "a000001.npy": npy(HEADER % str(2**62).encode(), b"")}, "has 0 bytes for shape"),
        ({"facts.npy": FACTS, "a000001.npy": npy(HEADER.replace(b"<f4", b"|O") % b"1", b"12345678")}, "object"),
        ({"facts.npy": FACTS, "a000001.npy": npy(HEADER % b"1", b"1234", b"\3\0")}, r"version \(3, 0\)"),
    ],
)
def test_crafted_files_are_refused(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DamagedFileError, match=message):
        list(array_file.read(path)[1])


def test_members_that_are_compressed_or_repeated_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("facts.npy", FACTS)
    with pytest.raises(DamagedFileError, match="a member is compressed"):
        array_file.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("facts.npy", FACTS)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("facts.npy", FACTS)
    with pytest.raises(DamagedFileError, match="not those of a checkpoint"):
        array_file.read(path)


def test_a_file_that_is_cut_at_any_place_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    array_file.write(path, [(0, np.arange(3))], {})
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFileError, match="is damaged"):
            list(array_file.read(path)[1])
