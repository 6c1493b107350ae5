"""What a table is: its width, its keys, its initial values. Validated when made; free of TensorFlow."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import constraints, device_cache, initializers, tiered
from tf_sparse_ps.config import placement as placement_lib
from tf_sparse_ps.config.device_cache import DeviceCache
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.config.plain_numbers import make_plain
from tf_sparse_ps.errors import UnsupportedError

MAX_DIM = 65536
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
COMBINERS = ("sum", "mean", "sqrtn")
DTYPES = ("float32", "bfloat16", "float16")
ROUNDINGS = ("stochastic", "nearest")


def _positive_integer(name: str, value: Any) -> None:
    # The words are those of keras.layers.Embedding.
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value} (of type {type(value).__name__})."
        )


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """A table.

    Attributes:
      name: Its folder in the group: letters, digits, `.`, `_`, `-`, at most 128, not starting with a dot.
      dim: Numbers per row, 1 to 65536.
      max_rows: The table refuses to grow beyond; None: no limit but room.
      dtype: Of the rows in memory and in files: "float32", or "bfloat16" or "float16" for half the memory. Lookups give
        float32, updates are computed in float32, and the optimizer's slots are float32 always.
      rounding: How an updated row becomes one of 16 bits. "stochastic": up or down, so that what is expected is the
        value itself; which of them follows from seed, key, step and position alone. "nearest": steps smaller than half
        of the last place change nothing, and training stalls. Without effect on float32.
      initializer: A Keras initializer, as string, dict or object; see `tf_sparse_ps.initializers`.
      optimizer: The update rule (`tsps.optimizers.SGD`, ...), or None: bound by the optimizer that trains the table.
      constraint: Applied to each row that a step touches, after its update: NonNeg, MaxNorm(axis=1), UnitNorm(axis=1)
        or MinMaxNorm(axis=1) of Keras, as string, dict or object; see `tf_sparse_ps.constraints`.
      seed: Of the initial values; None: drawn when the table is made, in a job by rank 0.
      admission, eviction: Not in this version; must be None.
      key_limit: Keys are 0 .. key_limit - 1; None: every int64 is a key.
      storage: Where the rows are: "memory", or a `tsps.Tiered`, for tables larger than memory.
      placement: On which machines of a job the rows are: "replicated", all of them on each, or a `tsps.Sharded`, for
        tables larger than a machine. Of layers; without effect on one machine.
      cache: None, or a `tsps.DeviceCache`: rows that are used often stay on a device. Of layers, of one process.
      metadata: Planes that the table keeps for every row beside the row and the slots (`tsps.MetadataPlane`); of
        `tsps.Table`, not of layers.

    Raises:
      ValueError: A field that cannot work, with the reason.
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
    admission: None = None
    eviction: None = None
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
        for name in ("admission", "eviction"):
            if getattr(self, name) is not None:
                raise UnsupportedError(f"`{name}` is not supported yet. Received: {name}={getattr(self, name)!r}")
        if self.seed is not None and (not isinstance(self.seed, int) or not 0 <= self.seed < 2**63):
            raise ValueError(f"`seed` must be an integer of 0 .. 2**63 - 1. Received: seed={self.seed!r}")
        if self.optimizer is not None and not isinstance(self.optimizer, optimizers.RowOptimizer):
            raise ValueError(f"`optimizer` must be one of tsps.optimizers or None. Received: {self.optimizer!r}")
        planes = [plane for plane in self.metadata if isinstance(plane, MetadataPlane)]
        names = {plane.name for plane in planes} - {"embedding", "key", "changed"}
        if not isinstance(self.metadata, tuple) or len(names) != len(self.metadata):
            raise ValueError(
                "`metadata` must be a tuple of tsps.MetadataPlane, none of them named as another one, or embedding, "
                f"key or changed. Received: metadata={self.metadata!r}"
            )
        object.__setattr__(self, "storage", tiered.get(self.storage))
        object.__setattr__(self, "placement", placement_lib.get(self.placement))
        object.__setattr__(self, "cache", device_cache.get(self.cache))
        self.resolved_initializer()
        self.resolved_constraint()

    def resolved_initializer(self) -> initializers.Resolved:
        """The initializer as the core knows it."""
        return initializers.resolve(self.initializer, dim=self.dim, key_limit=self.key_limit)

    def resolved_constraint(self) -> constraints.Resolved | None:
        """The constraint as the store knows it, or None."""
        return constraints.resolve(self.constraint)

    def get_config(self) -> dict[str, Any]:
        """A JSON-serialisable dict for `from_config`."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "_"}
        config["initializer"] = initializers.serialize(self.initializer)
        config["optimizer"] = optimizers.serialize(self.optimizer)
        config["constraint"] = constraints.serialize(self.constraint)
        config["storage"] = tiered.serialize(self.storage)
        config["placement"] = placement_lib.serialize(self.placement)
        config["cache"] = device_cache.serialize(self.cache)
        config["metadata"] = [plane.for_core() for plane in self.metadata]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """The inverse of `get_config`."""
        metadata = tuple(map(MetadataPlane.from_core, config.get("metadata", ())))
        return cls(**{**config, "optimizer": optimizers.get(config.get("optimizer")), "metadata": metadata})

    def equals(self, other: TableConfig) -> bool:
        """Whether both describe one table. Objects of Keras in them, such as schedules, are equal if they look equal.

        Keras's learning-rate schedules and constraints compare by identity, and `from_config` makes new ones.
        """
        if self == other:
            return True
        try:
            return self.get_config() == other.get_config()
        except (ValueError, TypeError):  # a rule or a function that has no serialized form
            return False

    def hash(self) -> str:
        """Equal on all ranks that train the same table: what `binding` compares. 16 hex digits."""
        resolved = self.resolved_initializer()
        facts = [self.name, self.dim, self.max_rows, self.key_limit, self.seed, resolved.kind, resolved.a, resolved.b]
        if self.optimizer is not None:
            facts += [self.optimizer.kind, list(self.optimizer.slot_init)]
        facts += [plane.for_core() for plane in self.metadata]
        facts += [self.dtype, self.rounding]
        if (constraint := self.resolved_constraint()) is not None:
            facts += constraint.parameters
        if isinstance(self.placement, placement_lib.Sharded):
            facts.append(self.placement.get_config())
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """A feature of an `EmbeddingCollection`.

    Attributes:
      table: The table its ids are looked up in. Features with equal configurations share one table.
      combiner: "sum", "mean" or "sqrtn" reduces the last dimension of the ids to one vector; None keeps one per id.
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
        """A JSON-serialisable dict for `from_config`."""
        return {"table": self.table.get_config(), "combiner": self.combiner}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """The inverse of `get_config`."""
        return cls(TableConfig.from_config(config["table"]), combiner=config["combiner"])
