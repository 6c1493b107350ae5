"""The peers of tf_sparse_ps: `Embedding` and `EmbeddingCollection`."""

from __future__ import annotations

import tf_sparse_ps as tsps
from benchmarks import feature_sizes, layers, rules
from benchmarks.peers import Calls, Work, tensorflow_work


def one_table(work: Work, rule: str, dtype: str = "float32", policy: str = "float32") -> Calls:
    """Makes the calls of lookup and step, on an unbounded table that has all rows.

    Args:
        work: The work.
        rule: "adagrad" or "rowwise_adagrad".
        dtype: The dtype of the rows.
        policy: The dtype policy of the layer.
    """
    tensorflow_work.set_threads(work.threads)
    table = tsps.TableConfig("peer", work.dim, dtype=dtype)
    layer = tsps.Embedding(None, work.dim, table=table, dtype=policy)
    layer.build(None)
    sparse = tsps.optimizers.RowwiseAdagrad() if rule == "rowwise_adagrad" else None
    optimizer = tsps.DistributedOptimizer(rules.adagrad(), sparse_optimizer=sparse)
    return tensorflow_work.calls(layer, optimizer, work, tensorflow_work.all_rows(work))


def many_tables(work: Work, kind: str, vocabulary: str) -> Calls:
    """Makes the calls of lookup and step, on many tables.

    Args:
        work: The work.
        kind: "collection", or "separate" layers.
        vocabulary: The tables are "bounded" or "unbounded".
    """
    tensorflow_work.set_threads(work.threads)
    make = layers.Collection if kind == "collection" else layers.separate_layers
    sizes = feature_sizes.Sizes(work.ids[0].shape[1], (work.dim,))
    layer = make(sizes, work.rows if vocabulary == "bounded" else None)
    layer.build(work.ids[0].shape)
    return tensorflow_work.calls(layer, rules.ours(), work, tensorflow_work.all_batches(work))
