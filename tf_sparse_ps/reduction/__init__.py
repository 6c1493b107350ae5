"""Reducing gradients: the gradients of all ranks become one, and the tables make a step.

- `gradients`: separates gradients of tables from dense ones; `dense_mean`: the mean of dense gradients.
- `sparse_gradient`, `sparse_reducer`, `sparse_reducers`: one gradient per key, and the paths it can take between ranks.
- `sparse_step`: the step of all tables; `cached_step`: a step of tables with rows on devices.
- `node_exchange`: the node's shared memory; `row_pull`, `rows_ahead`: rows of other nodes, in time or early.
- `clipping`, `rank_weight`: gradient clipping, and ranks that count less.
- `handshake`: what ranks agree on before the first step; `agreement`: what they compare in each step;
  `optimizer_identity`: which optimizer the slots of a table belong to.
"""
