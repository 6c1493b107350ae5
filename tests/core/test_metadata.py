"""Metadata planes of a table, also in sparse-parameter files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from store_support import ones

from tf_sparse_ps import _table, errors, optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.table import Table

pytestmark = pytest.mark.quick

COUNT = MetadataPlane("count", initial=7)
LAST_USED = MetadataPlane("last_used", "int64", initial=-1)
SCALES = MetadataPlane("scales", "float16", elements=3, initial=0.1)
WEIGHT = MetadataPlane("weight", "bfloat16", initial=1.5)
ALL = (COUNT, LAST_USED, SCALES, WEIGHT)


def values(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "count": rng.integers(0, 2**32, (n, 1), np.uint32),
        "last_used": rng.integers(-(2**63), 2**63 - 1, (n, 1), np.int64),
        "scales": rng.normal(size=(n, 3)).astype(np.float16),
        "weight": rng.integers(0, 2**16, (n, 1), np.uint16),
    }


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name, array in a.items():
        assert array.dtype == b[name].dtype
        np.testing.assert_array_equal(array, b[name], name)


def test_new_rows_have_initial_values_and_absent_keys_zeros(create):
    user = create(metadata=ALL)
    user.apply_gradients([1, 2], ones(2))
    metadata = user.metadata([1, 5, 2])
    assert metadata["count"].tolist() == [[7], [0], [7]]
    assert metadata["last_used"].tolist() == [[-1], [0], [-1]]
    np.testing.assert_array_equal(metadata["scales"][2], np.full(3, 0.1, np.float16))
    assert metadata["weight"].tolist() == [[0x3FC0], [0], [0x3FC0]]
    assert_same({name: array[:1] for name, array in metadata.items()}, {plane.name: plane.full(1) for plane in ALL})
    assert create("bare").metadata([1]) == {}


def test_assign_sets_them_and_steps_do_not(create):
    user = create(metadata=ALL)
    assigned = values(3)
    user.assign([1, 2, 3], ones(3), metadata=assigned)
    user.assign([3, 4], ones(2), metadata={"count": np.array([[1], [2]], np.uint32)})
    user.apply_gradients([1, 2, 3, 4], ones(4))
    user.assign([1], ones(1))
    expected = {
        name: np.concatenate([assigned[name], plane.full(1)]) for name, plane in zip(assigned, ALL, strict=True)
    }
    expected["count"][2:] = [[1], [2]]
    assert_same(user.metadata([1, 2, 3, 4]), expected)
    assert user.verify().ok
    user.bind_optimizer(optimizers.Adam(learning_rate=1.0), replace=True)
    assert_same(user.metadata([1, 2, 3, 4]), expected)
    path = user.path
    user.close()
    with Table.open(path) as reopened:
        assert reopened.config.metadata == ALL[:2] + reopened.config.metadata[2:3] + ALL[3:]
        assert reopened.config.metadata[2].initial == np.float16(0.1)
        assert_same(reopened.metadata([1, 2, 3, 4]), expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sum": np.ones((2, 1), np.uint32)}, "no metadata plane 'sum'"),
        ({"key": np.ones((2, 1), np.int64)}, "no metadata plane 'key'"),
        ({"count": np.ones((2, 1), np.int64)}, r"'count' .* array of uint32\[2, 1\].* Received: int64\(2, 1\)"),
        ({"count": np.ones(2, np.uint32)}, r"uint32\[2, 1\]"),
        ({"count": np.ones((3, 1), np.uint32)}, r"uint32\[2, 1\]"),
        ({"scales": np.ones((2, 2), np.float16)}, r"float16\[2, 3\]"),
        ({"weight": np.ones((2, 1), np.float16)}, r"uint16\[2, 1\]"),
        ([1], "dict of arrays"),
        ({1: np.ones((2, 1))}, "dict of arrays"),
    ],
)
def test_values_of_another_type_or_shape_are_refused(create, wrong, message):
    user = create(metadata=ALL)
    user.assign([1, 2], ones(2))
    rows_before = user.entries([1, 2])[1]
    with pytest.raises(errors.InvalidArgumentError, match=message):
        user.assign([1, 2], 3 * ones(2), metadata=wrong)
    np.testing.assert_array_equal(user.entries([1, 2])[1], rows_before)
    assert_same(user.metadata([1, 2]), {plane.name: plane.full(2) for plane in ALL})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "Count"}, "a-z"),
        ({"name": "x" * 32}, "a-z"),
        ({"type": "float64"}, "type"),
        ({"elements": 0}, "elements"),
        ({"elements": 65537}, "elements"),
        ({"elements": 1.0}, "elements"),
        ({"initial": -1}, "uint32"),
        ({"initial": 2**32}, "uint32"),
        ({"initial": 0.5}, "uint32"),
        ({"type": "int64", "initial": 2**63}, "int64"),
        ({"type": "float16", "initial": 1e6}, "float16"),
        ({"type": "float32", "initial": 1e38 * 9}, "float32"),
        ({"type": "float32", "initial": float("nan")}, "finite"),
        ({"type": "float32", "initial": 10**400}, "finite"),
        ({"type": "bfloat16", "initial": 0.1}, "bfloat16"),
        ({"type": "bfloat16", "initial": 1 + 1e-9}, "bfloat16"),
        ({"initial": True}, "uint32"),
    ],
)
def test_planes_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MetadataPlane(**{"name": "count", **fields})


def test_a_tables_planes_are_declared_and_compared(create):
    for wrong in (
        [COUNT],
        (COUNT, "x"),
        (COUNT, MetadataPlane("count", "int64")),
        (MetadataPlane("key"),),
        (MetadataPlane("embedding"),),
    ):
        with pytest.raises(ValueError, match="metadata"):
            TableConfig("t", 4, metadata=wrong)
    config = TableConfig("user", 4, metadata=ALL, seed=1)
    again = TableConfig.from_config(config.get_config())
    assert again.facts() == config.facts() != TableConfig("user", 4, seed=1).facts()
    user = create(metadata=(COUNT,))
    user.close()
    for wrong in ((), (LAST_USED,), (MetadataPlane("count", initial=8),), (COUNT, LAST_USED)):
        with pytest.raises(errors.StateError, match="metadata"):
            Table.open(user.path, config=TableConfig("user", 4, metadata=wrong))
    Table.open(user.path, config=TableConfig("user", 4, metadata=(COUNT,))).close()
    with pytest.raises(errors.InvalidArgumentError, match="at most 9 metadata planes"):
        create("many", metadata=tuple(MetadataPlane(f"m{i}") for i in range(10)))


def test_a_name_of_a_slot_is_free(create, folder):
    user = create(optimizer=optimizers.Adagrad(learning_rate=1.0), metadata=(MetadataPlane("accumulator"),))
    user.assign([1], ones(1), [2 * ones(1)], {"accumulator": np.array([[3]], np.uint32)})
    user.export_parameter_file(f"{folder}/file")
    other_table = create("other", optimizer=None, metadata=(MetadataPlane("accumulator"),))
    other_table.load_parameter_file(f"{folder}/file")
    assert other_table.entries([1])[2][0].tolist() == [[2] * 4]
    assert other_table.metadata([1])["accumulator"].tolist() == [[3]]


# --- files ---


@pytest.fixture
def filled(create):
    user = create(optimizer=optimizers.Adagrad(learning_rate=0.5), metadata=ALL)
    keys = np.random.default_rng(1).permutation(100_000)[:10_000]
    user.assign(keys, np.random.default_rng(2).normal(size=(10_000, 4)).astype(np.float32), metadata=values(10_000))
    user.apply_gradients(keys[:100], ones(100))
    return user


def test_a_file_carries_all_planes(filled, create, folder):
    assert filled.export_parameter_file(f"{folder}/file") == 10_000
    other_table = create("other", optimizer=None, metadata=ALL[::-1])  # planes may have any order
    assert other_table.load_parameter_file(f"{folder}/file") == 10_000
    keys = filled.keys()
    metadata = other_table.metadata(keys)
    assert_same(filled.metadata(keys), {name: metadata[name] for name in filled.metadata([])})
    for x, y in zip(filled.entries(keys), other_table.entries(keys), strict=True):
        np.testing.assert_array_equal(x, y)


def test_save_and_restore_with_metadata(filled, folder):
    filled.save(f"{folder}/saved")
    keys, before = filled.keys(), filled.metadata(filled.keys())
    filled.assign(keys[:50], ones(50), metadata=values(50, seed=9))
    filled.erase(keys[50:60])
    filled.restore(f"{folder}/saved")
    assert_same(filled.metadata(keys), before)


@pytest.mark.parametrize(
    ("planes", "message"),
    [
        ((), "'last_used' of int64.1., and table .* has no such plane"),
        ((COUNT, LAST_USED, SCALES), "'weight' of bfloat16.1., and table .* has no such plane"),
        (
            (COUNT, LAST_USED, MetadataPlane("scales", "float16"), WEIGHT),
            "'scales' of float16.3., and table .* float16.1.",
        ),
        (
            (COUNT, MetadataPlane("last_used", "uint32"), SCALES, WEIGHT),
            "'last_used' of int64.1., and table .* uint32.1.",
        ),
    ],
)
def test_a_plane_that_the_table_does_not_have_is_refused_by_name(filled, create, folder, planes, message):
    filled.export_parameter_file(f"{folder}/file")
    bare = create("bare", optimizer=None, metadata=planes)
    with pytest.raises(errors.StateError, match="slots=False") as refused:
        bare.load_parameter_file(f"{folder}/file")
    refused.match(message if planes else "'count' of uint32.1., and table .* has no such plane")
    assert len(bare) == 0
    assert bare.stats()["optimizer"]["kind"] == "none"
    bare.load_parameter_file(f"{folder}/file", slots=False)
    np.testing.assert_array_equal(bare.lookup(filled.keys()), filled.lookup(filled.keys()))
    assert_same(bare.metadata([filled.keys()[0]]), {plane.name: plane.full(1) for plane in planes})


def test_a_plane_that_the_file_does_not_have_gets_its_initial_value(create, folder):
    bare = create("bare", metadata=(COUNT,))
    bare.assign([1, 2], ones(2), metadata={"count": np.array([[1], [2]], np.uint32)})
    bare.export_parameter_file(f"{folder}/file")
    user = create(metadata=ALL)
    user.assign([2, 3], ones(2), metadata=values(2))
    user.load_parameter_file(f"{folder}/file")
    assert user.metadata([1, 2])["count"].tolist() == [[1], [2]]
    assert user.metadata([1, 2])["last_used"].tolist() == [[-1], [-1]]
    assert user.metadata([3])["last_used"].tolist() == values(2)["last_used"][1:].tolist()


def test_rows_alone_leave_metadata_as_it_is(create, folder):
    user, other_table = create(metadata=ALL), create("other", metadata=ALL)
    for table, seed in ((user, 1), (other_table, 2)):
        table.assign([1, 2], seed * ones(2), metadata=values(2, seed))
    user.export_parameter_file(f"{folder}/all")
    user.export_parameter_file(f"{folder}/rows", slots=False)
    sizes = [Path(folder, name).stat().st_size for name in ("all", "rows")]
    assert sizes == [128 + 64 * 5 + 2 * 48 + 8, 128 + 64 + 2 * 24 + 8]
    other_table.load_parameter_file(f"{folder}/all", slots=False)
    assert_same(other_table.metadata([1, 2]), values(2, 2))
    np.testing.assert_array_equal(other_table.lookup([1, 2]), ones(2))


def test_the_writer_wants_all_planes(folder, create):
    writer = _table.ParameterFileWriter(
        path=f"{folder}/file",
        dim=4,
        n_rows=1,
        key_limit=0,
        step=0,
        optimizer="rowwise_adagrad",
        slot_init=[0.0],
        initializer=create().core_initializer(),
        metadata=[COUNT.for_core()],
    )
    key, count, slot = np.array([1]), {"count": np.array([[1]], np.uint32)}, np.ones((1, 1), np.float32)
    with pytest.raises(errors.InvalidArgumentError, match="expected 1 slots"):
        writer.append(key, ones(1), [], count)
    with pytest.raises(errors.InvalidArgumentError, match=r"accumulator must have the shape \[1, 1\]"):
        writer.append(key, ones(1), [ones(1)], count)
    with pytest.raises(errors.InvalidArgumentError, match=r"expected 1 metadata planes\. Received: 0"):
        writer.append(key, ones(1), [slot], {})
    with pytest.raises(errors.InvalidArgumentError, match="no metadata plane 'sum'"):
        writer.append(key, ones(1), [slot], {"sum": count["count"]})
    writer.append(key, ones(1), [slot], count)
    writer.finish()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def file_of_version_1(keys: np.ndarray, rows: np.ndarray, slot: np.ndarray) -> bytes:
    """Returns a file of format version 1, with Adagrad's slot."""
    n, dim = rows.shape
    records = b"".join(
        struct.pack(f"<q{2 * dim}f", key, *row, *values) for key, row, values in zip(keys, rows, slot, strict=True)
    )
    assert len(records) == n * (8 + 8 * dim)
    header = b"\xf4TSPS\r\n\x1a" + struct.pack("<4I2Q", 1, 128, dim, 4096, n, 5)
    header += struct.pack("<2I4fI2fI", 2, 1, 0.25, 0, 0, 0, 2, -0.05, 0.05, 0)
    header += struct.pack("<3Qq3I", 11, 3, 128 + len(records) + 8, 0, 0, 0, 0)
    assert len(header) == 124
    return header + struct.pack("<I", crc32c(header)) + records + struct.pack("<2I", crc32c(records), 0)


def test_a_file_of_version_1_is_loaded(create, folder):
    keys = np.array([5, -9, 2**62])
    rows, slot = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(12, 24, dtype=np.float32).reshape(3, 4)
    path = Path(folder, "old.tfsps")
    path.write_bytes(file_of_version_1(keys, rows, slot))
    user = create(optimizer=None, metadata=(COUNT,))
    user.assign([5], ones(1), metadata={"count": np.array([[1]], np.uint32)})
    assert user.load_parameter_file(path) == 3
    assert user.stats()["optimizer"] == {"kind": "adagrad", "slot_init": (0.25,)}
    _, stored, (stored_slot,) = user.entries(keys)
    np.testing.assert_array_equal(stored, rows)
    np.testing.assert_array_equal(stored_slot, slot)
    assert user.metadata(keys)["count"].tolist() == [[7]] * 3
    user.export_parameter_file(path)
    assert struct.unpack_from("<I", path.read_bytes(), 8) == (3,)
    old = bytearray(file_of_version_1(keys, rows, slot))
    old[150] ^= 1
    path.write_bytes(old)
    with pytest.raises(errors.DamagedFileError, match="block 0"):
        user.load_parameter_file(path)
