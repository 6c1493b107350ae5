"""`tf-sparse-ps run`: starts the ranks of a job, one launcher on each machine. Needs no TensorFlow.

The launchers of a job meet in a key-value store that node 0's serves (`meeting.py`); each starts the ranks of its
machine (`ranks.py`), shows what is to be seen of them (`output.py`), and ends them when one fails, anywhere
(`supervision.py`).
"""

from tf_sparse_ps.launch.command_line import main

__all__ = ["main"]
