"""What must be a path on this machine refuses URLs: a folder named after the URL would be made instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.rows import export_rows, import_rows

URL = "s3://bucket/folder"
CONFIG = tsps.TableConfig("t", 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.save(URL),
        lambda table: export_rows(table, f"{URL}/rows.csv"),
        lambda table: import_rows("rows.npz", f"{URL}/rows.tfsps"),
        lambda _: import_rows(f"{URL}/rows.npz", "rows.tfsps"),
        lambda _: export_rows(URL, "rows.csv"),
        lambda _: tsps.Table.create(f"{URL}/t", CONFIG),
        lambda _: tsps.Table.open(f"{URL}/t"),
        lambda _: tsps.Tiered(URL, memory="1 GiB"),
        lambda _: tsps.ServingTable.open(URL),
        lambda _: tsps.serving.load(URL),
        lambda _: tsps.export(None, URL),
        lambda _: tsps.callbacks.Export(URL, every_steps=1),
        lambda _: tsps.callbacks.TableMetrics(URL),
    ],
)
def test_urls_are_refused(call: Callable[[Any], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", keys=[1], rows=np.ones((1, 2), np.float32))
    with (
        tsps.Table.create(tmp_path / "g" / "t", CONFIG) as table,
        pytest.raises(InvalidArgumentError, match=r"must be a path\. Received: the URL 's3://bucket/folder"),
    ):
        call(table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "rows.npz"]
