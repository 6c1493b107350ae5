"""Checkpoints of a training job: tables, dense weights and optimizer as of one step. Begin with `checkpointer.py`."""
