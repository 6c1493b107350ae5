"""Rows get in and out of tables.

- `convert`: replaces the embedding layers of a Keras model.
"""
