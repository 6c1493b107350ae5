"""Groups, tables, and this process's registry of them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf
from kernel_support import Group, apply_step, child, run_child

from tf_sparse_ps import _ops
from tf_sparse_ps._ops import library
from tf_sparse_ps.table import Table

i64 = tf.int64


def test_assign_and_erase(group, mode):
    table = group.table(2)
    keys, rows = tf.constant([5, -6, 5], i64), tf.constant([[1.0, 2], [3, 4], [5, 6]])

    def write():
        _ops.assign(table.path, table.uuid, keys, rows)
        return _ops.erase(table.path, table.uuid, tf.constant([-6, 99], i64))

    initial = table.rows([-6])
    assert mode(write)() == 1
    np.testing.assert_array_equal(table.rows([5, -6]), [[5, 6], initial[0]])  # the last of equal keys wins


def test_assign_sets_slots(group):
    table = group.table(2, optimizer="adagrad")
    key = tf.constant([1], i64)
    _ops.assign(table.path, table.uuid, key, tf.zeros([1, 2]), [tf.constant([[4.0, 9.0]])])
    apply_step(1, [table.path], [table.uuid], [key], [tf.ones([1, 2])], [[1.0, 0.0]])
    np.testing.assert_allclose(table.rows([1]), [[-1 / np.sqrt(5), -1 / np.sqrt(10)]], rtol=1e-6)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"has 1 slots \(optimizer adagrad\). Received: 2"):
        _ops.assign(table.path, table.uuid, key, tf.zeros([1, 2]), [tf.zeros([1, 2])] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rows for table .*/t0 must have shape \[1,2\]"):
        _ops.assign(table.path, table.uuid, key, tf.zeros([2, 2]))


def test_assign_sets_a_slot_of_one_float(group):
    table = group.table(2, optimizer="rowwise_adagrad")
    keys = tf.constant([1, 2], i64)
    _ops.assign(table.path, table.uuid, keys, tf.zeros([2, 2]), [tf.constant([[4.0], [9.0]])])
    apply_step(1, [table.path], [table.uuid], [keys], [tf.constant([[1.0, 3.0], [4.0, 4.0]])], [[1.0, 1.0]])
    np.testing.assert_allclose(table.rows([1, 2]), [[-1 / 4, -3 / 4], [-4 / 6, -4 / 6]], rtol=1e-6)
    for wrong in (tf.zeros([2, 2]), tf.zeros([1, 1]), tf.zeros([2])):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"slots for table .*/t0 must have shape \[2,1\]"):
            _ops.assign(table.path, table.uuid, keys, tf.zeros([2, 2]), [wrong])


def test_binding_another_optimizer_is_asked_for(group):
    table = group.table(2, optimizer="adagrad")
    path, uuid = table.path, table.uuid
    _ops.bind_optimizer(path, uuid, "adagrad", [0.1])
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"adagrad.*adam"):
        _ops.bind_optimizer(path, uuid, "adam", [0.0, 0.0])
    _ops.bind_optimizer(path, uuid, "adam", [0.0, 0.0], replace=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"slot_init of adam must have shape \[2\]. Received: \[1\]"
    ):
        _ops.bind_optimizer(path, uuid, "adam", [0.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="lion"):
        _ops.bind_optimizer(path, uuid, "lion")


def test_bad_tables_are_refused(group):
    uuid = "a" * 32
    for arguments, message in (
        ({"dim": 0}, "dim"),
        ({"dim": 2, "initializer": "orthogonal"}, "orthogonal"),
        ({"dim": 2, "initializer": "uniform", "initializer_args": (1, -1)}, "minval"),
        ({"dim": 2, "initializer_args": (1,)}, r"initializer_args must have shape \[2\]"),
        ({"dim": 2, "key_limit": -1}, "key_limit"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            _ops.create_table(f"{group.path}/x", uuid, **arguments)
    with pytest.raises(tf.errors.InvalidArgumentError, match="uuid"):
        _ops.create_table(f"{group.path}/x", "short", dim=2)
    group.table(2, name="x")
    with pytest.raises(tf.errors.AlreadyExistsError, match="/x already exists"):
        _ops.create_table(f"{group.path}/x", uuid, dim=2)
    with pytest.raises(tf.errors.AlreadyExistsError):
        _ops.create_group(group.path, uuid)


def test_group_info_and_set_step(group):
    group.table(2, optimizer="sgd")
    version = int(_ops.group_info(group.path).version)
    _ops.set_step(group.path, 41)
    group.apply(42, [1])
    info = _ops.group_info(group.path)
    assert info.step == 42
    assert info.version == version + 1
    assert len(info.counters) == len(_ops.COUNTERS)


def test_the_next_step_is_behind_the_groups_last_one_and_the_known_one(group, mode):
    _ops.set_step(group.path, 3)
    numbers = mode(lambda known: [_ops.next_step(group.path, known + 2), _ops.next_step(group.path, known)])
    assert [int(number) for number in numbers(tf.constant(3, i64))] == [6, 4]
    assert [int(number) for number in numbers(tf.constant(0, i64))] == [4, 4]


def test_changes_are_marked(group):
    table = group.table(2, rows=5, optimizer="sgd")
    first_mark = int(_ops.mark_changes(group.path))
    group.apply(1, [1])
    assert int(_ops.mark_changes(group.path)) == first_mark + 1
    with Table.open(table.path.numpy().decode()) as reader:
        assert reader.changes_since(reader.mark(first_mark)).written.tolist() == [1]
        assert reader.changes_since(reader.mark(first_mark + 1)).written.tolist() == []
        assert reader.changes_since(f"{reader.uuid}:{first_mark}").everything, (
            "a mark of an older version must select everything"
        )


def test_paths_are_compared_without_their_spelling(group, monkeypatch, folder):
    table = group.table(2, optimizer="sgd")
    monkeypatch.chdir(folder)
    apply_step(1, ["./g//t0/"], [table.uuid], [[1]], [tf.ones([1, 2])], [[1.0]])
    assert _ops.wait_step("g/", 1, 1.0) == 1


def test_a_closed_group_is_opened_anew_and_its_writer_is_gone(group):
    table = group.table(2, rows=3, optimizer="sgd")
    look = tf.function(lambda x: group.lookup([x], [0]).rows[0])
    before = look(tf.constant([1], i64)).numpy()
    _ops.close_group(group.path)
    np.testing.assert_array_equal(look(tf.constant([1], i64)), before)
    with pytest.raises(tf.errors.FailedPreconditionError, match="not the writer"):
        group.apply(1, [1])
    assert _ops.open_writer(group.path) == 0
    assert _ops.open_writer(group.path) == 0
    assert group.apply(1, [1]) == 1
    np.testing.assert_array_equal(table.rows([1]), before - 1)


def test_a_group_made_again_at_the_same_path_is_another_one(group):
    table = group.table(2, rows=3)
    look = tf.function(lambda x, uuid: _ops.lookup([x], [table.path], [uuid], [tf.zeros([0, 2])], [0]).rows[0])
    ids = tf.constant([1], i64)
    look(ids, table.uuid)
    # This process still has the first group open, like a rank whose job's directory was replaced.
    shutil.rmtree(group.path)
    other_uuid = "f" * 32
    code = f"""
