"""The store for programs without TensorFlow: tables, steps and reads of several, scans, sparse-parameter files."""

from tf_sparse_ps.table.table import Block, Changes, Report, Scan, Table, Update, read, step

__all__ = ["Block", "Changes", "Report", "Scan", "Table", "Update", "read", "step"]
