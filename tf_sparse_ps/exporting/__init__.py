"""Exports models to served versions (`serving/version.py`).

- `exporter`: `tsps.export`, which waits until the version is written.
- `publisher`: writes versions in the background, for `tsps.callbacks.Export`.
- `captured_tables`: the tables of a model as of one step; `table_plan`: how each is written.
- `shard_collection`: brings the rows of sharded tables to the rank that writes.
- `checkpoint_export`: exports a checkpoint, for `tf-sparse-ps publish`.
- `plain_model`: SavedModels without custom ops.
- `saved_model`: the graph and the dense weights of a version.
"""
