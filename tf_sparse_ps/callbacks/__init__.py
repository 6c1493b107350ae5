"""Callbacks for `model.fit` on several ranks. Give each of them to `fit` on every rank, in the same order."""

from tf_sparse_ps.callbacks.broadcast import BroadcastVariables
from tf_sparse_ps.callbacks.checkpoint import Checkpoint
from tf_sparse_ps.callbacks.drain import Drain
from tf_sparse_ps.callbacks.equal_steps import EqualSteps
from tf_sparse_ps.callbacks.export import Export
from tf_sparse_ps.callbacks.metrics import MetricAverage
from tf_sparse_ps.callbacks.table_metrics import TableMetrics

__all__ = ["BroadcastVariables", "Checkpoint", "Drain", "EqualSteps", "Export", "MetricAverage", "TableMetrics"]
