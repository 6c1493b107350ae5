"""The launcher that started this process as one of several. Environment variables reveal it. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch of several processes, including this one.

    Attributes:
      by: The name of the launcher.
      variable: The environment variable that contains the number of processes.
      size: The number of processes.
      on_one_machine: Whether all processes are on this machine, as far as the environment shows.
    """

    by: str
    variable: str
    size: int
    on_one_machine: bool

    def __str__(self) -> str:
        """Returns a clause for messages."""
        return f"{self.by} has started {self.size} processes, including this one ({self.variable}={self.size})"


# The name of a launcher; the variable that contains its number of processes; a second variable, and the value that it
# has if all processes are on this machine (None: the number of processes). A launcher that may start another one comes
# after it: mpirun within a Slurm allocation starts its daemons as a Slurm step, so its processes have that step's
# variables, too. SLURM_NTASKS is not used, because the script of a plain batch job also has it. PMIx sets no variable
# with a number, but Open MPI and Slurm, which use PMIx, do.
_Row = tuple[str, str, str, int | None]
_HOROVODRUN: _Row = ("horovodrun", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", None)
_LAUNCHERS: tuple[_Row, ...] = (
    ("tf-sparse-ps run", "TFSPS_SIZE", "TFSPS_LOCAL_SIZE", None),  # in a Horovod job it also sets horovodrun's
    _HOROVODRUN,
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", None),
    ("mpirun (MVAPICH2)", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", None),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", None),
    ("an MPI launcher", "PMI_SIZE", "MPI_LOCALNRANKS", None),
    ("srun (Slurm)", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", 1),
)


def find() -> Launch | None:
    """Returns the launch of this process; None if no launcher started it, or if it is the only process."""
    for row in _LAUNCHERS:
        size = _size(row)
        if size is not None:
            return _launch(row, size)
    return None


def find_horovodrun() -> Launch | None:
    """Returns the launch by `horovodrun --gloo` or `tf-sparse-ps run --collectives horovod`; None if there is none.

    Horovod cannot tell the two apart.
    """
    size = _size(_HOROVODRUN)
    return None if size is None else _launch(_HOROVODRUN, size)


def _size(row: _Row) -> int | None:
    """Returns the number of processes that a launcher has started; None if it has not started this process."""
    by_horovodrun = row == _HOROVODRUN
    return None if by_horovodrun and "HOROVOD_RANK" not in os.environ else _number(row[1])


def _launch(row: _Row, size: int) -> Launch | None:
    by, variable, second_variable, value_on_one_machine = row
    if value_on_one_machine is None:
        value_on_one_machine = size
    return Launch(by, variable, size, _number(second_variable) == value_on_one_machine) if size > 1 else None


def _number(variable: str) -> int | None:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return None
