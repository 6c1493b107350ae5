"""Reads from outside what jobs do: their counters, processes and tables. Imports no TensorFlow, and writes nothing.

- `own_groups`: the groups of this user. `processes`: which ranks are alive, and their memory.
- `readings`: the state of a group at one moment. `rates`: the differences of two readings.
- `watch`: the jobs of a folder at each interval, for `tf-sparse-ps top`.
- `job_watch`: the jobs of one launcher, for its last line.
- `row_samples`: norms and ages of some rows of a table, for `tsps.callbacks.TableMetrics`.
- `metric_names`, `exporter`: metrics for Prometheus. Only `exporter` needs the package prometheus_client.
"""
