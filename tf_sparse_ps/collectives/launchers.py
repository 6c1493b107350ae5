"""Who started this process as one of several, by what its environment says. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Launch:
    """A start of several processes, this one among them.

    Attributes:
      by: What started them.
      variable: That says how many there are.
      size: How many.
      on_one_machine: All of them are on this machine, as far as the environment tells.
    """

    by: str
    variable: str
    size: int
    on_one_machine: bool

    def __str__(self) -> str:
        """For messages."""
        return f"{self.by} has started {self.size} processes, this one among them ({self.variable}={self.size})"


# Launcher; its number of processes; a second variable, and its value where all of them are on this machine (None: the
# number of processes). Those that start others come after what they may start: mpirun within a Slurm allocation starts
# its daemons as a Slurm step, whose variables its processes then have too. Not SLURM_NTASKS, which the script of a
# plain batch job has as well. PMIx tells no number in a variable; what starts by it, Open MPI or Slurm, does.
_Row = tuple[str, str, str, int | None]
_HOROVODRUN: _Row = ("horovodrun", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", None)
_LAUNCHERS: tuple[_Row, ...] = (
    ("tf-sparse-ps run", "TFSPS_SIZE", "TFSPS_LOCAL_SIZE", None),  # of a Horovod job it sets horovodrun's, too
    _HOROVODRUN,
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", None),
    ("mpirun (MVAPICH2)", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", None),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", None),
    ("an MPI launcher", "PMI_SIZE", "MPI_LOCALNRANKS", None),
    ("srun (Slurm)", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", 1),
)


def find() -> Launch | None:
    """The start that made this process one of several; None: it was started by itself, or as the only one."""
    for row in _LAUNCHERS:
        size = _size(row)
        if size is not None:
            return _launch(row, size)
    return None


def find_horovodrun() -> Launch | None:
    """As `find`, of `horovodrun --gloo`, or a Horovod job of `tf-sparse-ps run`, which looks the same to Horovod."""
    size = _size(_HOROVODRUN)
    return None if size is None else _launch(_HOROVODRUN, size)


def _size(row: _Row) -> int | None:
    """How many processes a launcher has started; None: it has not."""
    by_horovodrun = row == _HOROVODRUN
    return None if by_horovodrun and "HOROVOD_RANK" not in os.environ else _number(row[1])


def _launch(row: _Row, size: int) -> Launch | None:
    by, variable, second, on_one_machine = row
    one = size if on_one_machine is None else on_one_machine
    return Launch(by, variable, size, _number(second) == one) if size > 1 else None


def _number(variable: str) -> int | None:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return None
