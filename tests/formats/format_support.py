"""The corpus of files of every format: its archives, and the parts of an entry that must not change under one number.

`data/<format>/` holds the files of one format:

    about.json       describes the format, the version that wrote the files, and whether this version reads them
    <entry>.tar.xz   the files of one entry
    expected.npz     the keys, rows and slots that a reader must find, as plain NumPy arrays
    layout.json      the result of `describe`, only for formats that this version writes
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).resolve().parent / "data"
ABOUT, EXPECTED, LAYOUT = "about.json", "expected.npz", "layout.json"
Arrays = dict[str, npt.NDArray[Any]]
HINTS = (".scan-0", ".readers", "records.announced", "records.cache")  # a reader of a group does not need these files
_PAGE = 4096


def kind_of(name: str) -> str:
    """Returns the kind of a format: the part of its folder's name before the number."""
    return name[: next(at for at, letter in enumerate(name) if letter.isdigit()) - 1]


# --- Archives. ---


def pack(folder: Path, archive: Path) -> None:
    """Writes a folder to a compressed archive. Equal files give equal bytes.

    Args:
      folder: The folder whose files and folders become the archive's members.
      archive: The archive's path.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            if path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o700
                tar.addfile(member)
            else:
                member.size, member.mode = path.stat().st_size, 0o600
                with path.open("rb") as stream:
                    tar.addfile(member, stream)
    archive.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks an archive of `pack` into a new private folder.

    Pages of zeros become holes: most files of a group consist of them.

    Args:
      archive: The archive's path.
      folder: The folder to make, with mode 0700.

    Returns:
      The folder.
    """
    folder.mkdir(mode=0o700)
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            path = folder / member.name
            if member.isdir():
                path.mkdir(mode=0o700)
                continue
            stream = tar.extractfile(member)
            assert stream is not None, member.name
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                while page := stream.read(_PAGE):
                    if page.count(0) == len(page):
                        file.seek(len(page), os.SEEK_CUR)
                    else:
                        file.write(page)
                file.truncate(member.size)
    return folder


# --- Checksums and headers, computed here so that they do not depend on the code under test. ---


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def rewrite(path: Path, changes: Mapping[int, bytes], crc_at: int) -> None:
    """Changes bytes of a file's header, and corrects the header's checksum.

    Args:
      path: The file.
      changes: The new bytes, by their offsets.
      crc_at: The offset of the CRC-32C, which covers all bytes before it.
    """
    with path.open("r+b") as file:
        header = bytearray(file.read(crc_at))
        for offset, data in changes.items():
            header[offset : offset + len(data)] = data
        file.seek(0)
        file.write(header + struct.pack("<I", crc32c(bytes(header))))


def relocate(group: Path, disk: Path, recorded: tuple[Path, Path] | None = None) -> None:
    """Writes the current folders of a group and of its rows on disk into the group's tiered tables.

    Args:
      group: The group's folder.
      disk: The folder that `tsps.Tiered(path)` named.
      recorded: The two paths to record; None: the folders themselves.
    """
    recorded_group, recorded_disk = recorded or (group, disk)
    for config in group.glob("*/records.config"):
        table = config.parent.name
        path = os.fsencode(recorded_disk / group.name / table)
        rewrite(config, {12: struct.pack("<I", len(path)), 56: path.ljust(3968, b"\0")}, 4028)
        uuid = config.read_bytes()[16:48].decode()
        (disk / group.name / table / "table").write_text(f"{uuid} {recorded_group / table}\n")


def group_layout(group: Path) -> tuple[int, int]:
    """Returns the version and the layout hash in the header of a group."""
    version, layout = struct.unpack_from("<II", (group / "group").read_bytes(), 8)
    return version, layout


# --- The parts that must not change under one number of a format. ---


def describe(kind: str, folder: Path) -> dict[str, Any]:
    """Describes an entry: two entries of one format that are written by one program have equal descriptions.

    If the program determines all bytes, the description has their checksums. If TensorFlow, Keras or random ids
    determine some of them, it has the names and types of what this library has written.

    Args:
      kind: "group", "parameter-file", "checkpoint", "keras-file", "tf-checkpoint", "saved-model", "version" or
        "bucket-plan".
      folder: The folder of the entry's files.
    """
    parts: dict[str, Any] = {}
    for path in sorted(path_in_entry for path_in_entry in folder.rglob("*") if path_in_entry.is_file()):
        name = path.relative_to(folder).as_posix()
        if kind == "group" and path.name in HINTS:
            parts[name] = "a hint"
        elif kind == "group":
            parts[name] = _digest(_without_process(path).rstrip(b"\0"))
        elif kind == "parameter-file":
            parts[name] = _digest(path.read_bytes())
        elif path.suffix in (".tfsps", ".serving"):
            parts[_asset_name(name)] = _table_file(path)
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                parts[name] = "NumPy archive with facts" if "facts" in arrays.files else "NumPy archive"
        elif path.suffix == ".json" and kind in ("checkpoint", "bucket-plan", "version"):
            parts[name] = _schema(json.loads(path.read_text()))
        elif path.suffix == ".keras":
            parts[name] = _keras_file(path)
    if kind in ("saved-model", "version"):
        parts["ops"] = _ops(folder)
    if kind == "tf-checkpoint":
        parts["tables"] = _tables_of_tf_checkpoint(folder)
    return parts


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _asset_name(name: str) -> str:
    """Returns a name without the numbers that TensorFlow, a job or an export adds."""
    folder, _, file = name.rpartition("/")
    if file.endswith(".serving"):
        return f"{folder[: folder.rindex('/')]}/{folder.split('-', 1)[-1]}/{file.rpartition('-')[0]}"
    return f"{folder}/{file.split('-', 1)[-1]}" if folder.endswith("assets") else name