from tf_sparse_ps import _ops
_ops.create_group({group.path!r}, "e" * 32)
_ops.create_table({group.path!r} + "/t0", {other_uuid!r}, dim=2, initializer="constant", initializer_args=(7, 0))
"""
    run_child(code)
    np.testing.assert_array_equal(look(ids, tf.constant(other_uuid)), [[7, 7]])
    with pytest.raises(tf.errors.FailedPreconditionError, match="uuid"):
        look(ids, table.uuid)


def test_create_group_replaces_the_handle_of_a_removed_group(group, folder):
    group.table(2, rows=3, optimizer="sgd")
    shutil.rmtree(group.path)
    again = Group(group.path)
    again.table(3, rows=2, optimizer="sgd")
    assert again.apply(1, [1]) == 1


def test_a_table_made_by_another_process_appears(group):
    """The leader creates the table. Another rank of the node waits until it can look it up."""
    code = f"""
import sys, time
import tensorflow as tf
from tf_sparse_ps import _ops
print(_ops.group_info({group.path!r}).step.numpy(), flush=True)
while True:
    try:
        found = _ops.lookup([tf.constant([2], tf.int64)], [{group.path!r} + "/t0"], [""], [tf.zeros([0, 2])], [0])
        break
    except tf.errors.NotFoundError:
        time.sleep(0.01)
