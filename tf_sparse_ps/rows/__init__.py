"""Rows get in and out of tables.

- `convert`: replaces the embedding layers of a Keras model. `transfer`: writes rows into the table of a layer.
- `exporting`, `importing`: write rows to files that other programs can read, and read such files. They need no
  TensorFlow.
- `opening`, `sources`: rows of a table, wherever they are; `selection`: which of them are taken; `facts`: what files
  say about the table.
- `targets`: what rows are imported into; `weight_files`: rows in files of models.
- `row_files`: what the formats have in common; `parquet_files`, `npz_files`, `csv_files`, `formats`: the formats.
"""

from tf_sparse_ps.rows.exporting import export_rows
from tf_sparse_ps.rows.importing import import_rows

__all__ = ["export_rows", "import_rows"]
