"""The store for programs without TensorFlow: tables, scans of them, sparse-parameter files."""

from tf_sparse_ps.table.table import Changes, Report, Scan, Table

__all__ = ["Changes", "Report", "Scan", "Table"]
