"""The store for programs without TensorFlow: tables, steps and reads of several, scans, sparse-parameter files."""

from tf_sparse_ps.table.scan import Block, Changes, Report, Scan
from tf_sparse_ps.table.several_tables import Update, read, step
from tf_sparse_ps.table.table import Table

__all__ = ["Block", "Changes", "Report", "Scan", "Table", "Update", "read", "step"]
