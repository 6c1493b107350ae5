"""Files of every format that was ever written are read as they were written, or refused with a remedy.

`write.py` has written the files, and records their contents. The files are in tests/formats/data, and docs/format.md
lists them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import format_support
import numpy as np
import pytest
from format_support import Arrays

import tf_sparse_ps as tsps
from tf_sparse_ps import _table, checked_json, cli
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import array_file, manifest, stored_checkpoint, tables
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.config import MetadataPlane, TableConfig
from tf_sparse_ps.errors import DamagedFileError, StateError, UnsupportedError
from tf_sparse_ps.schedules.bucket_plan import Plan
from tf_sparse_ps.table import Table

PROGRAM = "tests/formats/write.py"
KERAS = "keras3" if _keras.IS_KERAS_3 else "keras2"
MOST_BYTES = 1_000_000  # the largest size of the corpus
READ_BY_KERAS_ALONE = ("keras-file", "tf-checkpoint")
LATER_VERSION = "with the version that wrote it, or with a later one"
REMEDY_OF_GROUPS = (
    "Start a new group, and restore a checkpoint or load sparse-parameter files into it",
    "open the tables with the version of tf_sparse_ps that wrote them, and save each with Table.save",
)


@dataclasses.dataclass(frozen=True)
class Format:
    """One folder of tests/formats/data."""

    folder: Path
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def kind(self) -> str:
        return format_support.kind_of(self.name)

    def entries(self) -> list[str]:
        return sorted(archive.name.removesuffix(".tar.xz") for archive in self.folder.glob("*.tar.xz"))

    def unpack(self, entry: str, scratch: Path) -> Path:
        """Unpacks an entry to a private folder, and writes the new folder of rows on disk into tiered tables."""
        folder = format_support.unpack(self.folder / f"{entry}.tar.xz", scratch / f"{self.name}-{entry}")
        if self.kind == "group":
            format_support.relocate(folder / "group", folder / "disk")
        return folder

    def expected(self, entry: str) -> Arrays:
        """Returns the arrays that a reader of the entry must find."""
        with np.load(self.folder / format_support.EXPECTED) as arrays:
            return {
                name.removeprefix(f"{entry}/"): arrays[name] for name in arrays.files if name.startswith(f"{entry}/")
            }


def _formats() -> list[Format]:
    folders = sorted(folder for folder in format_support.DATA.iterdir() if folder.is_dir())
    return [Format(folder, json.loads((folder / format_support.ABOUT).read_text())) for folder in folders]


FORMATS = _formats()


def entries(*kinds: str, read: bool = True) -> Any:
    """Parametrizes a test with the entries of some kinds of formats that are read, or refused."""
    chosen = [
        pytest.param(stored_format, entry, id=f"{stored_format.name}-{entry}")
        for stored_format in FORMATS
        if stored_format.kind in kinds and stored_format.about["read"] is read
        for entry in stored_format.entries()
    ]
    assert chosen, kinds
    return pytest.mark.parametrize(("stored_format", "entry"), chosen)


def must_equal(actual: Arrays, expected: Arrays) -> None:
    """Compares bit for bit: names, types, shapes and bytes."""
    assert sorted(actual) == sorted(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), name
        assert actual[name].tobytes() == array.tobytes(), f"{name} differs"


def table_names(expected: Arrays) -> list[str]:
    """Returns the names of the tables, or files, to which arrays belong."""
    return sorted({name.rpartition("/")[0] for name in expected if "/" in name})


def one_of(expected: Arrays, table: str) -> Arrays:
    """Returns the arrays of one table."""
    return {name.rpartition("/")[2]: array for name, array in expected.items() if name.rpartition("/")[0] == table}


def of_table(table: Table) -> Arrays:
    """Returns all contents of a table, by ascending keys."""
    keys = np.sort(table.keys())
    present, rows, slots = table.entries(keys)
    assert present.all()
    return as_arrays(keys, rows, slots, table.metadata(keys), table.step)


def as_arrays(keys: Any, rows: Any, slots: Any, metadata: Any, step: int) -> Arrays:
    order = np.argsort(keys, kind="stable")
    arrays = {"keys": keys, "rows": rows, **{f"slot_{k}": slot for k, slot in enumerate(slots)}}
    arrays |= {f"metadata_{name}": array for name, array in metadata.items()}
    return {name: np.ascontiguousarray(array[order]) for name, array in arrays.items()} | {
        "step": np.array(step, np.int64)
    }


def needs_keras(stored_format: Format) -> None:
    """Skips the test if the other major version of Keras has written the files.

    The two versions share no file format: neither reads the other's `.keras` files, and dense variables of a
    `tf.train.Checkpoint` have other names.
    """
    if stored_format.kind in READ_BY_KERAS_ALONE and f"-{KERAS}" not in stored_format.name:
        pytest.skip(f"{stored_format.name} was written under the other Keras, whose files this one cannot read")


def must_name(message: str, *parts: str) -> None:
    for part in parts:
        assert part in message, (part, message)


# --- Formats that are read. ---


@entries("group")
def test_a_group_has_the_rows_that_were_written(stored_format: Format, entry: str, scratch: Path) -> None:
    group, expected = stored_format.unpack(entry, scratch) / "group", stored_format.expected(entry)
    assert sorted(table_names(expected)) == sorted(path.name for path in group.iterdir() if path.is_dir())
    for name in table_names(expected):
        with Table.open(group / name) as table:
            must_equal(of_table(table), one_of(expected, name))
            assert table.verify().ok, table.verify()
    step = int(expected[f"{table_names(expected)[0]}/step"])
    for name in table_names(expected):  # a writer continues to write them
        with Table.open(group / name, "r+") as table:
            keys = table.keys()[:2]
            rows = np.full((2, table.config.dim), 0.5, np.float32)
            table.assign(keys, rows)
            np.testing.assert_array_equal(table.lookup(keys), rows)
            assert table.step == step


@entries("parameter-file")
def test_a_parameter_file_has_the_rows_that_were_written(stored_format: Format, entry: str, scratch: Path) -> None:
    folder, expected = stored_format.unpack(entry, scratch), stored_format.expected(entry)
    assert table_names(expected) == sorted(path.stem for path in folder.iterdir())
    for name in table_names(expected):
        path, expected_arrays = folder / f"{name}.tfsps", one_of(expected, name)
        reader = _table.ParameterFileReader(os.fspath(path))
        blocks = [reader.read_block(block, True) for block in range(reader.blocks())]
        info = reader.info()
        if blocks:
            (keys, rows, slots, metadata) = blocks[0]
            order = np.argsort(expected_arrays["keys"], kind="stable")
            expected_arrays = {
                part: array if part == "step" else array[order] for part, array in expected_arrays.items()
            }
            must_equal(as_arrays(keys, rows, slots, metadata, info["step"]), expected_arrays)
        assert info["n_rows"] == len(expected_arrays["keys"])
        assert info["step"] == expected_arrays["step"]
        if info["nodes"]:
            assert (info["node"], info["nodes"]) == (1, 2)
            continue
        config = TableConfig(
            name,
            info["dim"],
            key_limit=info["key_limit"] or None,
            dtype=info["dtype"],
            metadata=tuple(map(MetadataPlane.from_core, info["metadata"])),
        )
        with Table.create(scratch / "loaded" / name, config) as table:
            assert table.load_parameter_file(path, progress=False) == info["n_rows"]
            must_equal(of_table(table), {**expected_arrays, "step": np.array(0, np.int64)})


@entries("checkpoint")
def test_a_checkpoint_has_the_rows_that_were_written(stored_format: Format, entry: str, scratch: Path) -> None:
    folder, expected = stored_format.unpack(entry, scratch), stored_format.expected(entry)
    assert cli.main(["checkpoint", "verify", os.fspath(folder)]) == 0
    names = {name.split("/")[0] for name in expected}
    assert names == {path.name for path in folder.iterdir()}
    for name in names:
        checked = stored_checkpoint.check(folder / name)
        for number in range(len(checked.manifest.tables)):
            stored = StoredRows(checked, number)
            blocks = list(stored.blocks())
            arrays_found = as_arrays(
                np.concatenate([block.keys for block in blocks]),
                np.concatenate([block.rows for block in blocks]),
                [np.concatenate(slot) for slot in zip(*(block.slots for block in blocks), strict=True)],
                {plane: np.concatenate([block.metadata[plane] for block in blocks]) for plane in blocks[0].metadata},
                stored.info["step"],
            )
            must_equal(arrays_found, one_of(expected, f"{name}/table_{number}"))
        _, arrays = array_file.read(folder / name / manifest.VARIABLES)
        for number, array in arrays:
            if f"{name}/variable_{number}" in expected:
                np.testing.assert_array_equal(array, expected[f"{name}/variable_{number}"])


@pytest.mark.skipif(not _keras.IS_KERAS_3, reason="the checkpoints' dense variables are those of Keras 3")
@entries("checkpoint")
def test_a_checkpoint_is_restored(stored_format: Format, entry: str, scratch: Path) -> None:
    if entry != "job":
        pytest.skip("its dense variables are of no model")
    from write import SEED, dense_weights, make_checkpointed_model

    folder, expected = stored_format.unpack(entry, scratch), stored_format.expected(entry)
    newest = max(name.split("/")[0] for name in expected)
    _keras.keras.utils.set_random_seed(SEED)  # keys without a row then have the same initial values
    model = make_checkpointed_model()
    checkpointer = tsps.Checkpointer(folder, model, model.optimizer, background=False)
    assert checkpointer.restore() == os.fspath(folder / newest)
    for number, binding in enumerate(tables.of(model)):
        must_equal(of_table(binding.reader()), one_of(expected, f"{newest}/table_{number}"))
    for number, array in enumerate(dense_weights(model)):
        np.testing.assert_array_equal(array, expected[f"{newest}/dense_{number}"])
    model.train_on_batch(np.array([[1, 2]]), np.ones((1, 1)))
    checkpointer.save()


# Keys that the first commits with a version did not yet write.
ADDED_LATER = {2: "rows_checksum", 3: "node"}


@entries("checkpoint")
def test_a_manifest_without_a_key_that_its_version_got_later_is_read(
    stored_format: Format, entry: str, scratch: Path
) -> None:
    folder = stored_format.unpack(entry, scratch)
    path = max(folder.iterdir()) / manifest.NAME
    content = json.loads(path.read_text())["content"]
    before = stored_checkpoint.look(path.parent).manifest
    added = ADDED_LATER.get(content["version"], "")
    path.write_bytes(checked_json.encode(without(content, added)))
    after = stored_checkpoint.look(path.parent).manifest
    assert [part.files for part in after.all_parts] == [part.files for part in before.all_parts]
    assert after.node is None
    assert len(list(StoredRows(stored_checkpoint.check(path.parent), 0).blocks())) > 0


def without(content: Any, name: str) -> Any:
    """Returns a JSON value without all occurrences of a key."""
    if isinstance(content, dict):
        return {key: without(value, name) for key, value in content.items() if key != name}
    return [without(value, name) for value in content] if isinstance(content, list) else content


@entries("keras-file")
def test_a_keras_file_has_the_rows_that_were_written(stored_format: Format, entry: str, scratch: Path) -> None:
    needs_keras(stored_format)
    model = _keras.keras.models.load_model(stored_format.unpack(entry, scratch) / "model.keras")
    must_be_the_model(model, stored_format.expected(entry))


@entries("tf-checkpoint")
@pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")
def test_a_tensorflow_checkpoint_has_the_rows_that_were_written(
    stored_format: Format, entry: str, scratch: Path
) -> None:
    needs_keras(stored_format)
    import tensorflow as tf
    from write import IDS, SEED, make_model

    expected, path = stored_format.expected(entry), stored_format.unpack(entry, scratch) / "model"
    _keras.keras.utils.set_random_seed(SEED)
    model = make_model(stored_format.about.get("rows_of_second_table", "bfloat16"))
    model.train_on_batch(IDS, np.ones((len(IDS), 25), np.float32))
    tf.train.Checkpoint(model=model).read(os.fspath(path)).expect_partial()
    must_be_the_model(model, expected, untrained=False)


def must_be_the_model(model: Any, expected: Arrays, *, untrained: bool = True) -> None:
    """Compares tables and answers. `untrained`: whether to compare answers for keys without a row, too."""
    bindings = tables.of(model)
    assert len(bindings) == len(table_names(expected))
    for number, binding in enumerate(bindings):
        # The step belongs to the job, and a file of Keras does not set it.
        expected_arrays = one_of(expected, f"table_{number}") | {"step": np.array(binding.reader().step, np.int64)}
        must_equal(of_table(binding.reader()), expected_arrays)
    n = len(expected["ids"]) if untrained else 2
    np.testing.assert_array_equal(model.predict(expected["ids"][:n], verbose=0), expected["output"][:n])


@entries("saved-model")
def test_a_saved_model_answers_as_it_did(stored_format: Format, entry: str, scratch: Path) -> None:
    import tensorflow as tf

    expected = stored_format.expected(entry)
    model = tf.saved_model.load(os.fspath(stored_format.unpack(entry, scratch) / "model"))
    (output,) = model.signatures["serving_default"](tf.constant(expected["ids"])).values()
    np.testing.assert_array_equal(output, expected["output"])


@entries("bucket-plan")
def test_a_bucket_plan_is_read(stored_format: Format, entry: str, scratch: Path) -> None:
    plan, expected = Plan.load(stored_format.unpack(entry, scratch) / "plan.json"), stored_format.expected(entry)
    assert [member for bucket in plan.buckets for member in bucket] == expected["buckets"].tolist()
    assert [len(bucket) for bucket in plan.buckets] == expected["bucket_sizes"].tolist()
    assert list(plan.owners) == expected["owners"].tolist()
    assert list(plan.ready_s) == expected["ready_s"].tolist()
    numbers = [plan.world_size, plan.latency_s, plan.seconds_per_byte, plan.processor_share]
    assert [*numbers, plan.steps, plan.profiles, plan.erratic] == expected["numbers"].tolist()
    assert [(gradient.name, gradient.shape, gradient.dtype) for gradient in plan.gradients] == [
        ("a", (2, 3), "float32"),
        ("b", (), "float32"),
        ("c", (5,), "bfloat16"),
    ]


def test_a_bucket_plan_of_the_first_commits_is_read(scratch: Path) -> None:
    path = current("bucket-plan").unpack("plan", scratch) / "plan.json"
    values = json.loads(path.read_text())
    assert values.pop("processor_share") == 0.5
    path.write_text(json.dumps(values))
    assert Plan.load(path).processor_share == 0.0


# --- Formats that are refused. ---


def current(kind: str) -> Format:
    """Returns the format of a kind that this version writes, under the Keras of this environment."""
    written_formats = [
        stored_format
        for stored_format in FORMATS
        if stored_format.kind == kind and (stored_format.folder / format_support.LAYOUT).exists()
    ]
    return next(
        stored_format
        for stored_format in reversed(written_formats)
        if "keras" not in stored_format.name or stored_format.name.endswith(KERAS)
    )


def format_of_groups() -> tuple[int, int]:
    """Returns the version and the layout hash of the groups that this version reads."""
    _, version, digits = current("group").name.split("-")
    return int(version), int(digits, 16)


@entries("group", read=False)
def test_a_group_of_another_format_is_refused(stored_format: Format, entry: str, scratch: Path) -> None:
    group = stored_format.unpack(entry, scratch) / "group"
    version, layout = format_support.group_layout(group)
    assert stored_format.name == f"group-{version}-{layout:08x}"
    own_version, own_layout = format_of_groups()
    table = next(path.name for path in sorted(group.iterdir()) if path.is_dir())
    for mode in ("r", "r+"):
        with pytest.raises(DamagedFileError) as error:
            Table.open(group / table, mode)  # type: ignore[arg-type]
        must_name(
            str(error.value),
            f"{group}/group has format version {version} (layout {layout})",
            f"reads format version {own_version} (layout {own_layout})",
            *REMEDY_OF_GROUPS,
        )


# Files with their own version: its offset, the offset of the header's checksum, and the message's texts about both.
VERSIONED_FILES = {
    "tables/group/group": (8, 124, "format version 77 (layout ", "reads format version 5 (layout "),
    "tables/group/user/config": (8, 252, "format version 77 (layout ", "reads format version 5 (layout "),
    "tables/group/user/planes.*": (8, 1060, "format version 77 (layout ", "reads format version 5 (layout "),
    "tiered/group/large/records.config": (8, 4028, "records.config version 77", "reads version 1"),
    "tiered/group/large/records.*/records.directory": (8, 28, "record index version 77", "reads version 2"),
    "tiered/disk/group/large/*/records.0": (8, 76, "record log version 77", "reads version 2"),
}


@pytest.mark.parametrize("place", VERSIONED_FILES)
def test_a_file_of_a_group_with_a_later_version_is_refused(place: str, scratch: Path) -> None:
    entry, _, rest = place.partition("/")
    folder = current("group").unpack(entry, scratch)
    offset, crc_at, found_text, read_text = VERSIONED_FILES[place]
    path = max(folder.glob(rest))
    format_support.rewrite(path, {offset: struct.pack("<I", 77)}, crc_at)
    table = "user" if entry == "tables" else "large"
    with pytest.raises(DamagedFileError) as error, Table.open(folder / "group" / table) as opened:
        of_table(opened)
    must_name(str(error.value), os.fspath(path), found_text, read_text, *REMEDY_OF_GROUPS)


def test_a_group_of_another_layout_is_refused(scratch: Path) -> None:
    folder = current("group").unpack("tables", scratch)
    format_support.rewrite(folder / "group/group", {12: struct.pack("<I", 123)}, 124)
    with pytest.raises(DamagedFileError) as error:
        Table.open(folder / "group/user")
    must_name(str(error.value), "format version 5 (layout 123)", f"(layout {format_of_groups()[1]})", *REMEDY_OF_GROUPS)


def test_a_parameter_file_of_a_later_version_is_refused(scratch: Path) -> None:
    path = current("parameter-file").unpack("files", scratch) / "adam.tfsps"
    format_support.rewrite(path, {8: struct.pack("<I", 77)}, 124)
    with pytest.raises(StateError) as error:
        _table.ParameterFileReader(os.fspath(path))
    must_name(str(error.value), os.fspath(path), "format version 77", "reads format versions 1 to 3", LATER_VERSION)


def test_a_checkpoint_of_a_later_version_is_refused(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = current("checkpoint").unpack("job", scratch)
    newest = max(folder.iterdir())
    path = newest / manifest.NAME
    content = json.loads(path.read_text())["content"]
    path.write_bytes(checked_json.encode({**content, "version": 77}))
    with pytest.raises(UnsupportedError) as error:
        stored_checkpoint.check(newest)
    must_name(str(error.value), os.fspath(path), "has version 77", "reads versions 1 to 4", LATER_VERSION)
    assert cli.main(["checkpoint", "list", os.fspath(folder)]) == 1
    assert LATER_VERSION in capsys.readouterr().out


def test_a_keras_file_with_rows_of_a_later_version_is_refused(scratch: Path) -> None:
    import h5py

    path = current("keras-file").unpack("model", scratch) / "model.keras"
    members = scratch / "members"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(members)
    with h5py.File(members / "model.weights.h5", "r+") as file:
        changed = [array for name, array in format_support.datasets(file) if name.endswith("meta")]
        for array in changed:
            text = bytes(np.asarray(array)).replace(b'"version": 2', b'"version": 7')
            array[...] = np.frombuffer(text, np.uint8)
    assert len(changed) == 4
    with zipfile.ZipFile(path, "w") as archive:
        for member in members.iterdir():
            archive.write(member, member.name)
    with pytest.raises(ValueError, match="cannot load saved rows") as error:  # Keras 3 adds its own text around ours
        _keras.keras.models.load_model(path)
    must_name(str(error.value), "saved rows of version 7", "reads versions 1 to 2", LATER_VERSION)


def test_a_bucket_plan_of_a_later_version_is_refused(scratch: Path) -> None:
    path = current("bucket-plan").unpack("plan", scratch) / "plan.json"
    path.write_text(path.read_text().replace("bucket plan 1", "bucket plan 7"))
    with pytest.raises(ValueError, match="cannot be used") as error:
        Plan.load(path)
    must_name(str(error.value), os.fspath(path), "'tf_sparse_ps bucket plan 7'", "reads 'tf_sparse_ps bucket plan 1'")
    must_name(str(error.value), "Leave the plan out")


# --- Controls: damage is refused, and a difference is noticed. ---


def flip(path: Path, offset: int) -> None:
    """Changes one byte of a file. A negative `offset` counts from the end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["group", "user/config", "user/planes.*"])
