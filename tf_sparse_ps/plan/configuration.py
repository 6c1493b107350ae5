"""`PlanConfig`: the job that is planned, read from JSON and checked field by field."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import Sharded, TableConfig, Tiered
from tf_sparse_ps.config import placement as placement_lib
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.plan.costs import Costs

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]I?B|B?)", re.IGNORECASE)
_LEAST_TIER = 16 << 20  # of memory: less leaves no space for rows beside buffers
# These fields of a table are those of tsps.TableConfig.
_TABLE_FIELDS = ("name", "dim", "dtype", "optimizer", "key_limit", "max_rows", "storage", "placement", "cache")
_POLICY_FIELDS = ("admission", "eviction")
_OWN_FIELDS = ("rows", "ids_per_sample", "zipf")


@dataclasses.dataclass(frozen=True)
class Disk:
    """The disk of each machine.

    Attributes:
      path: The folder for `tsps.Tiered`.
      bytes: The free bytes.
      reads_per_second: The number of random reads of 4 KiB per second; None: it is not known.
    """

    path: str
    bytes: int
    reads_per_second: float | None = None


@dataclasses.dataclass(frozen=True)
class PlannedTable:
    """A table of the job.

    Attributes:
      config: The configuration, with an optimizer.
      rows: The number of rows that the table is expected to have.
      ids_per_sample: The number of ids that a sample looks up.
      zipf: The exponent of Zipf's law, by which ids are distributed if there is no sample; 0: all are equally frequent.
      chosen: The names of the fields that the user has chosen, of `storage`, `placement`, `dtype` and `cache`. The plan
        chooses the others.
    """

    config: TableConfig
    rows: int
    ids_per_sample: float
    zipf: float
    chosen: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.config.name

    def changed(self, **changes: Any) -> PlannedTable:
        """Returns the table with other fields of its `TableConfig`."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **changes))


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """The job that is planned.

    Attributes:
      tables: The tables.
      batch_size: The number of samples per rank and step.
      ranks_per_machine: The number of ranks on each machine.
      machines: The number of machines.
      memory: The memory of each machine, in bytes.
      shared_memory: The bytes of /dev/shm, or of the file system of TFSPS_DIR, on each machine.
      memory_per_rank: The memory of a rank's process without tables: TensorFlow, the model, its input.
      disk: The disk of each machine; None: no rows can be on disk.
      network_mbit: The rate at which a machine sends, in 10^6 bits per second.
      latency_us: The latency of a message between machines, in microseconds.
      cores: The number of cores of each machine.
      device_memory: The bytes of a device for a cache; None: there is no device.
      costs: The costs of work on this machine; None: they are measured.
    """

    tables: tuple[PlannedTable, ...]
    batch_size: int
    ranks_per_machine: int = 1
    machines: int = 1
    memory: int = 0
    shared_memory: int = 0
    memory_per_rank: int = 512 << 20
    disk: Disk | None = None
    network_mbit: float = 10_000.0
    latency_us: float = 50.0
    cores: int = 1
    device_memory: int | None = None
    costs: Costs | None = None

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return self.ranks_per_machine * self.machines


def parse(document: Any, machine: Mapping[str, Any], where: str = "the configuration") -> PlanConfig:
    """Returns a configuration.

    Args:
      document: The JSON document, as `cli/schemas/plan-config.json` describes it.
      machine: The values of `memory`, `shared_memory` and `cores` for a document that leaves them out.
      where: The name of the document, for messages.

    Raises:
      InvalidArgumentError: A field is missing, unknown or out of range. The message names it.
    """
    fields = _Fields(document, where)
    tables = fields.take("tables", _list)
    names: set[str] = set()
    planned = []
    for i, table in enumerate(tables):
        parsed = parse_table(table, f"{where}: tables[{i}]")
        if parsed.name in names:
            raise InvalidArgumentError(f"{where}: tables[{i}].name is {parsed.name!r} again. Give it another name")
        names.add(parsed.name)
        planned.append(parsed)
    config = PlanConfig(
        tuple(planned),
        batch_size=fields.take("batch_size", _count),
        ranks_per_machine=fields.take("ranks_per_machine", _count, 1),
        machines=fields.take("machines", _count, 1),
        memory=fields.take("memory", size, machine["memory"]),
        shared_memory=fields.take("shared_memory", size, machine["shared_memory"]),
        memory_per_rank=fields.take("memory_per_rank", size, 512 << 20),
        disk=fields.take("disk", lambda value: _disk(value, f"{where}: disk"), None),
        network_mbit=fields.take("network_mbit", _positive, 10_000.0),
        latency_us=fields.take("latency_us", _positive, 50.0),
        cores=fields.take("cores", _count, machine["cores"]),
        device_memory=fields.take("device_memory", size, None),
        costs=fields.take("costs", _costs, None),
    )
    fields.end()
    return config


