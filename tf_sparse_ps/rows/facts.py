"""`RowFacts`: what a file of rows says about the table that the rows come from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, UnsupportedError

_VERSION = 1
_ZEROS = {"kind": "zeros", "a": 0.0, "b": 0.0, "seed": 0, "salt": 0}


@dataclasses.dataclass(frozen=True)
class RowFacts:
    """The facts about a table.

    Attributes:
      table: The name of the table.
      dim: The number of floats of a row.
      dtype: The type in which the table keeps its rows.
      key_limit: Keys are 0 to key_limit - 1; None: any int64 is a key.
      step: The step of the rows.
      optimizer: The update rule that the slots belong to, as the core names it. "none": there are no slots.
      slot_init: The initial value of the elements of each slot.
      initializer: What keys without a row read, in the core's form.
      trained_by: The identity of the optimizer that made the slots, 0 if it is not known, and its number of steps.
    """

    table: str
    dim: int
    dtype: str = "float32"
    key_limit: int | None = None
    step: int = 0
    optimizer: str = "none"
    slot_init: tuple[float, ...] = ()
    initializer: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(_ZEROS))
    trained_by: tuple[int, int] = (0, 0)

    @classmethod
    def of_header(cls, table: str, info: Mapping[str, Any]) -> RowFacts:
        """Returns the facts in the header of a sparse-parameter file, as the core describes it."""
        rule = info["optimizer"]
        return cls(
            table=table,
            dim=int(info["dim"]),
            dtype=str(info["dtype"]),
            key_limit=int(info["key_limit"]) or None,
            step=int(info["step"]),
            optimizer=str(rule["kind"]),
            slot_init=tuple(map(float, rule["slot_init"])),
            initializer=dict(info["initializer"]),
            trained_by=(int(info["trained_by"][0]), int(info["trained_by"][1])),
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """The floats per row of each slot."""
        return () if self.optimizer == "none" else tuple(_table.slot_widths(self.optimizer, self.dim))

    def header(self) -> dict[str, Any]:
        """Returns the header of a sparse-parameter file, as `parameter_files.write_content` takes it."""
        return {
            "dim": self.dim,
            "key_limit": self.key_limit or 0,
            "step": self.step,
            "optimizer": self.optimizer,
            "slot_init": list(self.slot_init),
            "initializer": self.initializer,
            "metadata": [],
            "dtype": self.dtype,
            "trained_by": self.trained_by,
        }

    def without_slots(self) -> RowFacts:
        """Returns the facts about the rows alone."""
        return dataclasses.replace(self, optimizer="none", slot_init=(), trained_by=(0, 0))

    def encode(self) -> str:
        """Returns the facts as JSON, in one line."""
        return json.dumps({"version": _VERSION, **dataclasses.asdict(self)})

    @classmethod
    def decode(cls, text: str | bytes, where: str) -> RowFacts:
        """Returns the facts that `encode` wrote.

        Args:
          text: The JSON.
          where: The file, for messages.

        Raises:
          DamagedFileError: The text is not what `encode` writes.
          UnsupportedError: A later version wrote the file.
        """
        try:
            content = json.loads(text)
            version = content.pop("version")
            if version != _VERSION:
                raise UnsupportedError(
                    f"{where} has version {version}, and this version of tf_sparse_ps reads version {_VERSION}. "
                    "Import the file with the version that wrote it, or with a later one"
                )
            content |= {name: tuple(content[name]) for name in ("slot_init", "trained_by")}
            facts = cls(**content)
            if facts.dim < 1 or len(facts.widths) != len(facts.slot_init):
                raise ValueError(f"dim {facts.dim}, optimizer {facts.optimizer!r}, slot_init {facts.slot_init}")
        except UnsupportedError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedFileError(f"{where} has no valid facts about its table: {error}") from None
        return facts

    def check_slots(self, name: str) -> None:
        """Raises UnsupportedError unless the rows have slots of an optimizer. `name`: the source, for the message."""
        if self.optimizer == "none":
            raise UnsupportedError(
                f"{name} has no slots of an optimizer, so slots=True cannot take them. Leave slots out, to take the "
                "rows alone"
            )


def check_dim(name: str, dim: int, target: str, target_dim: int) -> None:
    """Raises InvalidArgumentError if rows have another width than a target.

    Args:
      name: The source of the rows, for the message.
      dim: The floats of its rows.
      target: The target, for the message.
      target_dim: The floats of the target's rows.
    """
    if dim != target_dim:
        raise InvalidArgumentError(
            f"{name} has rows of {dim} floats, and {target} has rows of {target_dim}. Both must have the same width"
        )
