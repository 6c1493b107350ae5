"""Keras layers over shared tables.

- `embedding`, `embedding_reduce`, `embedding_collection`: the public layers; `table_layer`: their base class.
- `row_source`: reads rows from shared memory, other machines or a device; `ids`, `bags`: convert inputs for lookups;
  `anchor`: the weight that stands for a table.
- `cached`: tables with a device cache; `sharded`: tables that are spread over machines.
- `rows`, `saving`, `table_asset`: save and load tables in files, checkpoints and SavedModels; `collective_calls` and
  `sharded_content`: do so for sharded tables, by all ranks together.
- `table_keys`: finds the ids that a model will look up for a batch, for `tsps.lookahead`.
"""

from tf_sparse_ps.layers.embedding import Embedding
from tf_sparse_ps.layers.embedding_collection import EmbeddingCollection
from tf_sparse_ps.layers.embedding_reduce import EmbeddingReduce

__all__ = ["Embedding", "EmbeddingCollection", "EmbeddingReduce"]
