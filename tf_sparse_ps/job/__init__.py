"""This process's part of a job.

- `job`: `Job`, which joins `identity` (rank and node), `node_group` (the node's tables) and `job_tables`.
- `table_binding`, `cached_binding`: a layer's table in this process; `table_lifetime`: when it is freed.
- `table_seeds`: the seeds and salts of initial values.
- `session`: how the ranks of a node coordinate outside of steps; `job_end`: what happens to the tables at the end.
- `undecided_step`: publishes or undoes a step that a killed run has written on some nodes only.
"""

from tf_sparse_ps.job.job import Job, current, made
from tf_sparse_ps.job.table_binding import TableBinding

__all__ = ["Job", "TableBinding", "current", "made"]