print(found.rows[0].numpy().tolist(), flush=True)
"""
    with child(code) as process:
        assert process.stdout.readline() == "0\n"
        table = group.table(2)
        assert process.stdout.readline() == f"{table.rows([2]).tolist()}\n"


def test_threads_are_checked():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 1024\]. Received: threads=1, writer_threads=-1"):
        _ops.set_threads(1, -1)
    _ops.set_threads(2, 2)


def test_other_tensorflows_are_refused_by_name():
    for version in ("2.14.1", "2.22.0", "3.0", "1.15", "nightly"):
        with pytest.raises(ImportError, match=rf"works with TensorFlow 2.15 to 2.21; found TensorFlow {version}"):
            _ops.check_tensorflow_version(version)
    for version in ("2.15.1", "2.16.0rc1", "2.21.0", "2.21.0-dev20260101"):
        _ops.check_tensorflow_version(version)


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(library, "__file__", "/nowhere/_ops/library.py")
    with pytest.raises(ImportError, match=r"/nowhere/_ops_lib.so is missing: build it"):
        library.load()


def test_a_removed_table_is_gone_for_functions_that_have_found_it(group):
    kept_table, removed_table = group.table(2, rows=3, optimizer="sgd"), group.table(3, rows=3, optimizer="sgd")
    look = tf.function(lambda x, path, uuid: _ops.lookup([x], [path], [uuid], [tf.zeros([0, 3])], [0]).rows[0])
    ids = tf.constant([1], i64)
    look(ids, removed_table.path, removed_table.uuid)
    assert group.apply(1, [1]) == 1
    before = kept_table.rows([0, 1, 2])
    _ops.remove_table(removed_table.path, removed_table.uuid)
    for use in (
        lambda: look(ids, removed_table.path, removed_table.uuid),
        lambda: _ops.remove_table(removed_table.path, removed_table.uuid),
        lambda: _ops.assign(removed_table.path, removed_table.uuid, ids, tf.zeros([1, 3])),
        lambda: apply_step(2, [removed_table.path], [removed_table.uuid], [ids], [tf.ones([1, 3])], [[1.0]]),
    ):
        with pytest.raises(tf.errors.NotFoundError, match="no table 't1'"):
            use()
    # A new table takes its place. Functions that have found the old table do not find the new one.
    _ops.create_table(f"{group.path}/t2", "f" * 32, dim=3, initializer="constant", initializer_args=(7, 0))
    with pytest.raises(tf.errors.NotFoundError, match="no table 't1'"):
        look(ids, removed_table.path, removed_table.uuid)
    np.testing.assert_array_equal(look(ids, tf.constant(f"{group.path}/t2"), tf.constant("f" * 32)), [[7, 7, 7]])
    np.testing.assert_array_equal(kept_table.rows([0, 1, 2]), before)
    with pytest.raises(tf.errors.FailedPreconditionError, match="uuid"):
        _ops.remove_table(kept_table.path, "e" * 32)


def test_only_the_writer_removes_tables_and_others_unmap_them(group, folder):
    table = group.table(2, rows=3)
    code = f"""
import numpy as np, tensorflow as tf
from tf_sparse_ps import _ops
path, uuid = {table.path.numpy().decode()!r}, {table.uuid.numpy().decode()!r}
look = lambda: _ops.lookup([tf.constant([1], tf.int64)], [path], [uuid], [tf.zeros([0, 2])], [0]).rows[0].numpy()
mapped = lambda: path in open("/proc/self/maps").read()
_ops.forget_table(path)
before = look()
assert mapped()
_ops.forget_table(path)
assert not mapped()
np.testing.assert_array_equal(look(), before)
try:
    _ops.remove_table(path, uuid)
except tf.errors.FailedPreconditionError as error:
    assert "not the writer" in str(error), error
else:
    raise AssertionError("removed")
"""
    run_child(code)
    _ops.forget_table(table.path)  # has no effect in the writer's process
    np.testing.assert_array_equal(table.rows([1]), table.rows([1]))
