"""Another process deletes a group's folder and makes it again while this process has the group open."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from store_support import ones, run_child

from tf_sparse_ps import errors, optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table

# Another job makes a group of the same name, and prints its content at the end.
_OTHER_JOB = """
import numpy as np
from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table

adagrad = optimizers.Adagrad(learning_rate=1.0)
table = Table.create({path!r}, TableConfig("user", 64, initializer="zeros", optimizer=adagrad))
table.apply_gradients([1, 2], np.ones((2, 64), np.float32))
"""

# The writer of the first job continues. It runs in a process of its own, which a signal may end.
_WRITER = """
import shutil
import subprocess
import sys
import numpy as np
from tf_sparse_ps import errors, optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table

folder = {folder!r}
adagrad = optimizers.Adagrad(learning_rate=1.0)
table = Table.create(folder + "/user", TableConfig("user", 64, initializer="zeros", optimizer=adagrad))
table.apply_gradients([1], np.ones((1, 64), np.float32))
shutil.rmtree(folder)
subprocess.run([sys.executable, "-c", {other!r}], check=True)
keys = np.arange(100_000)
for attempt in (
    lambda: table.assign(keys, np.ones((len(keys), 64), np.float32)),
    lambda: table.apply_gradients(keys, np.ones((len(keys), 64), np.float32)),
    lambda: table.bind_optimizer(optimizers.Adam(learning_rate=1.0), replace=True),
    lambda: table._group.create_table(
        name="user2", uuid="a" * 32, dim=4, key_limit=0, max_rows=0, initializer=table.core_initializer()
    ),
):
    try:
        attempt()
    except errors.DamagedFileError as error:
        assert "was replaced by another file while it was in use" in str(error), error
        print("refused")
print(table.step, len(table), sorted(table.keys().tolist()))
"""


def test_a_live_writer_leaves_a_group_made_anew_alone(folder):
    group = f"{folder}/group"
    output = run_child(_WRITER.format(folder=group, other=_OTHER_JOB.format(path=f"{group}/user"))).stdout
    assert output.splitlines() == [*["refused"] * 4, "1 1 [1]"]
    with Table.open(f"{group}/user", "r+") as table:
        assert table.verify().ok
        np.testing.assert_array_equal(np.sort(table.keys()), [1, 2])
        assert table.stats()["optimizer"]["kind"] == "adagrad"
        assert table.stats()["group_bytes"] < 4 << 20


def test_what_is_opened_is_the_group_that_is_there_now(create, folder):
    old = create(optimizer=optimizers.Adagrad(learning_rate=1.0))
    old.apply_gradients([7], ones(1))
    shutil.rmtree(f"{folder}/group")
    with pytest.raises(errors.NotFoundError):
        Table.open(old.path)
    run_child(_OTHER_JOB.format(path=old.path))
    with Table.open(old.path) as new:
        np.testing.assert_array_equal(np.sort(new.keys()), [1, 2])
        assert new.uuid != old.uuid
    np.testing.assert_array_equal(old.keys(), [7])
    with pytest.raises(errors.TableExistsError):
        Table.create(old.path, TableConfig("user", 64))
