"""`Admission`: when a key of a table gets a row."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_sparse_ps.config.plain_numbers import check_integer, make_plain

SKETCH = ".sketch"  # the end of the name of the table that counts another table's keys without a row
_LIMITS = {"count": (2, 255), "expected_keys": (1, 2**40), "half_life": (1, 2**32 - 1)}


@dataclasses.dataclass(frozen=True)
class Admission:
    """A table makes rows only for keys that have occurred often enough in training.

    A key gets a row in the step in which it occurs for the `count`-th time, and that step trains the row. Until then
    the key reads its initial value, and its gradients are dropped. What lookups return does not change by admission
    itself. docs/vocabularies.md tells how to choose the numbers.

    The counts are in a sketch of bounded memory, which may take a key for a more frequent one; `Table.stats()`
    estimates how often. The sketch takes about 2 bytes per expected key, and 4 for a `count` above 15.

    Attributes:
      count: The number of occurrences, 2 to 255.
      expected_keys: The number of different keys that occur within a `half_life` and have no row. Machines that share
        the rows of a table (`tsps.Sharded`) share its sketch, too.
      half_life: The number of steps after which an occurrence counts half. Keys that occur less often never get a row.

    Raises:
      ValueError: A field is out of range.

    Example:
      tsps.TableConfig("items", 16, admission=tsps.Admission(3, expected_keys=50_000_000))
    """

    count: int
    expected_keys: int
    half_life: int = 10_000

    def __post_init__(self) -> None:
        make_plain(self, *_LIMITS)
        for name, (least, most) in _LIMITS.items():
            check_integer(name, getattr(self, name), least, most)

    def for_core(self, nodes: int = 1) -> tuple[int, int, int]:
        """Returns count, half_life and the expected keys on one machine.

        Args:
          nodes: The number of machines that share the rows.
        """
        return self.count, self.half_life, -(-self.expected_keys // nodes)

    def forgotten(self, table: str) -> str:
        """Returns the warning that the earlier counts of a table have another form, and are lost."""
        return (
            f"table {table}: the sketch of its admission has another form than before, because expected_keys, or the "
            "size of `count` (up to 15, or above), is another one. Keys without a row are counted from 0 again. "
            f"Received: admission={self}"
        )

    def get_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable dict."""
        return dataclasses.asdict(self)
