"""Tables that are partly on disk, without TensorFlow; `test_table_model.py` runs random operations on one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from store_support import ones, run_child, start_child

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import MetadataPlane, TableConfig, Tiered
from tf_sparse_ps.errors import AccessError, DamagedFileError, InvalidArgumentError, NoSpaceError, TableExistsError
from tf_sparse_ps.table import Table

ROWS = 4000
MEMORY = 1_770_000  # 1.5 MiB are buffers, and 96,000 bytes the places of 8,000 rows: the rest holds some 700 rows


def tiered(folder: str, **kwargs: object) -> dict[str, object]:
    return {"storage": Tiered(f"{folder}/disk", MEMORY), "max_rows": 8000, **kwargs}


def test_sizes() -> None:
    assert Tiered("/d", "4GiB").memory == 4 * 2**30
    assert Tiered("/d", " 1.5 mib").memory == 3 * 2**19
    assert Tiered("/d", "500 MB").memory == 500_000_000
    assert Tiered("/d", 7).memory == 7
    assert os.path.isabs(Tiered("d", 7).path)
    for wrong in ("", "4 GiBs", "-1", "many", 0, -5, 2.5, True, None, "0.1"):
        with pytest.raises(ValueError, match="`memory` must be a number of bytes"):
            Tiered("/d", wrong)
    for wrong in ("", None, 5):
        with pytest.raises(ValueError, match="`path` must be a directory"):
            Tiered(wrong, 7)
    with pytest.raises(ValueError, match=r'`storage` must be "memory" or a tsps.Tiered'):
        TableConfig("t", 4, storage="disk")
    config = TableConfig("t", 4, storage=Tiered("/d", "1GiB"))
    assert TableConfig.from_config(config.get_config()) == config


def test_everything_that_reads_sees_both_tiers(folder: str, create: Callable[..., Table]) -> None:
    planes = (MetadataPlane("count", "uint32", initial=3),)
    table = create(**tiered(folder), optimizer=optimizers.Adagrad(learning_rate=1.0), metadata=planes)
    keys = np.arange(ROWS)
    values = np.arange(4 * ROWS, dtype=np.float32).reshape(ROWS, 4)
    table.assign(keys, values)
    stats = table.stats()
    assert stats["rows"] == len(table) == ROWS
    assert stats["rows_on_disk"] >= ROWS - stats["row_capacity"] > 3000
    assert stats["bytes"] < MEMORY
    assert stats["bytes_on_disk"] > 3000 * 16
    np.testing.assert_array_equal(table.lookup(keys), values)
    np.testing.assert_array_equal(np.sort(table.keys()), keys)
    is_present, rows, (slot,) = table.entries(keys)
    assert is_present.all()
    np.testing.assert_array_equal(rows, values)
    np.testing.assert_array_equal(slot, np.full((ROWS, 4), np.float32(0.1)))
    assert (table.metadata(keys)["count"] == 3).all()
    with table.scan() as scan:
        assert len(scan) == ROWS
        block = scan.read()
    np.testing.assert_array_equal(block.rows[np.argsort(block.keys)], values)
    assert table.verify().ok
    assert table.verify().rows == ROWS
    reopened = Table.open(table.path)
    assert reopened.config.storage == table.config.storage
    np.testing.assert_array_equal(reopened.lookup(keys), values)
    code = f"""
import numpy as np
from tf_sparse_ps.table import Table
table = Table.open({table.path!r})
assert len(table) == {ROWS} and table.verify().ok
assert (table.lookup(np.arange({ROWS})) == np.arange({4 * ROWS}).reshape(-1, 4)).all()
"""
    run_child(code)


@pytest.mark.parametrize("first_read", ["lookup", "keys", "scan"])
def test_a_reader_that_was_open_before_a_binding_reads_the_rows_after_it(
    folder: str, create: Callable[..., Table], first_read: str
) -> None:
    """The binding puts the rows into other files. The reader must not read the files that it mapped before."""
    table = create(**tiered(folder), optimizer=None)
    values = np.arange(4 * ROWS, dtype=np.float32).reshape(ROWS, 4)
    code = f"""
import numpy as np
from tf_sparse_ps.table import Table
table = Table.open({table.path!r})
keys = np.arange({ROWS})
table.lookup(keys)
print("open", flush=True)
input()
if {first_read!r} == "keys":
    assert len(table.keys()) == {ROWS}
elif {first_read!r} == "scan":
    with table.scan() as scan:
        assert len(scan.read().keys) == {ROWS}
