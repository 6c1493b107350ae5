"""Served versions of models: their tables are immutable files, which any number of processes map.

Only `load` needs TensorFlow.

- `serving_table`: `ServingTable`, which looks up rows.
- `table_files`: writes the files of a table.
- `version`: the folder of a version and its manifest; `version_builder`: makes one, from one before it.
- `layer_plan`: which files of a table are merged; `base_writer`: merges all of them while versions appear.
- `retention`: which versions are removed.
- `follow`, `upload` and `sources`: copies versions from and to elsewhere, for `tf-sparse-ps follow`.
- `loaded_model`: `load`, the newest version of a model in TensorFlow.
"""

from tf_sparse_ps.serving.loaded_model import ServedModel, load
from tf_sparse_ps.serving.serving_table import ServingTable

__all__ = ["ServedModel", "ServingTable", "load"]
