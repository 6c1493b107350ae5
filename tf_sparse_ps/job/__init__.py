"""This process's part of a job: its rank and node, its group of tables, and the tables that layers use."""

from tf_sparse_ps.job.job import Job, current, made
from tf_sparse_ps.job.table_binding import TableBinding

__all__ = ["Job", "TableBinding", "current", "made"]
