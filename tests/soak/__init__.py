"""A soak test: one process that calls `fit` 300 times must not grow. `python -m tests.soak --help`."""
