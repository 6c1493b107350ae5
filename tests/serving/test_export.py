"""`tsps.export`: versions have the rows of their step, share files, and appear whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from served_model import DIM, keras, make_model, train
from serving_support import files_of, must_equal

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import (
    DamagedFileError,
    InvalidArgumentError,
    NotFoundError,
    StateError,
    WriterLockedError,
)
from tf_sparse_ps.serving import fault_points
from tf_sparse_ps.serving.version import Version


@pytest.mark.keras2_smoke
def test_versions_have_the_rows_of_their_steps(tmp_path: Path) -> None:
    model, layer = make_model()
    train(model, np.arange(4000))
    tsps.export(model, tmp_path / "1")
    must_equal(tmp_path / "1", model, layer)
    train(model, np.arange(900, 1010))
    layer.erase(np.arange(20))
    tsps.export(model, tmp_path / "2", base=tmp_path / "1")
    must_equal(tmp_path / "2", model, layer)
    assert files_of(tmp_path / "2") == ["layer", "base"]
    base = Version(tmp_path / "1").tables[0].files[0].path
    assert (tmp_path / "1" / base).samefile(tmp_path / "2" / base)
    layer_file = tmp_path / "2" / Version(tmp_path / "2").tables[0].files[0].path
    assert layer_file.stat().st_size < (tmp_path / "1" / base).stat().st_size / 4
    # Erased keys that return, and nothing that has changed.
    train(model, np.arange(10, 14))
    tsps.export(model, tmp_path / "3", base=tmp_path / "2")
    must_equal(tmp_path / "3", model, layer)
    tsps.export(model, tmp_path / "4", base=tmp_path / "3")
    assert Version(tmp_path / "4").tables[0].files == Version(tmp_path / "3").tables[0].files
    must_equal(tmp_path / "4", model, layer)
    # The version before is as it was.
    assert not tsps.ServingTable.open(tmp_path / "2").contains([10])[0]
    assert tsps.ServingTable.open(tmp_path).path == os.fspath(
        tmp_path / "4/assets" / Version(tmp_path / "4").tables[0].asset
    )


@pytest.mark.parametrize("rows", ["float32", "bfloat16", "float16", "int8"])
def test_rows_are_stored_as_asked(tmp_path: Path, rows: str) -> None:
    model, layer = make_model()
    train(model, np.arange(4000))
    tsps.export(model, tmp_path / "1", rows=rows)
    train(model, np.arange(100, 140))
    tsps.export(model, tmp_path / "2", rows=rows, base=tmp_path / "1")
    assert files_of(tmp_path / "2") == ["layer", "base"]
    table, reader = tsps.ServingTable.open(tmp_path / "2"), layer.bindings[0].reader()
    keys = np.arange(5000)  # 1,000 of them are absent
    exact = reader.lookup(keys)
    np.testing.assert_array_equal(table.lookup(keys), table.as_stored(exact))
    error = np.linalg.norm(table.lookup(keys) - exact, axis=1) / np.linalg.norm(exact, axis=1)
    stated = [file["error"] for file in table.files()]
    if rows == "float32":
        assert error.max() == 0
        assert stated == [{"max": 0.0, "mean": 0.0, "over": 0.0, "bound": 0.01}] * 2
    else:
        assert 0 < error[:4000].max() <= max(fact["max"] for fact in stated) * (1 + 1e-6)
        assert stated[-1]["mean"] <= stated[-1]["max"] < 0.01
    # Another type is not a layer of this one.
    other = "float32" if rows == "int8" else "int8"
    tsps.export(model, tmp_path / "3", rows=other, base=tmp_path / "2")
    assert files_of(tmp_path / "3") == ["base"]


def test_absent_keys_read_zeros_if_asked(tmp_path: Path) -> None:
    model, _ = make_model()
    train(model, np.arange(10))
    tsps.export(model, tmp_path / "1", absent="zeros")
    table = tsps.ServingTable.open(tmp_path / "1")
    assert (table.lookup([10**6]) == 0).all()
    assert (table.lookup([3]) != 0).all()


def test_a_version_of_another_job_is_compared_or_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, layer = make_model()
    train(model, np.arange(4000))
    tsps.export(model, tmp_path / "1")
    manifest = (tmp_path / "1/version.json").read_bytes()
    version = Version(tmp_path / "1").manifest
    table = version.tables[0]
    uuid, life, generation = table.marks[0].split(":")
    # As if another life of the table had made the version.
    other = dataclasses.replace(table, marks=(f"{uuid}:{int(life, 16) ^ 1:016x}:{generation}",))
    (tmp_path / "1/version.json").write_bytes(dataclasses.replace(version, tables=(other,)).encode())
    train(model, np.arange(10, 20))
    layer.erase([0, 1])
    tsps.export(model, tmp_path / "2", base=tmp_path / "1")
    assert files_of(tmp_path / "2") == ["base"]
    assert "what has changed since the earlier version is not known" in capfd.readouterr().err
    tsps.export(model, tmp_path / "3", base=tmp_path / "1", diff=True)
    assert files_of(tmp_path / "3") == ["layer", "base"]
    assert capfd.readouterr().err == ""
    must_equal(tmp_path / "3", model, layer)
    (newest, _) = tsps.ServingTable.open(tmp_path / "3").files()
    assert newest["n_keys"] == 12
    assert manifest != (tmp_path / "1/version.json").read_bytes()
    # The next version knows what has changed since.
    train(model, np.arange(50, 60))
    tsps.export(model, tmp_path / "4", base=tmp_path / "3")
    assert files_of(tmp_path / "4") == ["layer", "layer", "base"]
    must_equal(tmp_path / "4", model, layer)


def test_what_cannot_be_exported_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model, _ = make_model()
    train(model, np.arange(10))
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidArgumentError, match="exists, and a version never changes"):
        tsps.export(model, tmp_path / "there")
    with pytest.raises(InvalidArgumentError, match=r"`rows` must be one of .* Received: 'int4'"):
        tsps.export(model, tmp_path / "1", rows="int4")
    with pytest.raises(InvalidArgumentError, match=r"`absent` must be one of .* Received: 'none'"):
        tsps.export(model, tmp_path / "1", absent="none")
    with pytest.raises(NotFoundError, match=r"is not a served version: it has no version.json"):
        tsps.export(model, tmp_path / "1", base=tmp_path / "there")
    with pytest.raises(InvalidArgumentError, match=r"`model` must be a Keras model. Received: str"):
        tsps.export("model", tmp_path / "1")
    assert sorted(os.listdir(tmp_path)) == ["there"]


def test_a_failed_export_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    model, layer = make_model()
    train(model, np.arange(100))
    tsps.export(model, tmp_path / "1")
    train(model, np.arange(10))
    for point in fault_points.EXPORT_POINTS:

        def fail(reached: str, point: str = point) -> None:
            if reached == point:
                raise RuntimeError(point)

        fault_points.set_action(fail)
        try:
            with pytest.raises(RuntimeError, match=point):
                tsps.export(model, tmp_path / "2", base=tmp_path / "1")
        finally:
            fault_points.set_action(None)
        if point == "renamed":
            must_equal(tmp_path / "2", model, layer)
        else:
            assert sorted(os.listdir(tmp_path)) == ["1"], point
    tsps.export(model, tmp_path / "3", base=tmp_path / "2")
    must_equal(tmp_path / "3", model, layer)


def test_two_writers_of_one_version_do_not_mix(tmp_path: Path) -> None:
    model, layer = make_model()
    train(model, np.arange(100))
    seen = []

    def also(point: str) -> None:
        if point == "model_saved":
            fault_points.set_action(None)
            with pytest.raises(WriterLockedError, match="is being written by rank 0"):
                tsps.export(model, tmp_path / "1")
            seen.append(point)

    fault_points.set_action(also)
    tsps.export(model, tmp_path / "1")
    assert seen
    must_equal(tmp_path / "1", model, layer)


def test_damage_is_found_when_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = make_model()
    train(model, np.arange(1000))
    tsps.export(model, tmp_path / "1")
    file = tmp_path / "1" / Version(tmp_path / "1").tables[0].files[0].path
    content = bytearray(file.read_bytes())
    content[-5000] ^= 1
    file.unlink()
    file.write_bytes(content)
    table = tsps.ServingTable.open(tmp_path / "1")
    with pytest.raises(DamagedFileError, match="is damaged: the checksum of bytes"):
        table.verify()
    # Also while the file is open unchecked.
    with pytest.raises(DamagedFileError, match="is damaged: the checksum of bytes"):
        tsps.ServingTable.open(tmp_path / "1", verify=True)
    monkeypatch.setenv("TFSPS_VERIFY", "open")
    with pytest.raises(DamagedFileError, match="is damaged: the checksum of bytes"):
        tsps.ServingTable.open(tmp_path / "1")
    monkeypatch.setenv("TFSPS_VERIFY", "yes")
    with pytest.raises(InvalidArgumentError, match=r"TFSPS_VERIFY must be 'open' or unset. Received: 'yes'"):
        tsps.ServingTable.open(tmp_path / "1")


def test_serving_tables_need_no_tensorflow(tmp_path: Path) -> None:
    model, layer = make_model()
    train(model, np.arange(100))
    tsps.export(model, tmp_path / "1")
    code = (
        "import sys, numpy as np, tf_sparse_ps as tsps\n"
        f"table = tsps.ServingTable.open({os.fspath(tmp_path)!r}, 'words')\n"
        f"np.save({os.fspath(tmp_path / 'rows.npy')!r}, table.lookup(np.arange(120)))\n"
        "assert 'tensorflow' not in sys.modules\n"
        "print(table)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert f"dim 8, float32 rows, step {layer.bindings[0].reader().step}>" in done.stdout
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), layer.bindings[0].reader().lookup(np.arange(120)))


def test_paths_may_be_links_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "serve").symlink_to("disk")
    model, layer = make_model()
    train(model, np.arange(100))
    tsps.export(model, tmp_path / "serve/1")
    monkeypatch.chdir(tmp_path / "disk/1/assets")
    table = tsps.ServingTable.open(os.path.basename(layer.bindings[0].path))
    np.testing.assert_array_equal(table.lookup([3, 200]), layer.bindings[0].reader().lookup([3, 200]))


def test_several_tables_are_named(tmp_path: Path) -> None:
    inputs = keras.Input([1], dtype="int64")
    parts = [keras.layers.Flatten()(tsps.Embedding(None, DIM, name=name)(inputs)) for name in ("first", "second")]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.train_on_batch(np.arange(10).reshape(-1, 1), np.ones((10, 1)))
    tsps.export(model, tmp_path / "1")
    with pytest.raises(InvalidArgumentError, match=r"has 2 tables, \['first', 'second'\]. Name one"):
        tsps.ServingTable.open(tmp_path / "1")
    with pytest.raises(NotFoundError, match="has no table 'third'"):
        tsps.ServingTable.open(tmp_path / "1", "third")
    assert tsps.ServingTable.open(tmp_path / "1", "second").contains([3])[0]


def test_a_served_table_cannot_be_trained(tmp_path: Path) -> None:
    import tensorflow as tf

    from tf_sparse_ps import _ops

    model, _ = make_model()
    train(model, np.arange(10))
    tsps.export(model, tmp_path / "1")
    path = tsps.ServingTable.open(tmp_path / "1").path
    keys, gradients = tf.constant([1], tf.int64), tf.ones([1, DIM])
    with pytest.raises((tf.errors.FailedPreconditionError, StateError), match="cannot be trained"):
        _ops.lib.tsps_apply(1, [path], [""], [keys], [gradients], [[1.0]], _ops.NOBODY)
