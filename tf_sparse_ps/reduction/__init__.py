"""Reduces the gradients of all ranks to one gradient, and makes the step of the tables.

- `gradients`: separates gradients of tables from dense ones; `dense_mean`: the mean of dense gradients.
- `sparse_gradient`: the gradient of a table; `sparse_reducer`, `sparse_reducers`: reduce it to one gradient per key.
- `sparse_step`: the step of all tables; `cached_step`: a step of tables with rows on devices.
- `node_exchange`: merges gradients in the node's shared memory; `row_pull`, `rows_ahead`: pull rows from other nodes,
  during the lookup or one batch ahead.
- `clipping`: clips reduced gradients; `rank_weight`: the weight of a rank in the mean.
- `handshake`: makes the ranks agree before the first step; `agreement`: compares facts of the ranks in each step;
  `optimizer_identity`: records which optimizer made the slots of a table.
"""