def test_a_damaged_header_of_a_group_is_refused(file: str, scratch: Path) -> None:
    folder = current("group").unpack("tables", scratch)
    (path,) = [max((folder / "group").glob(file))]
    flip(path, 20)
    with pytest.raises(DamagedFileError, match="damaged"):
        Table.open(folder / "group/user")


def test_a_damaged_record_on_disk_is_refused(scratch: Path) -> None:
    folder = current("group").unpack("tiered", scratch)
    (path,) = (folder / "disk").rglob("records.0")
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 64):
        data[at : at + 8] = bytes(byte ^ 0x10 for byte in data[at : at + 8])
    path.write_bytes(data)
    with Table.open(folder / "group/large") as table, pytest.raises(DamagedFileError):
        of_table(table)


@entries("parameter-file")
def test_a_damaged_parameter_file_is_refused(stored_format: Format, entry: str, scratch: Path) -> None:
    path = stored_format.unpack(entry, scratch) / "adam.tfsps"
    flip(path, -40)
    reader = _table.ParameterFileReader(os.fspath(path))
    with pytest.raises(DamagedFileError, match=r"adam\.tfsps"):
        reader.read_block(0, True)


@entries("checkpoint")
def test_a_damaged_checkpoint_is_refused(stored_format: Format, entry: str, scratch: Path) -> None:
    folder = stored_format.unpack(entry, scratch)
    newest = max(folder.iterdir())
    flip(min(newest.glob("*.tfsps")), -40)
    with pytest.raises(DamagedFileError, match="is damaged: its checksum is"):
        stored_checkpoint.check(newest)
    assert cli.main(["checkpoint", "verify", os.fspath(folder)]) == 1


