"""`verify`: reads all of a checkpoint and checks that its parts fit together. Needs no TensorFlow."""

from __future__ import annotations

from pathlib import Path

from tf_sparse_ps.checkpoints import array_file, stored_checkpoint
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.table.progress import bar


def verify(path: Path) -> StoredCheckpoint:
    """Reads all files of a checkpoint, compares checksums, and the steps of tables with that of the dense weights.

    Args:
      path: The checkpoint's folder on this machine.

    Raises:
      NotFoundError, DamagedFileError, UnsupportedError: As `stored_checkpoint.check`.
      StateError: Parts of the checkpoint are of different steps.
    """
    with bar(0, f"check {path.name}") as progress:
        checkpoint = stored_checkpoint.check(path, lambda _, n: progress.update(n))
    content = checkpoint.manifest
    for number in range(len(content.tables)):
        StoredRows(checkpoint, number)  # or it raises
    for entry in content.files:
        if entry.name.endswith(".npz"):
            facts, _ = array_file.read(path / entry.name)
            if (stamp := {name: facts.get(name) for name in content.stamp}) != content.stamp:
                raise StateError(f"{path / entry.name} is of {stamp}, and the other parts of {content.stamp}")
    return checkpoint