def parse_table(document: Any, where: str) -> PlannedTable:
    """Returns a table. Arguments and errors are those of `parse`."""
    fields = _Fields(document, where)
    fields.expect(*_TABLE_FIELDS, *_POLICY_FIELDS, *_OWN_FIELDS)
    given = {name: value for name, value in document.items() if name in (*_TABLE_FIELDS, *_POLICY_FIELDS)}
    for name in ("name", "dim"):
        fields.take(name, lambda value: value)  # missing ones are refused
    chosen = frozenset(name for name in ("storage", "placement", "dtype", "cache") if given.get(name) is not None)
    given = {name: value for name, value in given.items() if value is not None}
    try:
        given["optimizer"] = optimizers.get(given.get("optimizer", "adagrad"))
        if given.get("placement") == "sharded":
            given["placement"] = Sharded()
        placement_lib.get(given.get("placement", "replicated"))
        config = TableConfig(**given)
        least = 0 if not isinstance(config.storage, Tiered) else _LEAST_TIER
        if isinstance(config.storage, Tiered) and int(config.storage.memory) < least:
            raise ValueError(f"`storage.memory` must be at least 16 MiB. Received: {config.storage.memory}")
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{where}: {error}") from error
    _refuse_mixed(config, where)
    rows = fields.take("rows", _count, None)
    limits = [config.key_limit, config.max_rows, config.eviction.max_rows if config.eviction else None]
    most = min([limit for limit in limits if limit is not None], default=None)
    if rows is None and most is None:
        raise InvalidArgumentError(
            f"{where}.rows is missing: an unbounded table needs the expected number of rows. Add it, or key_limit"
        )
    rows = most if rows is None else rows if most is None else min(rows, most)
    return PlannedTable(
        config,
        int(rows or 0),
        fields.take("ids_per_sample", _positive, 1.0),
        fields.take("zipf", _exponent, 1.05),
        chosen,
    )


def _refuse_mixed(config: TableConfig, where: str) -> None:
    if config.cache is not None and (isinstance(config.storage, Tiered) or isinstance(config.placement, Sharded)):
        raise InvalidArgumentError(
            f"{where}: a table with a device cache can be neither on disk nor sharded. Leave out `cache`, or the others"
        )


class _Fields:
    """The fields of a JSON object, each of which is taken once."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, Mapping):
            raise InvalidArgumentError(f"{where} must be a JSON object. Received: {document!r}")
        self._document, self._where = document, where
        self._known: list[str] = []

    def take(self, name: str, convert: Any, *default: Any) -> Any:
        """Returns a field; the default if it is missing or null."""
        self._known.append(name)
        value = self._document.get(name)
        if value is None:
            if not default:
                raise InvalidArgumentError(f"{self._where}: the field {name!r} is missing. Add it")
            return default[0]
        try:
            return convert(value)
        except InvalidArgumentError:
            raise
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(f"{self._where}: {name!r} {error}. Received: {value!r}") from None

    def expect(self, *names: str) -> None:
        """Raises InvalidArgumentError if the object has other fields than these."""
        for name in self._document:
            if name not in names:
                known = ", ".join(sorted(names))
                raise InvalidArgumentError(f"{self._where}: the field {name!r} is not known. Expected: {known}")

    def end(self) -> None:
        """Raises InvalidArgumentError if the object has fields that nobody took."""
        self.expect(*self._known)


def size(value: Any) -> int:
    """Returns a number of bytes, given as a number or a text such as "64 GiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    result = 0 if match is None else int(float(match[1]) * _UNITS[match[2].upper()])
    if result < 1:
        raise ValueError('must be a number of bytes, or a text such as "64 GiB"')
    return result


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**62:
        raise ValueError("must be an integer of at least 1")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e18:
        raise ValueError("must be a number")
    return float(value)


def _positive(value: Any) -> float:
    if _number(value) <= 0:
        raise ValueError("must be above 0")
    return float(value)


def _exponent(value: Any) -> float:
    if not 0 <= _number(value) <= 5:
        raise ValueError("must be an exponent of Zipf's law, 0 to 5")
    return float(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one table")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def _disk(value: Any, where: str) -> Disk:
    fields = _Fields(value, where)
    disk = Disk(
        fields.take("path", _text), fields.take("bytes", size), fields.take("reads_per_second", _positive, None)
    )
    fields.end()
    return disk


def _costs(value: Any) -> Costs:
    names = [field.name for field in dataclasses.fields(Costs)]
    if not isinstance(value, Mapping) or sorted(value) != sorted(names):
        raise ValueError(f"must have the fields {', '.join(names)}, as `tf-sparse-ps plan --json` prints them")
    return Costs(**{name: max(0.0, _number(value[name])) for name in names})
