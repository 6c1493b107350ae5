"""The dense variables of a checkpoint, and their values on all ranks.

Most variables are equal on all ranks. Those that are not (statistics of normalization, seeds, metrics) are saved for
each rank: `variables.npz` holds rank 0's values, and `rank-00001.npz` those values of rank 1 that differ from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps._compat import _keras, _keras_state
from tf_sparse_ps.checkpoints import array_file, manifest, schema
from tf_sparse_ps.checkpoints.allowance import Allowance, Objection
from tf_sparse_ps.checkpoints.schema import comparable_facts
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import DamagedFileError, StateError, UnsupportedError
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.table.arrays import checksum
from tf_sparse_ps.training.distributed_optimizer import step_builder_of

_SHOWN = 5


class Entry(NamedTuple):
    """A variable.

    Attributes:
      name: Its name. Variables are identified by their order, or by their names (`schema.py`).
      kind: "weight", "seed", "optimizer", "extra" or "metric".
      variable: The variable of this process.
    """

    name: str
    kind: str
    variable: tf.Variable

    def facts(self) -> dict[str, Any]:
        """Returns what a manifest says of the variable."""
        shape = [int(size) for size in self.variable.shape]
        return {"name": self.name, "kind": self.kind, "dtype": self.variable.dtype.name, "shape": shape}


def collect(model: Any, optimizer: Any, extra: Mapping[str, Any]) -> list[Entry]:
    """Returns the dense variables of a model and its optimizer, and other variables, in a fixed order; metrics last.

    Raises:
      UnsupportedError: A variable does not hold numbers.
      StateError: The optimizer trains a variable that the model does not have.
    """
    metrics, seeds = _keras_state.metric_variables(model), _keras_state.seed_variables(model)
    not_weights = {id(variable) for variable in (*metrics, *seeds)}
    all_variables = _keras_state.all_variables(model)
    weights = [
        variable for variable in all_variables if id(variable) not in not_weights and binding_of(variable) is None
    ]
    known = {id(variable) for variable in (*all_variables, *extra.values())}
    for variable in step_builder_of(optimizer).variables:
        if id(variable) not in known:
            raise StateError(
                f"the optimizer trains {_keras.variable_name(variable)!r}, which is no variable of model "
                f"{model.name!r}: it would be missing in the checkpoint. Give Checkpointer the model that has all of "
                "them, or name it in extra={...}"
            )
    entries = [_entry(variable, "weight") for variable in weights]
    entries += [_entry(variable, "seed") for variable in seeds]
    entries += [Entry(slot.name, "optimizer", slot) for slot in _keras_state.optimizer_state(optimizer.inner_optimizer)]
    entries += [Entry(name, "extra", _keras.tf_variable(variable)) for name, variable in extra.items()]
    entries += [_entry(variable, "metric") for variable in metrics]
    for entry in entries:
        dtype = entry.variable.dtype
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex):
            raise UnsupportedError(f"variable {entry.name!r} is of {dtype.name}: checkpoints have numbers only")
    return entries


def _entry(variable: Any, kind: str) -> Entry:
    return Entry(_keras.variable_name(variable), kind, _keras.tf_variable(variable))


class Metric(NamedTuple):
    """A stored variable of a metric."""

    facts: Mapping[str, Any]
    value: npt.NDArray[Any]


class Values:
    """The values of variables on all ranks, as of now. Every rank makes one, together.

    Attributes:
      first: Rank 0's values; empty on ranks that do not keep them.
      others: For each other rank, the values that differ from rank 0's, with their places in the list of variables;
        empty on ranks that do not keep them.
    """

    def __init__(self, entries: Sequence[Entry], ranks: Collectives, *, keep: bool) -> None:
        """Reads the values, and gathers those that differ.

        Args:
          entries: The variables.
          ranks: The job's collectives.
          keep: Whether this rank writes the values.

        Raises:
          ValueError: On all ranks: they have different variables.
        """
        # Copies: training continues while they are written.
        values = [np.array(entry.variable.numpy()) for entry in entries]
        facts = [(entry.kind, str(value.dtype), value.shape) for entry, value in zip(entries, values, strict=True)]
        checksums = [checksum(value) for value in values]
        gathered = ranks.allgather_object((facts, checksums), "tsps.checkpoint.variables")
        first_facts, first_checksums = gathered[0]
        for rank, (rank_facts, _) in enumerate(gathered):
            if rank_facts != first_facts:
                raise ValueError(
                    f"rank {rank} has {len(rank_facts)} variables, rank 0 has {len(first_facts)}, or of other shapes: "
                    "the ranks' models are different"
                )
        differing = {
            i for _, rank_checksums in gathered for i, sum_ in enumerate(rank_checksums) if sum_ != first_checksums[i]
        }
        all_values: list[list[tuple[int, npt.NDArray[Any]]]] = [[]]
        if differing:
            numbers = [i for i in sorted(differing) if ranks.rank == 0 or checksums[i] != first_checksums[i]]
            all_values = ranks.allgather_object([(i, values[i]) for i in numbers], "tsps.checkpoint.ranks")
        first_values = dict(all_values[0])
        self.first = [first_values.get(i, value) for i, value in enumerate(values)] if keep else []
        self.others = {rank: array for rank, array in enumerate(all_values) if rank and array} if keep else {}

    def write(self, folder: Path, stamp: Mapping[str, Any]) -> Iterator[str]:
        """Writes the files; yields the name of each when it is complete.

        Args:
          folder: The folder to write to.
          stamp: Which step the files are of.
        """
        array_file.write(folder / manifest.VARIABLES, list(enumerate(self.first)), stamp)
        yield manifest.VARIABLES
        for rank, values in self.others.items():
            name = _rank_file_name(rank)
            array_file.write(folder / name, values, {**stamp, "rank": rank})
            yield name


class Stored:
    """The dense variables of a checkpoint.

    Attributes:
      match: Which stored variables those of the model are. Known after `check`.
    """

    def __init__(self, checkpoint: StoredCheckpoint) -> None:
        """Reads nothing."""
        content = checkpoint.manifest
        self._folder, self._facts, self._stamp = checkpoint.path, content.variables, content.stamp
        self._shown = checkpoint.shown
        self._n_ranks, self._file_names = content.ranks, content.file_names
        self.match = schema.VariableMatch({})

    def check(self, entries: Sequence[Entry], allowance: Allowance, classes: Collection[str]) -> list[Objection]:
        """Compares the stored variables with those of the model. Metrics are not compared.

        Args:
          entries: The variables of the model.
          allowance: The differences that are accepted.
          classes: The names that Keras gives to layers of the model's classes, without numbers.

        Returns:
          What is not accepted.
        """
        facts = [entry.facts() for entry in entries]
        self.match = schema.match_variables(facts, self._facts, allowance, classes, self._shown)
        return self.match.objections

    def initialized(self, entries: Sequence[Entry]) -> list[Any]:
        """Returns the weights and optimizer variables that are not restored. All ranks must have equal ones."""
        restored = set(self.match.numbers.values())
        synced = ("weight", "optimizer")
        return [entry.variable for i, entry in enumerate(entries) if i not in restored and entry.kind in synced]

    def restore(self, entries: Sequence[Entry], rank: int, size: int) -> list[Metric]:
        """Sets the variables of this rank, except for metrics and those that are initialized.

        Args:
          entries: The variables that `check` has compared.
          rank, size: This rank, and the number of ranks.

        Returns:
          The variables of metrics, in their order.

        Raises:
          StateError: A file is of another step.
          DamagedFileError: A file is not what was written.
        """
        metrics: dict[int, npt.NDArray[Any]] = {}
        n_read = 0
        for number, array in self._arrays(manifest.VARIABLES):
            if number >= len(self._facts):
                raise DamagedFileError(
                    f"{self._shown}/{manifest.VARIABLES} is damaged: it has more variables than the manifest"
                )
            self._take(entries, number, array, metrics)
            n_read += 1
        if n_read != len(self._facts):
            raise DamagedFileError(
                f"{self._shown}/{manifest.VARIABLES} is damaged: it has {n_read} of {len(self._facts)}"
            )
        rank_file = _rank_file_name(rank)
        if size == self._n_ranks and rank_file in self._file_names:
            for number, array in self._arrays(rank_file):
                self._take(entries, number, array, metrics)
        elif size != self._n_ranks:
            self._warn_of_other_ranks()
        return [Metric(self._facts[number], metrics[number]) for number in sorted(metrics)]

    def _take(
        self, entries: Sequence[Entry], number: int, array: npt.NDArray[Any], metrics: dict[int, npt.NDArray[Any]]
    ) -> None:
        if self._facts[number]["kind"] == "metric":
            metrics[number] = array
        elif number in self.match.numbers:
            variable = entries[self.match.numbers[number]].variable
            variable.assign(array_file.typed(array, variable.dtype.as_numpy_dtype))

    def _warn_of_other_ranks(self) -> None:
        numbers: set[int] = set()
        for name in sorted(self._file_names):
            if name.startswith("rank-"):
                numbers.update(number for number, _ in self._arrays(name))
        names = [self._facts[number]["name"] for number in sorted(numbers) if number in self.match.numbers]
        if names:
            more = ", ..." if len(names) > _SHOWN else ""
            warnings.warn(
                f"checkpoint {self._shown} was saved by {self._n_ranks} ranks, on which "
                f"{', '.join(names[:_SHOWN])}{more} differed. All ranks resume with the values of rank 0",
                stacklevel=4,
            )

    def _arrays(self, name: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        path = self._folder / name
        facts, arrays = array_file.read(path)
        stamp = {key: facts.get(key) for key in self._stamp}
        if stamp != self._stamp:
            raise StateError(
                f"{self._shown}/{name} is of {_described(stamp)}, and the checkpoint's manifest of "
                f"{_described(self._stamp)}: dense weights and tables are not of one step"
            )
        yield from arrays


def give_metrics(variables: Sequence[Any], stored: Sequence[Metric]) -> bool:
    """Gives variables of metrics their stored values.

    Returns:
      False: other variables were stored, and these keep their values.
    """
    entries = [Entry("", "metric", _keras.tf_variable(variable)) for variable in variables]
    if [comparable_facts(entry.facts()) for entry in entries] != [comparable_facts(metric.facts) for metric in stored]:
        return False
    for entry, metric in zip(entries, stored, strict=True):
        entry.variable.assign(array_file.typed(metric.value, entry.variable.dtype.as_numpy_dtype))
    return True


def _rank_file_name(rank: int) -> str:
    return f"rank-{rank:05d}.npz"


def _described(stamp: Mapping[str, Any]) -> str:
    return f"step {stamp.get('step')} (of tables {stamp.get('table_step')}, checkpoint {stamp.get('id')})"