@entries("version")
def test_served_versions_are_read(stored_format: Format, entry: str, scratch: Path) -> None:
    import tensorflow as tf

    folder, expected = stored_format.unpack(entry, scratch), stored_format.expected(entry)
    model = tf.saved_model.load(os.fspath(folder / "2"))
    (output,) = model.signatures["serving_default"](tf.constant(expected["ids"])).values()
    np.testing.assert_array_equal(output, expected["output"])
    for name in table_names(expected):
        table = tsps.ServingTable.open(folder, name)
        arrays = one_of(expected, name)
        assert table.contains(arrays["keys"]).all()
        np.testing.assert_array_equal(table.lookup(arrays["keys"]), arrays["rows"])


@entries("saved-model")
def test_a_damaged_asset_of_a_saved_model_is_refused(
    stored_format: Format, entry: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    monkeypatch.setenv("TFSPS_VERIFY", "open")

    folder, expected = stored_format.unpack(entry, scratch) / "model", stored_format.expected(entry)
    flip(min((folder / "assets").iterdir()), -20)
    model = tf.saved_model.load(os.fspath(folder))
    with pytest.raises(tf.errors.DataLossError, match="damaged"):
        model.signatures["serving_default"](tf.constant(expected["ids"]))


def test_a_damaged_bucket_plan_is_refused(scratch: Path) -> None:
    path = current("bucket-plan").unpack("plan", scratch) / "plan.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match="cannot be used"):
        Plan.load(path)


def test_the_comparison_notices_one_wrong_byte(scratch: Path) -> None:
    stored_format = current("group")
    folder, expected = stored_format.unpack("tables", scratch), one_of(stored_format.expected("tables"), "user")
    (path,) = (folder / "group/user").glob("plane.embedding.*")
    flip(path, 9)
    with Table.open(folder / "group/user") as table, pytest.raises(AssertionError, match="rows differs"):
        must_equal(of_table(table), expected)


# --- Formats that are written now. ---


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all formats that this version writes, which were written now."""
    import write

    folder = tmp_path_factory.mktemp("written")
    for name, written_entries in write.formats().items():
        write.write_format(name, written_entries, folder / name)
    return folder


def test_what_is_written_now_is_what_the_newest_folder_has(written: Path) -> None:
    problems = differences(written)
    assert not problems, "\n".join(problems)


def differences(written: Path) -> list[str]:
    """Describes the differences between formats that were just written and the corpus."""
    problems = []
    for folder in sorted(written.iterdir()):
        old, how = format_support.DATA / folder.name, f"raise the number of the format and run {PROGRAM}"
        if not old.is_dir():
            problems.append(
                f"This version writes {folder.name}, of which tests/formats/data has no files. If the number of the "
                f"format was raised, run {PROGRAM} and commit the folder. If it was not, the layout has changed under "
                f"the old number: {how}."
            )
            continue
        layouts_written, layouts_stored = (
            json.loads((format_folder / format_support.LAYOUT).read_text()) for format_folder in (folder, old)
        )
        for entry in sorted({*layouts_written, *layouts_stored}):
            files_written, files_stored = layouts_written.get(entry, {}), layouts_stored.get(entry, {})
            files = sorted(
                name for name in {*files_written, *files_stored} if files_written.get(name) != files_stored.get(name)
            )
            if files:
                problems.append(
                    f"This version writes entry {entry} of {folder.name} differently than the version that wrote "
                    f"tests/formats/data/{folder.name}. These parts differ: {', '.join(files)}. If readers of the old "
                    f"files cannot read the new ones, or the other way round, {how}. If both can, rename the old "
                    f"folder to {folder.name}-by-<commit>, delete its {format_support.LAYOUT}, and run {PROGRAM}: the "
                    "corpus then keeps both."
                )
    return problems


def test_a_format_that_has_changed_silently_is_named(written: Path, tmp_path: Path) -> None:
    copy = tmp_path / "written"
    shutil.copytree(written, copy)
    changed = copy / current("parameter-file").name / format_support.LAYOUT
    layout = json.loads(changed.read_text())
    layout["files"]["adam.tfsps"] = "another checksum"
    changed.write_text(json.dumps(layout))
    (copy / current("group").name).rename(copy / "group-2-00000001")
    of_group, of_file = differences(copy)
    must_name(of_group, "group-2-00000001", "raise the number of the format and run tests/formats/write.py")
    must_name(
        of_file, "parameter-file-3", "adam.tfsps", "raise the number of the format and run tests/formats/write.py"
    )


def test_the_corpus_is_small() -> None:
    sizes = {path: path.stat().st_size for path in format_support.DATA.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < MOST_BYTES, max(sizes, key=lambda path: sizes[path])


def test_the_document_has_the_layout_hash_of_groups() -> None:
    newest = max(path.name for path in format_support.DATA.glob("group-*"))
    number, layout_hash = newest.split("-")[1:]
    text = (format_support.DATA.parents[2] / "docs" / "format.md").read_text()
    assert f"`{layout_hash}` in `group`" in text
    assert f"| group, record log | {number}, " in text
