"""The dense variables of a checkpoint, and their values on all ranks.

Most are equal on all ranks. Those that are not (statistics of normalisation, seeds, metrics) are kept for each rank:
`variables.npz` has rank 0's values, `rank-00001.npz` those of rank 1 that differ from them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import array_file, manifest
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import DamagedFileError, StateError, UnsupportedError
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.table.arrays import checksum

_SHOWN = 5


class Entry(NamedTuple):
    """A variable.

    Attributes:
      name: For messages; variables are told by their order.
      kind: "weight", "seed", "optimizer", "extra" or "metric".
      variable: The one of this process.
    """

    name: str
    kind: str
    variable: tf.Variable

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        shape = [int(size) for size in self.variable.shape]
        return {"name": self.name, "kind": self.kind, "dtype": self.variable.dtype.name, "shape": shape}


def collect(model: Any, optimizer: Any, extra: Mapping[str, Any]) -> list[Entry]:
    """All variables of a model that are no tables', of its optimizer, and others, in a fixed order; metrics last.

    Raises:
      UnsupportedError: One has no numbers.
      StateError: The optimizer trains a variable that is none of the model's.
    """
    metrics = _keras.metric_variables(model)
    of_metrics = {id(one) for one in metrics}
    seeds = _keras.seed_variables(model)
    of_seeds = {id(one) for one in seeds}
    weights = [
        one
        for one in _keras.all_variables(model)
        if id(one) not in of_metrics and id(one) not in of_seeds and binding_of(one) is None
    ]
    known = {id(one) for one in (*_keras.all_variables(model), *extra.values())}
    for one in optimizer.trained_variables:
        if id(one) not in known:
            raise StateError(
                f"the optimizer trains {_keras.variable_name(one)!r}, which is no variable of model {model.name!r}: "
                "it would be missing in the checkpoint. Give Checkpointer the model that has all of them, or name it "
                "in extra={...}"
            )
    entries = [Entry(_keras.variable_name(one), "weight", _keras.tf_variable(one)) for one in weights]
    entries += [Entry(_keras.variable_name(one), "seed", _keras.tf_variable(one)) for one in seeds]
    entries += [Entry(one.name, "optimizer", one) for one in _keras.optimizer_state(optimizer.inner_optimizer)]
    entries += [Entry(name, "extra", _keras.tf_variable(one)) for name, one in extra.items()]
    entries += [Entry(_keras.variable_name(one), "metric", _keras.tf_variable(one)) for one in metrics]
    for entry in entries:
        dtype = entry.variable.dtype
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex):
            raise UnsupportedError(f"variable {entry.name!r} is of {dtype.name}: checkpoints have numbers only")
    return entries


class Metric(NamedTuple):
    """A stored variable of a metric."""

    facts: Mapping[str, Any]
    value: npt.NDArray[Any]


class Values:
    """The values of variables on all ranks, as of now. Every rank makes one, together.

    Attributes:
      first: Those of rank 0; nothing on ranks that do not keep them.
      others: For each rank but 0 what differs from rank 0's, with its place in the list of variables; likewise.
    """

    def __init__(self, entries: Sequence[Entry], ranks: Collectives, *, keep: bool) -> None:
        """Reads the values, and gathers those that differ.

        Args:
          entries: The variables.
          ranks: The job's.
          keep: This rank is to write them.

        Raises:
          ValueError: On all ranks: they have different variables.
        """
        # Copies: training goes on while they are written.
        values = [np.array(entry.variable.numpy()) for entry in entries]
        facts = [(entry.kind, str(value.dtype), value.shape) for entry, value in zip(entries, values, strict=True)]
        found = [checksum(value) for value in values]
        everyone = ranks.allgather_object((facts, found), "tsps.checkpoint.variables")
        for rank, (theirs, _) in enumerate(everyone):
            if theirs != everyone[0][0]:
                raise ValueError(
                    f"rank {rank} has {len(theirs)} variables, rank 0 has {len(everyone[0][0])}, or of other shapes: "
                    "the ranks' models are different"
                )
        different = {i for _, theirs in everyone for i, one in enumerate(theirs) if one != everyone[0][1][i]}
        gathered: list[list[tuple[int, npt.NDArray[Any]]]] = [[]]
        if different:
            own = [i for i in sorted(different) if ranks.rank == 0 or found[i] != everyone[0][1][i]]
            gathered = ranks.allgather_object([(i, values[i]) for i in own], "tsps.checkpoint.ranks")
        of_first = dict(gathered[0])
        self.first = [of_first.get(i, value) for i, value in enumerate(values)] if keep else []
        self.others = {rank: theirs for rank, theirs in enumerate(gathered) if rank and theirs} if keep else {}

    def write(self, folder: Path, stamp: Mapping[str, Any]) -> Iterator[str]:
        """Writes the files; yields the name of each when it is complete.

        Args:
          folder: Where.
          stamp: What each file says of the step that it is of.
        """
        array_file.write(folder / manifest.VARIABLES, list(enumerate(self.first)), stamp)
        yield manifest.VARIABLES
        for rank, different in self.others.items():
            name = _file_of(rank)
            array_file.write(folder / name, different, {**stamp, "rank": rank})
            yield name


class Stored:
    """The dense variables of a checkpoint."""

    def __init__(
        self, folder: Path, facts: Sequence[Mapping[str, Any]], stamp: Mapping[str, Any], ranks: int, names: set[str]
    ) -> None:
        """Reads nothing.

        Args:
          folder: Of the checkpoint.
          facts: Of each variable, `Entry.facts`.
          stamp: What the files are expected to say of the step that they are of.
          ranks: Of the job that saved it.
          names: Of all files of the checkpoint.
        """
        self._folder, self._facts, self._stamp, self._ranks, self._names = folder, facts, stamp, ranks, names

    def check(self, entries: Sequence[Entry]) -> None:
        """Compares with the variables that there are. Metrics are not compared.

        Raises:
          ValueError: They are others, with the first that differ.
        """
        own = [_comparable(entry.facts()) for entry in entries if entry.kind != "metric"]
        stored = [_comparable(one) for one in self._facts if one["kind"] != "metric"]
        if own == stored:
            return
        pairs = itertools.zip_longest(own, stored)
        names = [entry.name for entry in entries], [str(one["name"]) for one in self._facts]
        differ = [
            f"here {_named(names[0], i, one)}, stored {_named(names[1], i, other)}"
            for i, (one, other) in enumerate(pairs)
            if one != other
        ]
        raise ValueError(
            f"the model and its optimizer have {len(own)} dense variables, checkpoint {self._folder} has "
            f"{len(stored)}, or of other shapes: build the same model, and the same optimizer, as when it was saved. "
            + "; ".join(differ[:_SHOWN])
        )

    def restore(self, entries: Sequence[Entry], rank: int, size: int) -> list[Metric]:
        """Sets the variables of this rank, but for metrics.

        Args:
          entries: That `check` has compared.
          rank, size: This rank, and how many there are.

        Returns:
          The metrics' variables, in their order.

        Raises:
          StateError: A file is of another step.
          DamagedFileError: A file is not what was written.
        """
        kept: dict[int, npt.NDArray[Any]] = {}
        n_assigned = 0
        for number, array in self._arrays(manifest.VARIABLES):
            if number >= len(self._facts):
                raise DamagedFileError(
                    f"{self._folder / manifest.VARIABLES} is damaged: it has more variables than the manifest"
                )
            self._take(entries, number, array, kept)
            n_assigned += 1
        if n_assigned != len(self._facts):
            raise DamagedFileError(
                f"{self._folder / manifest.VARIABLES} is damaged: it has {n_assigned} of {len(self._facts)}"
            )
        own = _file_of(rank)
        if size == self._ranks and own in self._names:
            for number, array in self._arrays(own):
                self._take(entries, number, array, kept)
        elif size != self._ranks:
            self._warn_of_other_ranks(entries)
        return [Metric(self._facts[number], kept[number]) for number in sorted(kept)]

    def _take(
        self, entries: Sequence[Entry], number: int, array: npt.NDArray[Any], kept: dict[int, npt.NDArray[Any]]
    ) -> None:
        if self._facts[number]["kind"] == "metric":
            kept[number] = array
        else:
            variable = entries[number].variable
            variable.assign(array_file.typed(array, variable.dtype.as_numpy_dtype))

    def _warn_of_other_ranks(self, entries: Sequence[Entry]) -> None:
        numbers: set[int] = set()
        for name in sorted(self._names):
            if name.startswith("rank-"):
                numbers.update(number for number, _ in self._arrays(name))
        names = [self._facts[number]["name"] for number in sorted(numbers) if self._facts[number]["kind"] != "metric"]
        if names:
            more = ", ..." if len(names) > _SHOWN else ""
            warnings.warn(
                f"checkpoint {self._folder} is of {self._ranks} ranks, on which {', '.join(names[:_SHOWN])}{more} "
                "differed: all ranks go on with those of rank 0",
                stacklevel=4,
            )

    def _arrays(self, name: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        path = self._folder / name
        facts, arrays = array_file.read(path)
        found = {key: facts.get(key) for key in self._stamp}
        if found != self._stamp:
            raise StateError(
                f"{path} is of {_said(found)}, and the checkpoint's manifest of {_said(self._stamp)}: dense weights "
                "and tables are not of one step"
            )
        yield from arrays


def give_metrics(variables: Sequence[Any], stored: Sequence[Metric]) -> bool:
    """Gives metrics' variables stored values. False: they are others than were stored, and keep what they have."""
    own = [Entry("", "metric", _keras.tf_variable(one)) for one in variables]
    if [_comparable(one.facts()) for one in own] != [_comparable(one.facts) for one in stored]:
        return False
    for entry, one in zip(own, stored, strict=True):
        entry.variable.assign(array_file.typed(one.value, entry.variable.dtype.as_numpy_dtype))
    return True


def _named(names: Sequence[str], number: int, facts: tuple[Any, ...] | None) -> str:
    return "nothing" if facts is None else f"{names[number]} {facts[1]}{list(facts[2])}"


def _comparable(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    return facts["kind"], facts["dtype"], tuple(facts["shape"])


def _file_of(rank: int) -> str:
    return f"rank-{rank:05d}.npz"


def _said(stamp: Mapping[str, Any]) -> str:
    return f"step {stamp.get('step')} (of tables {stamp.get('table_step')}, checkpoint {stamp.get('id')})"
