"""The store for programs without TensorFlow.

- `table`: `Table`, on top of `open_table` and `parameter_files` (sparse-parameter files, docs/format.md).
- `several_tables`: one step, read or scan of several tables; `scan`: the results of reading a whole table.
- `groups`: the groups that are open in this process; `path_claim`: one writer at a time for a path.
- `shards`: the part of a sharded table that a node has; `disk_folders`: the folders of rows on disk.
- `stored_policies`: the policies of a named job's tables; `newer_rows`: tables whose newest rows are on a device.
- `arrays`, `progress`: helpers.
"""

from tf_sparse_ps.table.scan import Block, Changes, Report, Scan
from tf_sparse_ps.table.several_tables import Update, read, step
from tf_sparse_ps.table.table import Table

__all__ = ["Block", "Changes", "Report", "Scan", "Table", "Update", "read", "step"]
