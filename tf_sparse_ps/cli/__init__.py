"""The command line of `tf-sparse-ps`. Only `publish` imports TensorFlow.

- `main`: finds the module of a command and runs it. `command`: what all commands share.
- `run`, `checkpoint`, `publish`, `follow`: one module for each command or family of commands.
"""

from tf_sparse_ps.cli.main import main

__all__ = ["main"]
