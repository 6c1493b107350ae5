"""The command line of `tf-sparse-ps`. Only `publish` imports TensorFlow.

- `main`: finds the module of a command and runs it. `command`: what all commands share. `display`: what they print.
- `run`, `checkpoint`, `publish`, `follow`: these have one module for each command or family of commands.
- `export`, `import`: rows in files.
- `ls`, `clean`: the groups on this machine, which `groups` describes.
- `top`, `top_view`, `metrics`: what jobs do now, from the counters of their ranks (`tf_sparse_ps.monitoring`).
- `inspect`, `verify`, `get`, `diff`: any path. `objects` finds out what it is, `contents` reads its rows, `histograms`
  counts and `comparing` compares them.
- `plan`: a job before its first run.
- `doctor`: `software_checks`, `machine_checks` and `disk_check` make `checks`.
- `schemas/*.json`: the JSON that commands print.
"""

from tf_sparse_ps.cli.main import main

__all__ = ["main"]
