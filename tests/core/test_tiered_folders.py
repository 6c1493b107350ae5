"""Folders of tiered tables on a disk: a refused table leaves none, and a deleted folder is reported by name."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError

DIM, BATCH = 256, 1000


def config(disk: Path, memory: str) -> tsps.TableConfig:
    return tsps.TableConfig(
        "t", DIM, optimizer=tsps.optimizers.SGD(learning_rate=0.1), storage=tsps.Tiered(disk, memory=memory)
    )


def test_a_refused_table_leaves_no_folder_on_the_disk(tmp_path: Path, folder: str) -> None:
    with pytest.raises(InvalidArgumentError, match="has no room"):
        tsps.Table.create(f"{folder}/group/t", config(tmp_path, "64KiB"))
    assert not os.listdir(tmp_path)


@pytest.fixture
def evicted(tmp_path: Path, folder: str) -> tsps.Table:
    """A table with most rows on a disk, in `tmp_path / "disk"`."""
    table = tsps.Table.create(f"{folder}/group/t", config(tmp_path / "disk", "20MiB"))
    for start in range(0, 30 * BATCH, BATCH):
        table.apply_gradients(np.arange(start, start + BATCH), np.ones((BATCH, DIM), np.float32))
    return table


def test_a_folder_that_is_removed_beside_its_table_is_not_called_damage(evicted: tsps.Table, tmp_path: Path) -> None:
    assert evicted.stats()["rows_on_disk"] > 0
    shutil.rmtree(tmp_path / "disk")
    keys = np.arange(30 * BATCH)
    message = r"(?s)disk.*was removed.*newest checkpoint"
    for use in (lambda: evicted.lookup(keys[:100]), lambda: evicted.keys()):
        with pytest.raises(NotFoundError, match=message):
            use()
    report = evicted.verify()
    assert not report.ok
    assert re.search(message, report.problems[0])


def test_the_bytes_of_a_group_include_those_of_its_tiered_table(evicted: tsps.Table) -> None:
    stats = evicted.stats()
    assert 0 < stats["bytes"] <= stats["group_bytes"]
