"""A table that contains the rows of one node names its shard, and accepts, exports and restores only these rows."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from tf_sparse_ps import _table, errors, optimizers
from tf_sparse_ps.table import Table

pytestmark = pytest.mark.quick

NODES, KEYS = 3, np.arange(100, dtype=np.int64)
ROWS = np.repeat(KEYS[:, None], 4, 1).astype(np.float32)
owners = _table.owners(KEYS, NODES)


def shard(folder: object, node: int, nodes: int = NODES) -> Table:
    """Returns an empty shard in a group of its own, as the job of a node makes it."""
    group = _table.Group.create(f"{folder}/{secrets.token_hex(4)}-n{node}", secrets.token_hex(16))
    group.open_writer()
    initializer = {"kind": "zeros", "a": 0.0, "b": 0.0, "seed": 1, "salt": 0}
    uuid = secrets.token_hex(16)
    group.create_table(
        name="t", uuid=uuid, dim=4, key_limit=0, max_rows=0, initializer=initializer, node=node, nodes=nodes
    )
    group.bind_optimizer(0, "adagrad", [0.1], False)
    path = f"{group.info()['path']}/t"
    group.close_writer()
    return Table.open(path, "r+")


@pytest.fixture
def shards(folder):
    """The shards of all nodes, with all keys."""
    tables = [shard(folder, node) for node in range(NODES)]
    for node, table in enumerate(tables):
        is_owned = owners == node
        table.assign(KEYS[is_owned], ROWS[is_owned], [ROWS[is_owned] + 1])
    return tables


def test_a_shard_says_which_it_is(shards, create):
    for node, table in enumerate(shards):
        assert table.stats()["shard"] == f"node {node} of {NODES}"
        assert f"shard: node {node} of {NODES}" in repr(table)
    complete_table = create()
    assert complete_table.stats()["shard"] is None
    assert "shard" not in repr(complete_table)


def test_keys_of_other_nodes_are_neither_looked_up_nor_written(shards):
    table, foreign_key = shards[0], KEYS[owners == 2][:1]
    message = f"rows of node 0 of {NODES} alone, and key {foreign_key[0]} is on node 2"
    config = table.config.optimizer
    assert config is None
    for action in (lambda: table.lookup(foreign_key), lambda: table.assign(foreign_key, ROWS[:1])):
        with pytest.raises(errors.InvalidArgumentError, match=message):
            action()
    is_present, _, _ = table.entries(foreign_key)
    assert not is_present.any()
    np.testing.assert_array_equal(table.lookup(KEYS[owners == 0]), ROWS[owners == 0])


def test_a_key_of_another_node_is_a_problem(shards):
    assert shards[1].verify().ok
    shards[1].shard = shards[0].shard
    assert shards[1].verify().problems == (f"a key is not one of node 0 of {NODES}",)


def test_files_of_all_shards_make_a_whole_table(shards, create, folder):
    complete_table = create(optimizer=optimizers.Adagrad(learning_rate=0.5, initial_accumulator_value=0.1))
    for node, table in enumerate(shards):
        path = table.save(f"{folder}/saved{node}")
        with pytest.warns(UserWarning, match=f"has the rows of node {node} of {NODES} alone"):
            assert complete_table.load_parameter_file(path) == (owners == node).sum()
    is_present, rows, (slot,) = complete_table.entries(KEYS)
    assert is_present.all()
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(slot, ROWS + 1)


def test_a_whole_file_gives_a_shard_its_own_keys(create, folder):
    complete_table = create("t", optimizer=optimizers.Adagrad(learning_rate=0.5, initial_accumulator_value=0.1))
    complete_table.assign(KEYS, ROWS)
    complete_table.save(f"{folder}/saved")
    for node in range(NODES):
        table = shard(folder, node)
        assert table.restore(f"{folder}/saved") == (owners == node).sum()
        assert sorted(table.keys()) == KEYS[owners == node].tolist()


def test_a_shards_file_restores_that_shard_alone(shards, create, folder, recwarn):
    shards[1].save(f"{folder}/saved")
    keys_before = sorted(shards[1].keys())
    shards[1].erase(keys_before[:3])
    shards[1].restore(f"{folder}/saved")
    assert sorted(shards[1].keys()) == keys_before
    assert not recwarn.list
    other_tables = (shards[0], shard(folder, 1, 4), create("t", optimizer=None))
    for other_table in other_tables:
        rows = len(other_table)
        with pytest.raises(errors.StateError, match=f"has the rows of node 1 of {NODES} alone"):
            other_table.restore(f"{folder}/saved")
        assert len(other_table) == rows
