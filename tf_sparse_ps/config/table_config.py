"""`TableConfig` and `FeatureConfig`: the configurations of a table and of a feature that looks up ids in it.

Their fields are checked at construction. Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import constraints, initializers, optional, tiered
from tf_sparse_ps.config import placement as placement_lib
from tf_sparse_ps.config.admission import SKETCH, Admission
from tf_sparse_ps.config.device_cache import DeviceCache
from tf_sparse_ps.config.eviction import Eviction
from tf_sparse_ps.config.metadata import USE, MetadataPlane
from tf_sparse_ps.config.plain_numbers import make_plain
from tf_sparse_ps.errors import UnsupportedError

MAX_DIM = 65536
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
COMBINERS = ("sum", "mean", "sqrtn")
DTYPES = ("float32", "bfloat16", "float16")
ROUNDINGS = ("stochastic", "nearest")


def _positive_integer(name: str, value: Any) -> None:
    # The message has the words of keras.layers.Embedding.
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value} (of type {type(value).__name__})."
        )


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """The configuration of a table.

    Attributes:
      name: The name of the table's folder in the group: letters, digits, `.`, `_`, `-`, at most 128, not starting with
        a dot.
      dim: The number of elements per row, 1 to 65536.
      max_rows: The largest number of rows that the table may have: a step that would exceed it fails, unless the table
        evicts rows. None: only memory limits it.
      dtype: The type of the rows in memory and in files: "float32"; or "bfloat16" or "float16" for half the memory.
        Lookups return float32, updates are computed in float32, and the optimizer's slots are always float32.
      rounding: The way in which an updated row is rounded to 16 bits; float32 rows are not rounded. "stochastic": up or
        down, so that the expected result is the exact value; seed, key, step and position alone decide. "nearest": an
        update smaller than half of the last place changes nothing, so training stalls.
      initializer: A Keras initializer, as string, dict or object; see `tf_sparse_ps.config.initializers`.
      optimizer: The update rule (`tsps.optimizers.SGD`, ...). None: the optimizer that trains the table binds its rule.
      constraint: A constraint for each row that a step touches, applied after the update: NonNeg, MaxNorm(axis=1),
        UnitNorm(axis=1) or MinMaxNorm(axis=1) of Keras, as string, dict or object; see
        `tf_sparse_ps.config.constraints`.
      seed: The seed of the initial values. None: it is drawn when the table is made, in a job by rank 0.
      admission: A `tsps.Admission`: how often a key must occur before it gets a row. None: a key gets a row when it is
        first trained.
      eviction: A `tsps.Eviction`: the rows that the steps of the table evict. None: a row stays until it is erased.
      key_limit: The number of keys of a bounded table, 0 .. key_limit - 1. None: every int64 is a key.
      storage: The storage of the rows: "memory", or a `tsps.Tiered` for tables larger than memory.
      placement: The machines of a job that keep a row: "replicated" for all of them, or a `tsps.Sharded` for tables
        larger than a machine. Only layers use it; it has no effect on one machine.
      cache: A `tsps.DeviceCache`, which keeps rows that are used often on a device, or None. Only layers in a job of
        one process use it.
      metadata: The planes that the table keeps for every row, in addition to the row and the slots
        (`tsps.MetadataPlane`). Only `tsps.Table` has them, not layers.

    Raises:
      ValueError: A field is out of range. The message gives the reason.
    """

    name: str
    dim: int
    _: dataclasses.KW_ONLY
    max_rows: int | None = None
    dtype: str = "float32"
    rounding: str = "stochastic"
    initializer: Any = "uniform"
    optimizer: optimizers.RowOptimizer | None = None
    constraint: Any = None
    seed: int | None = None
    admission: Admission | None = None
    eviction: Eviction | None = None
    key_limit: int | None = None
    metadata: tuple[MetadataPlane, ...] = ()
    storage: tiered.Storage = "memory"
    placement: placement_lib.Placement = "replicated"
    cache: DeviceCache | None = None

    def __post_init__(self) -> None:
        make_plain(self, "dim", "max_rows", "key_limit", "seed")
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                "`name` must be 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'. "
                f"Received: name={self.name!r}"
            )
        _positive_integer("dim", self.dim)
        if self.dim > MAX_DIM:
            raise ValueError(f"`dim` must be at most {MAX_DIM}. Received: dim={self.dim}")
        for name in ("max_rows", "key_limit"):
            if getattr(self, name) is not None:
                _positive_integer(name, getattr(self, name))
        for name, known in (("dtype", DTYPES), ("rounding", ROUNDINGS)):
            if getattr(self, name) not in known:
                raise ValueError(f"`{name}` must be one of {known}. Received: {name}={getattr(self, name)!r}")
        if self.seed is not None and (not isinstance(self.seed, int) or not 0 <= self.seed < 2**63):
            raise ValueError(f"`seed` must be an integer of 0 .. 2**63 - 1. Received: seed={self.seed!r}")
        if self.optimizer is not None and not isinstance(self.optimizer, optimizers.RowOptimizer):
            raise ValueError(f"`optimizer` must be one of tsps.optimizers or None. Received: {self.optimizer!r}")
        planes = [plane for plane in self.metadata if isinstance(plane, MetadataPlane)]
        if planes[:1] == [USE]:  # of an existing table
            planes = planes[1:]
        names = {plane.name for plane in planes} - {"embedding", "key", "changed", USE.name}
        if not isinstance(self.metadata, tuple) or len(names) != len([p for p in self.metadata if p != USE]):
            raise ValueError(
                "`metadata` must be a tuple of tsps.MetadataPlane with different names, none of which is embedding, "
                f"key, changed or use. Received: metadata={self.metadata!r}"
            )
        object.__setattr__(self, "storage", tiered.get(self.storage))
        object.__setattr__(self, "placement", placement_lib.get(self.placement))
        object.__setattr__(self, "cache", optional.get(DeviceCache, "cache", self.cache))
        object.__setattr__(self, "admission", optional.get(Admission, "admission", self.admission))
        object.__setattr__(self, "eviction", optional.get(Eviction, "eviction", self.eviction))
        initializer = self.resolved_initializer()
        self.resolved_constraint()
        if self.eviction is not None:
            self._check_eviction(self.eviction, initializer)
        if self.admission is not None:
            self._check_admission(initializer)

    def _check_admission(self, initializer: initializers.Resolved) -> None:
        if not _NAME.fullmatch(self.name + SKETCH):
            raise ValueError(
                f"`name` must leave space for {SKETCH!r}, the end of the name of the table of counts. "
                f"Received: name={self.name!r}"
            )
        if self.cache is not None:
            raise UnsupportedError(
                f"table {self.name!r}: a table with a device cache cannot admit keys: the device trains rows before "
                "the host counts their keys. Leave out `admission` or `cache`"
            )
        if initializer.values is not None:
            raise ValueError(
                f"table {self.name!r}: the initializer {self.initializer!r} makes all rows at the start, so no key is "
                "left to be admitted. Leave out `admission`"
            )

    def _check_eviction(self, eviction: Eviction, initializer: initializers.Resolved) -> None:
        if self.cache is not None:
            raise UnsupportedError(
                f"table {self.name!r}: a table with a device cache cannot evict: rows that the device trains have "
                "newer uses there than the host knows. Leave out `eviction` or `cache`"
            )
        if initializer.values is not None and not eviction.custom_initializer:
            raise ValueError(
                f"table {self.name!r}: evicted rows would return as zeros, not with the values of the initializer "
                f"{self.initializer!r}. If that is right, set Eviction(custom_initializer=True)"
            )
        outside = [key for key in eviction.keep if self.key_limit is not None and not 0 <= key < self.key_limit]
        if outside:
            raise ValueError(
                f"table {self.name!r}: the eviction keeps key {outside[0]}, which is not in [0, {self.key_limit})"
            )
        if self.max_rows is not None and eviction.max_rows is not None and eviction.max_rows > self.max_rows:
            raise ValueError(
                f"table {self.name!r}: the eviction's max_rows={eviction.max_rows} exceeds the table's "
                f"max_rows={self.max_rows}. Give one of them"
            )

    @property
    def planes(self) -> tuple[MetadataPlane, ...]:
        """The metadata planes that the table has: `metadata`, and the use of rows if it evicts rows."""
        records_use = self.eviction is not None and USE not in self.metadata
        return (USE, *self.metadata) if records_use else self.metadata

    def policies(self) -> dict[str, Any]:
        """Returns the eviction and the admission, those that there are. Kept keys are represented by a hash.

        The result is JSON-serialisable.
        """
        eviction, admission = optional.serialize(self.eviction), optional.serialize(self.admission)
        if eviction is not None and eviction["keep"]:
            digest = hashlib.sha256(json.dumps(eviction["keep"]).encode()).hexdigest()[:8]
            eviction = {**eviction, "keep": f"{len(eviction['keep'])} keys ({digest})"}
        policies = {"eviction": eviction, "admission": admission}
        return {name: policy for name, policy in policies.items() if policy is not None}

    def eviction_for_core(self, nodes: int = 1) -> tuple[str, tuple[int, int, int], tuple[int, ...]]:
        """Returns the eviction in the core's form.

        Args:
          nodes: The number of machines that share the rows.

        Returns:
          The order of eviction, "" for none; unused_steps, max_rows on one machine, and half_life, 0 for None; and the
          kept keys.
        """
        if self.eviction is None:
            return "", (0, 0, 0), ()
        eviction = self.eviction
        if eviction.max_rows is None and self.max_rows is not None:
            eviction = dataclasses.replace(eviction, max_rows=self.max_rows)
        numbers = (eviction.unused_steps or 0, eviction.max_rows_of(nodes) or 0, eviction.half_life)
        return eviction.policy, numbers, eviction.keep

    def resolved_initializer(self) -> initializers.Resolved:
        """Returns the initializer in the core's form."""
        return initializers.resolve(self.initializer, dim=self.dim, key_limit=self.key_limit)

    def resolved_constraint(self) -> constraints.Resolved | None:
        """Returns the constraint in the store's form, or None."""
        return constraints.resolve(self.constraint)

    def get_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable dict for `from_config`."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "_"}
        config["initializer"] = initializers.serialize(self.initializer)
        config["optimizer"] = optimizers.serialize(self.optimizer)
        config["constraint"] = constraints.serialize(self.constraint)
        config["storage"] = tiered.serialize(self.storage)
        config["placement"] = placement_lib.serialize(self.placement)
        config["cache"] = optional.serialize(self.cache)
        config["admission"] = optional.serialize(self.admission)
        config["eviction"] = optional.serialize(self.eviction)
        config["metadata"] = [plane.for_core() for plane in self.metadata]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """Makes a configuration from the result of `get_config`."""
        metadata = tuple(map(MetadataPlane.from_core, config.get("metadata", ())))
        return cls(**{**config, "optimizer": optimizers.get(config.get("optimizer")), "metadata": metadata})

    def equals(self, other: TableConfig) -> bool:
        """Whether both configurations describe the same table. Keras objects are equal if their configurations are.

        `==` alone does not suffice: Keras's learning-rate schedules and constraints compare by identity, and
        `from_config` makes new ones.
        """
        if self == other:
            return True
        try:
            return self.get_config() == other.get_config()
        except (ValueError, TypeError):  # a rule or a function has no serialized form
            return False

    def facts(self) -> dict[str, str]:
        """Returns what is equal on all ranks that train the same table, as text by the name of the field."""
        resolved, constraint = self.resolved_initializer(), self.resolved_constraint()
        facts: dict[str, Any] = {
            "name": self.name,
            "dim": self.dim,
            "max_rows": self.max_rows,
            "key_limit": self.key_limit,
            "seed": self.seed,
            "initializer": [resolved.kind, resolved.a, resolved.b],
            "optimizer": self.optimizer and [self.optimizer.kind, list(self.optimizer.slot_init)],
            "metadata": [plane.for_core() for plane in self.metadata],
            "dtype": self.dtype,
            "rounding": self.rounding,
            "constraint": constraint and constraint.parameters,
            "placement": placement_lib.serialize(self.placement),
            "admission": optional.serialize(self.admission),
            "eviction": optional.serialize(self.eviction),
        }
        return {name: json.dumps(value) for name, value in facts.items()}


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """A feature of an `EmbeddingCollection`.

    Attributes:
      table: The configuration of the feature's table. Features with equal configurations share one table.
      combiner: "sum", "mean" or "sqrtn" to reduce the last dimension of the ids to one vector; None for one row per id.
    """

    table: TableConfig
    _: dataclasses.KW_ONLY
    combiner: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise ValueError(f"`table` must be a tsps.TableConfig. Received: {self.table!r}")
        if self.combiner is not None and self.combiner not in COMBINERS:
            raise ValueError(f"`combiner` must be one of {COMBINERS} or None. Received: combiner={self.combiner!r}")

    def get_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable dict for `from_config`."""
        return {"table": self.table.get_config(), "combiner": self.combiner}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """Makes a feature from the result of `get_config`."""
        return cls(TableConfig.from_config(config["table"]), combiner=config["combiner"])
