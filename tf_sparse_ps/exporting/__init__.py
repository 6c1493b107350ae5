"""Exports models to served versions (`serving/version.py`).

- `exporter`: `tsps.export`.
- `saved_model`: the graph and the dense weights of a version.
- `table_content`: what an export writes of a table: all rows, or what has changed since a version.
"""
