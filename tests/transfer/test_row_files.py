"""Files of rows: what is exported and imported again has the same keys, rows and slots, to the bit."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_tables import scratch_folder
from transfer_support import block_of

import tf_sparse_ps as tsps
from tf_sparse_ps import errors, optimizers
from tf_sparse_ps.rows import export_rows, import_rows, sources

ROOT = Path(tsps.__file__).parent.parent
ENDINGS = ("parquet", "npz", "csv")
DIM, N = 5, 20_000
RULES = {
    "none": None,
    "adam": optimizers.Adam(),
    "rowwise": optimizers.RowwiseAdagrad(),
    "sgd": optimizers.SGD(),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as path:
        yield path


def awkward(random: np.random.Generator, n: int, dim: int) -> Any:
    """Returns floats of all sizes and signs, among them the smallest, the largest and both zeros."""
    bits = random.integers(0, 2**32, (n, dim), np.uint32)
    values = bits.view(np.float32)
    values[~np.isfinite(values)] = 0.1
    values[0, :4] = [0.0, -0.0, np.float32(1e-45), np.finfo(np.float32).max]
    return values


def made(folder: Path, rule: str = "adam", n: int = N, **options: Any) -> tsps.Table:
    """Returns a table with rows and slots of any value, and keys of all of int64."""
    random = np.random.default_rng(1)
    config = tsps.TableConfig("words", DIM, optimizer=RULES[rule], initializer="normal", **options)
    table = tsps.Table.create(folder / f"group{len(list(folder.iterdir()))}" / "words", config)
    keys = random.integers(-(2**63), 2**63 - 1, n)
    keys[:3] = [0, -(2**63), 2**63 - 1]
    _, _, slots = table.entries(np.zeros(1, np.int64))
    values = [awkward(random, n, max(4, slot.shape[1]))[:, : slot.shape[1]] for slot in slots]
    table.assign(keys, awkward(random, n, DIM), values)
    return table


def check_equal(a: Any, b: Any) -> None:
    a, b = block_of(a), block_of(b)
    np.testing.assert_array_equal(a.keys, b.keys)
    for one, other in zip((a.rows, *a.slots), (b.rows, *b.slots), strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_round_trips(ending: str, rule: str, folder: Path) -> None:
    table = made(folder, rule)
    file, back = folder / f"words.{ending}", folder / "words.tfsps"
    has_slots = rule != "none"
    assert export_rows(table, file, slots=has_slots) == N
    check_equal(table, file)
    assert import_rows(file, back) == N
    check_equal(table, back)
    facts, stored = sources.opened(table).facts, sources.opened(back).facts
    assert facts == stored
    # The parameter file is as good as one that the table has written: keys without a row read the same.
    again = tsps.Table.create(folder / "again" / "words", tsps.TableConfig("words", DIM))
    assert again.load_parameter_file(back) == N
    check_equal(table, again)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_16_bits(ending: str, dtype: str, folder: Path) -> None:
    config = tsps.TableConfig("words", DIM, dtype=dtype, key_limit=100)
    table = tsps.Table.create(folder / "group" / "words", config)
    table.assign(np.arange(90), np.random.default_rng(0).normal(size=(90, DIM)).astype(np.float32))
    export_rows(table, folder / f"words.{ending}")
    import_rows(folder / f"words.{ending}", folder / "words.tfsps")
    check_equal(table, folder / "words.tfsps")
    facts = sources.opened(folder / "words.tfsps").facts
    assert (facts.dtype, facts.key_limit) == (dtype, 100)


def test_what_other_programs_read(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = made(folder, n=300)
    for ending in ENDINGS:
        export_rows(table, folder / f"words.{ending}", slots=True)
    expected = block_of(table)
    read = parquet.read_table(folder / "words.parquet")
    assert read.column_names == ["key", "row", "slot_0", "slot_1"]
    by_key = np.argsort(read["key"].to_numpy())
    rows = np.array(read["row"].to_pylist(), np.float32)[by_key]
    np.testing.assert_array_equal(rows.view(np.uint32), expected.rows.view(np.uint32))
    with np.load(folder / "words.npz") as archive:
        assert sorted(archive) == ["facts", "keys", "rows", "slot_0", "slot_1"]
        by_key = np.argsort(archive["keys"])
        np.testing.assert_array_equal(archive["slot_1"][by_key].view(np.uint32), expected.slots[1].view(np.uint32))
        facts = json.loads(archive["facts"].tobytes())
    assert (facts["table"], facts["dim"], facts["optimizer"], facts["step"]) == ("words", DIM, "adam", 0)
    with (folder / "words.csv").open() as stream:
        assert json.loads(stream.readline()[2:]) == facts
        lines = {int(line["key"]): line for line in csv.DictReader(stream)}
    for key, row in zip(expected.keys.tolist(), expected.rows.tolist(), strict=True):
        assert [np.float32(lines[key][f"row_{j}"]) for j in range(DIM)] == [np.float32(value) for value in row]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_selection(ending: str, folder: Path) -> None:
    table = made(folder, n=1000)
    file = folder / f"words.{ending}"
    keys = table.keys()
    assert export_rows(table, file, keys=[*keys[:10].tolist(), 12345]) == 10
    np.testing.assert_array_equal(block_of(file).keys, np.sort(keys[:10]))
    low, high = np.sort(keys)[[100, 200]].tolist()
    assert export_rows(table, file, key_range=(low, high)) == 100
    np.testing.assert_array_equal(block_of(file).keys, np.sort(keys)[100:200])
    assert export_rows(table, file, keys=[low, high], key_range=(low, high)) == 1
    last = 2**63 - 1
    table.assign([last], np.ones((1, DIM), np.float32))
    assert export_rows(table, file, key_range=(last, last + 1)) == 1
    np.testing.assert_array_equal(block_of(file).keys, [last])
    assert export_rows(table, file, keys=[]) == 0
    assert len(block_of_empty(file)) == 0
    assert not list(folder.glob(".*"))


def block_of_empty(file: Path) -> list[Any]:
    return list(sources.opened(file).blocks(False))


def test_other_sources(folder: Path) -> None:
    table = made(folder)
    table.export_parameter_file(folder / "words.tfsps")
    for source in (folder / "words.tfsps", table.path, Path(table.path).parent):
        assert export_rows(source, folder / "words.npz", slots=True) == N
        check_equal(table, folder / "words.npz")
    export_rows(folder / "words.npz", folder / "words.csv", slots=True)
    check_equal(table, folder / "words.csv")
    for source in (table, table.path, folder / "words.tfsps", folder / "words.npz"):
        assert export_rows(source, folder / "named.npz", table="words") == N
        with pytest.raises(errors.NotFoundError, match="'other'"):
            export_rows(source, folder / "named.npz", table="other")


# --- files of other programs ---


def foreign(path: Path, keys: Any, rows: Any) -> None:
    """Writes a file as another program would."""
    if path.suffix == ".npz":
        np.savez_compressed(path, keys=keys, rows=rows)
    elif path.suffix == ".csv":
        rows = np.asarray(rows)
        lines = [",".join(map(str, [key, *row])) for key, row in zip(keys, rows.tolist(), strict=True)]
        path.write_text("\n".join([",".join(["key", *(f"row_{i}" for i in range(rows.shape[1]))]), *lines]))
    else:
        pa = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pa.table({"other": [0] * len(keys), "row": np.asarray(rows).tolist(), "key": pa.array(keys)})
        parquet.write_table(table, path, compression="snappy")


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_of_other_programs(ending: str, folder: Path) -> None:
    file = folder / f"theirs.{ending}"
    rows = np.random.default_rng(0).normal(size=(6, 3))
    foreign(file, np.arange(6, dtype=np.uint32), rows)
    assert import_rows(file, folder / "ours.tfsps") == 6
    block = block_of(folder / "ours.tfsps")
    np.testing.assert_array_equal(block.rows, rows.astype(np.float32))
    facts = sources.opened(folder / "ours.tfsps").facts
    assert (facts.dim, facts.optimizer, facts.key_limit, facts.initializer["kind"]) == (3, "none", None, "zeros")
    foreign(file, np.array([1, 2, 1]), rows[:3])
    with pytest.raises(errors.StateError, match="several rows of key 1"):
        import_rows(file, folder / "twice.tfsps")
    assert not (folder / "twice.tfsps").exists()


def spoil_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


ONES = np.ones((2, 3), np.float32)
BAD_ARRAYS: list[tuple[str, dict[str, Any]]] = [
    ("must have the arrays `keys` and `rows`", {"keys": np.arange(2)}),
    ("`keys`.*must be of integers", {"keys": np.ones(2), "rows": ONES}),
    ("`rows`.*must be of floats", {"keys": np.arange(2), "rows": np.ones((2, 3), np.int64)}),
    (r"keys \[n\], rows \[n, dim\]", {"keys": np.arange(3), "rows": ONES}),
    (r"keys \[n\], rows \[n, dim\]", {"keys": np.arange(2), "rows": np.ones(2)}),
    ("in Fortran order", {"keys": np.arange(2), "rows": np.asfortranarray(ONES)}),
    ("does not say which optimizer", {"keys": np.arange(2), "rows": ONES, "slot_0": ONES}),
    ("at most 2", {"keys": np.array([0, 2**63], np.uint64), "rows": ONES}),
]


@pytest.mark.parametrize(("words", "arrays"), BAD_ARRAYS)
def test_archives_that_are_no_rows(words: str, arrays: dict[str, Any], folder: Path) -> None:
    file = spoil_npz(folder / "bad.npz", **arrays)
    with pytest.raises(errors.InvalidArgumentError, match=words):
        import_rows(file, folder / "new.tfsps")
    assert not (folder / "new.tfsps").exists()


BAD_LINES = [
    ("must have the columns key,row_0", "a,b\n1,2\n"),
    ("must have the columns key,row_0", "key,row_1\n1,2\n"),
    ("must have the columns key,row_0", ""),
    ("not a key and its floats", "key,row_0\n1,2\n1.5,2\n"),
    ("not a key and its floats", "key,row_0\n1,2,3\n"),
    ("not a key and its floats", f"key,row_0\n{2**63},2\n"),
    ("not a key and its floats", "key,row_0\n1,two\n"),
    ("does not say which optimizer", "key,row_0,slot_0_0\n1,2,3\n"),
]


@pytest.mark.parametrize(("words", "text"), BAD_LINES)
def test_text_that_is_no_rows(words: str, text: str, folder: Path) -> None:
    (folder / "bad.csv").write_text(text)
    with pytest.raises(errors.InvalidArgumentError, match=words):
        import_rows(folder / "bad.csv", folder / "new.tfsps")


def test_parquet_that_is_no_rows(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [
        ("integer column `key`", {"keys": [1], "row": [[1.0]]}),
        ("integer column `key`", {"key": ["a"], "row": [[1.0]]}),
        ("must have lists of floats", {"key": [1], "row": [1.0]}),
        ("must have lists of floats", {"key": [1], "row": [["a"]]}),
        ("a row without a key", {"key": pa.array([1, None]), "row": [[1.0], [2.0]]}),
        ("must have 1 floats in each row", {"key": [1, 2], "row": [[1.0], [2.0, 3.0]]}),
        ("must have 1 floats in each row", {"key": [1, 2, 3], "row": [[1.0], [2.0, 3.0], []]}),
        ("must have 1 floats in each row", {"key": [1, 2], "row": [[1.0], None]}),
    ]
    for words, content in columns:
        parquet.write_table(pa.table(content), folder / "bad.parquet")
        with pytest.raises(errors.InvalidArgumentError, match=words):
            import_rows(folder / "bad.parquet", folder / "new.tfsps")


@pytest.mark.parametrize("value", ["nan", "-inf", "1e39"])
def test_rows_that_are_not_finite_are_refused(value: str, folder: Path) -> None:
    (folder / "rows.csv").write_text(f"key,row_0,row_1,row_2\n4,1,2,3\n5,1,{value},3\n")
    with tsps.Table.create(folder / "group" / "words", tsps.TableConfig("words", 3)) as table:
        path = table.path
    for into in (folder / "new.tfsps", path):
        with pytest.raises(errors.InvalidArgumentError, match=r"rows\.csv has (nan|-?inf) in the row of key 5"):
            import_rows(folder / "rows.csv", into)
    assert not (folder / "new.tfsps").exists()
    with tsps.Table.open(path) as table:
        assert len(table) == 0


def test_slots_that_are_not_finite_are_refused(folder: Path) -> None:
    table = made(folder, "adam", n=10)
    bad = [np.full((1, DIM), value, np.float32) for value in (1, np.nan)]
    table.assign([7], np.ones((1, DIM), np.float32), bad)
    export_rows(table, folder / "words.npz", slots=True)
    with pytest.raises(errors.InvalidArgumentError, match="nan in the row of key 7"):
        import_rows(folder / "words.npz", folder / "new.tfsps")
    assert import_rows(folder / "words.npz", folder / "new.tfsps", slots=False) == 11


def test_damage_in_compressed_archives_is_found(folder: Path) -> None:
    file, errors_seen = folder / "words.npz", set[str]()
    foreign(file, np.arange(500), np.zeros((500, DIM), np.float32))
    whole = file.read_bytes()
    for at in range(60, 600, 20):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            import_rows(file, folder / f"{at}.tfsps")
        except errors.DamagedFileError as error:
            errors_seen.add(str(error))
    assert any("decompressing" in text for text in errors_seen), errors_seen


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_damage_is_found_before_anything_is_written(ending: str, folder: Path) -> None:
    table = made(folder, n=5000)
    file = folder / f"words.{ending}"
    export_rows(table, file)
    data = bytearray(file.read_bytes())
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(errors.DamagedFileError, match="damaged"):
        import_rows(file, folder / "new.tfsps")
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(errors.DamagedFileError, match="CRC"):
        import_rows(file, folder / "new.tfsps")
    assert not (folder / "new.tfsps").exists()


def test_wrong_arguments(folder: Path) -> None:
    table = made(folder, "none", n=10)
    wrong: list[tuple[type[Exception], str, Any]] = [
        (errors.InvalidArgumentError, "must end with one of", lambda: export_rows(table, folder / "a.txt")),
        (errors.InvalidArgumentError, "is not a folder", lambda: export_rows(table, folder / "no" / "a.npz")),
        (errors.UnsupportedError, "has no slots", lambda: export_rows(table, folder / "a.npz", slots=True)),
        (errors.InvalidArgumentError, "first < end", lambda: export_rows(table, folder / "a.npz", key_range=(2, 2))),
        (errors.NotFoundError, "no table 'b'", lambda: export_rows(folder / "group0", folder / "a.npz", table="b")),
        (errors.NotFoundError, "does not exist", lambda: import_rows(folder / "a.npz", folder / "a.tfsps")),
    ]
    for error, words, call in wrong:
        with pytest.raises(error, match=words):
            call()
    export_rows(table, folder / "a.npz")
    import_rows(folder / "a.npz", folder / "a.tfsps")
    with pytest.raises(errors.TableExistsError, match=r"exists\. Import into a new file"):
        import_rows(folder / "a.npz", folder / "a.tfsps")
    with pytest.raises(errors.InvalidArgumentError, match="not a place for rows"):
        import_rows(folder / "a.npz", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.npz", "a.tfsps", "group0"]


def test_no_tensorflow_is_imported() -> None:
    program = "import sys; from tf_sparse_ps.rows import export_rows; assert 'tensorflow' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)
    assert done.returncode == 0


# Private memory while a table is written to a file and read again, in MiB.
MEMORY = """
import sys, threading, numpy as np
import tf_sparse_ps as tsps
from tf_sparse_ps.rows import export_rows, import_rows
def private():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))
folder, file = sys.argv[1:]
table = tsps.Table.create(folder + "/group/words", tsps.TableConfig("words", 32))
for start in range(0, 1_500_000, 1 << 16):
    keys = np.arange(start, start + (1 << 16))
    table.assign(keys, np.random.default_rng(start).normal(size=(len(keys), 32)).astype(np.float32))
begin, peak, done = private(), [0.0], threading.Event()
def watch():
    while not done.wait(0.02):
        peak[0] = max(peak[0], private() - begin)
threading.Thread(target=watch, daemon=True).start()
rows = export_rows(table, file)
import_rows(file, folder + "/words.tfsps")
done.set()
print(rows, peak[0])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_files_are_written_and_read_in_little_memory(ending: str, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY, str(folder), str(tmp_path / f"words.{ending}")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, peak = map(float, done.stdout.split())
    assert rows >= 1_500_000
    assert peak < 256, "MiB, for 200 MB of rows"