def _without_process(path: Path) -> bytes:
    """Returns a file's bytes without the fields that name a process or a folder of the machine."""
    data = bytearray(path.read_bytes())
    if path.name == "group":
        data[4096 + 64 : 4096 + 80] = bytes(16)  # pid and start time of the last writer
    elif path.name == "records.config":
        data[12:16] = data[56:4032] = b""
    elif path.name == "table":
        del data[33:]
    return bytes(data)


def _table_file(path: Path) -> dict[str, Any]:
    """Describes the header of a file with rows."""
    data = path.read_bytes()[:288]
    if data[1:5] != b"TSRV":
        return _parameter_file(path)
    names = ("version", "header_bytes", "dim", "row_code", "row_type", "is_layer")
    return dict(zip(names, struct.unpack_from("<6I", data, 8), strict=True))


def _parameter_file(path: Path) -> dict[str, Any]:
    """Describes the records of a sparse-parameter file of version 2."""
    data = path.read_bytes()
    (version,) = struct.unpack_from("<I", data, 8)
    (dim,) = struct.unpack_from("<I", data, 16)
    optimizer, n_planes = struct.unpack_from("<II", data, 40)
    planes = []
    for at in range(128, 128 + 64 * n_planes, 64):
        role, kind, row_bytes = struct.unpack_from("<III", data, at + 32)
        planes.append([data[at : at + 32].rstrip(b"\0").decode(), role, kind, row_bytes])
    return {"version": version, "dim": dim, "optimizer": optimizer, "planes": planes}


def _schema(value: Any) -> Any:
    """Returns a JSON value's keys and types. The elements of a list have one schema, with the keys of all."""
    if isinstance(value, dict):
        if "class_name" in value:
            return "object of Keras"
        return {name: _schema(element) for name, element in sorted(value.items())}
    if isinstance(value, list):
        schemas = [_schema(element) for element in value]
        if schemas and all(isinstance(element, dict) for element in schemas):
            return [{name: kind for element in schemas for name, kind in element.items()}]
        return sorted({json.dumps(element) for element in schemas})
    return type(value).__name__


def _keras_file(path: Path) -> dict[str, Any]:
    """Describes the layers of this library in a `.keras` file: their configurations' keys, and their tables' arrays."""
    import h5py

    layers: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
        for layer in config["config"]["layers"]:
            if "tf_sparse_ps" in json.dumps([layer.get("registered_name"), layer.get("module")]):
                layers[layer["registered_name"]] = {
                    "config": _schema(layer["config"]),
                    "build_config": _schema(layer.get("build_config")),
                }
        with h5py.File(io.BytesIO(archive.read("model.weights.h5")), "r") as file:
            for name, array in datasets(file):
                last = name.rpartition("/")[2]
                if last.startswith(("keys", "rows", "slot_", "meta", "table_")):
                    layers[name] = _array_or_meta(last, np.asarray(array))
    return layers


def datasets(group: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the arrays of an HDF5 file or group, with their paths."""
    for name, member in group.items():
        if hasattr(member, "items"):
            yield from datasets(member, f"{at}{name}/")
        else:
            yield f"{at}{name}", member


def _array_or_meta(name: str, array: npt.NDArray[Any]) -> Any:
    if name.endswith("meta"):
        meta = json.loads(bytes(array))
        return {"version": meta["version"], "keys": _schema(meta)}
    return [str(array.dtype), array.ndim]


def _tables_of_tf_checkpoint(folder: Path) -> list[Any]:
    """Describes the tables of a `tf.train.Checkpoint`, whose values are the bytes of a NumPy archive."""
    import tensorflow as tf

    tables = []
    (index,) = folder.glob("*.index")
    reader = tf.train.load_checkpoint(os.fspath(index.with_suffix("")))
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if dtype != tf.string or not (value := reader.get_tensor(name)).startswith(b"PK"):
            continue
        with np.load(io.BytesIO(value)) as arrays:
            tables.append(
                {array_name: _array_or_meta(array_name, arrays[array_name]) for array_name in sorted(arrays.files)}
            )
    return sorted(tables, key=json.dumps)


def _ops(folder: Path) -> list[Any]:
    """Describes the ops of this library in SavedModels: their names, attributes and numbers of inputs."""
    from tensorflow.core.protobuf import saved_model_pb2

    contents = [
        saved_model_pb2.SavedModel.FromString(path.read_bytes()) for path in sorted(folder.rglob("saved_model.pb"))
    ]
    nodes = [
        node
        for content in contents
        for graph in content.meta_graphs
        for nodes in (graph.graph_def.node, *(function.node_def for function in graph.graph_def.library.function))
        for node in nodes
        if node.op.startswith("Tsps")
    ]
    known = {
        json.dumps(
            [
                node.op,
                len([input_name for input_name in node.input if not input_name.startswith("^")]),
                sorted(_own_attributes(node.attr)),
            ]
        )
        for node in nodes
    }
    return sorted(map(json.loads, known))


def _own_attributes(attributes: Any) -> list[str]:
    return [name for name in attributes if not name.startswith("_")]