values = np.arange({4 * ROWS}).reshape(-1, 4)
assert (table.lookup(keys) == values).all()
assert (table.entries(keys)[1] == values).all()
"""
    with start_child(code, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout.readline() == "open\n"
        table.bind_optimizer(optimizers.Adagrad(learning_rate=1.0))
        table.assign(np.arange(ROWS), values)
        _, errors = reader.communicate("\n", timeout=100)
    assert reader.returncode == 0, errors[-3000:]


def test_changes_and_erased_keys_of_both_tiers(folder: str, create: Callable[..., Table]) -> None:
    table = create(**tiered(folder))
    table.assign(np.arange(ROWS), ones(ROWS))
    mark = table.mark_changes()
    table.apply_gradients(np.arange(0, ROWS, 40), ones(100))
    assert table.erase(np.arange(7, ROWS, 40)) == 100
    table.assign(np.arange(ROWS - 500), np.zeros((ROWS - 500, 4), np.float32))  # moves all rows again
    changes = table.changes_since(mark)
    assert not changes.everything
    erased = np.arange(7, ROWS, 40)
    np.testing.assert_array_equal(np.sort(changes.erased), erased)
    written = np.union1d(np.arange(ROWS - 500), np.arange(0, ROWS, 40))
    np.testing.assert_array_equal(np.sort(changes.written), written)
    assert len(table) == ROWS - np.sum(erased >= ROWS - 500)


def test_files_are_saved_with_tiers_and_loaded_without_and_the_reverse(
    folder: str, create: Callable[..., Table]
) -> None:
    rule = optimizers.Adam(learning_rate=0.1)
    source = create("source", **tiered(folder), optimizer=rule)
    keys = np.arange(ROWS)
    for part in np.split(keys, 20):
        source.apply_gradients(part, np.random.default_rng(0).normal(size=(len(part), 4)).astype(np.float32))
    source.save(f"{folder}/saved")
    plain = create("source", group="plain", optimizer=rule)
    plain.restore(f"{folder}/saved")
    plain.save(f"{folder}/again")
    back = create("source", group="back", **tiered(folder), optimizer=rule)
    back.restore(f"{folder}/again")
    assert back.stats()["rows_on_disk"] > 3000
    for table in (plain, back):
        for a, b in zip(table.entries(keys)[:2], source.entries(keys)[:2], strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(table.entries(keys)[2], source.entries(keys)[2], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_folder_is_one_tables(folder: str, create: Callable[..., Table]) -> None:
    table = create(**tiered(folder))
    (disk,) = Path(f"{folder}/disk").glob("*/*")
    assert (disk / "table").read_text().endswith(f" {table.path}\n")
    other_config = TableConfig("user", 4, **tiered(folder))
    os.mkdir(f"{folder}/elsewhere")
    with pytest.raises(TableExistsError, match="has the rows of another table"):
        Table.create(f"{folder}/elsewhere/group/user", other_config)
    table.assign([1], ones(1))
    assert len(table) == 1


def test_memory_that_cannot_do(folder: str, create: Callable[..., Table]) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"memory of 1048576 bytes has no room for 64 .* that takes 15\d+ bytes"
    ):
        create(storage=Tiered(f"{folder}/disk", "1 MiB"))
    table = create("fits", **tiered(folder))
    with pytest.raises(NoSpaceError, match=r"a change of 3000 rows at once, .* two such changes take \d+ bytes"):
        table.apply_gradients(np.arange(3000), ones(3000))
    assert table.step == 0
    assert len(table) == 0
    table.assign(np.arange(8000), ones(8000))
    with pytest.raises(NoSpaceError, match="would have 8001 rows, max_rows is 8000"):
        table.assign([8000], ones(1))


def test_a_path_that_cannot_be_made(folder: str, create: Callable[..., Table]) -> None:
    Path(f"{folder}/file").write_text("")
    with pytest.raises(AccessError, match=r"cannot make .* for rows on disk"):
        create(storage=Tiered(f"{folder}/file/disk", MEMORY))


@pytest.mark.parametrize("what", ["records", "gone"])
def test_damaged_files_are_refused_by_name(folder: str, create: Callable[..., Table], what: str) -> None:
    table = create(**tiered(folder))
    table.assign(np.arange(ROWS), ones(ROWS))
    files = sorted(Path(f"{folder}/disk").glob("*/*/*/records.*"))
    if what == "gone":
        files[0].unlink()
    else:
        content = bytearray(files[0].read_bytes())
        for at in range(5000, len(content), 97):
            content[at] ^= 255
        files[0].write_bytes(content)
    with pytest.raises(DamagedFileError, match="records"):
        table.lookup(np.arange(ROWS))
    assert not table.verify().ok
    assert "records" in table.verify().problems[0] or "disk" in table.verify().problems[0]
