"""Metadata planes: values that a table keeps for every row, in addition to the row and the optimizer's slots."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.config.plain_numbers import make_plain
from tf_sparse_ps.errors import InvalidArgumentError

# NumPy has no bfloat16. Such values are kept as uint16, the first half of a float32.
_DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "float16": np.float16,
    "uint32": np.uint32,
    "int64": np.int64,
}
_BITS: dict[int, Any] = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_NAME = re.compile(r"[a-z0-9_]{1,31}")
_MAX_ELEMENTS = 65536


@dataclasses.dataclass(frozen=True)
class MetadataPlane:
    """A metadata plane: `elements` numbers for every row of a table, which steps do not change.

    Attributes:
      name: The name of the plane, 1 to 31 characters of [a-z0-9_]; not "embedding", "key", "changed" or "use".
      type: The type of the elements: "float32", "bfloat16", "float16", "uint32" or "int64".
      elements: The number of elements per row, 1 to 65536.
      initial: The value of every element of a new row. For float32 and float16 it is rounded to the type; for the other
        types it must be a value of the type.

    Raises:
      ValueError: A field is out of range. The message gives the reason.
    """

    name: str
    type: str = "uint32"
    _: dataclasses.KW_ONLY
    elements: int = 1
    initial: float = 0

    def __post_init__(self) -> None:
        make_plain(self, "elements", "initial")
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"`name` must be 1 to 31 characters of [a-z0-9_]. Received: name={self.name!r}")
        if self.type not in _DTYPES:
            raise ValueError(f"`type` must be one of {sorted(_DTYPES)}. Received: type={self.type!r}")
        whole = isinstance(self.elements, int) and not isinstance(self.elements, bool)
        if not whole or not 1 <= self.elements <= _MAX_ELEMENTS:
            raise ValueError(f"`elements` must be an integer of 1 to {_MAX_ELEMENTS}. Received: {self.elements!r}")
        self.bits()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the values. For bfloat16 it is uint16, which holds the bits."""
        return np.dtype(_DTYPES[self.type])

    def bits(self) -> int:
        """Returns the bits of `initial` as an element.

        Raises:
          ValueError: `initial` is not a value of the type.
        """
        if self.type in ("uint32", "int64"):
            limits = np.iinfo(_DTYPES[self.type])
            whole = isinstance(self.initial, int) and not isinstance(self.initial, bool)
            if not whole or not limits.min <= self.initial <= limits.max:
                raise ValueError(f"`initial` must be an integer of type {self.type}. Received: {self.initial!r}")
            return int(self.initial) % (1 << 8 * self.dtype.itemsize)
        number = isinstance(self.initial, (int, float)) and not isinstance(self.initial, bool)
        if not number or not abs(self.initial) < 1e39:
            raise ValueError(f"`initial` must be a finite number. Received: {self.initial!r}")
        with np.errstate(over="ignore"):
            value = np.float16(self.initial) if self.type == "float16" else np.float32(self.initial)
        bits = int(value.view(_BITS[value.itemsize]))
        if not np.isfinite(value) or (self.type == "bfloat16" and (bits & 0xFFFF or float(value) != self.initial)):
            raise ValueError(f"`initial` must be a value of type {self.type}. Received: {self.initial!r}")
        return bits >> 16 if self.type == "bfloat16" else bits

    def for_core(self) -> dict[str, Any]:
        """Returns the plane in the core's form."""
        return {"name": self.name, "type": self.type, "elements": self.elements, "initial": self.bits()}

    @classmethod
    def from_core(cls, plane: Mapping[str, Any]) -> MetadataPlane:
        """Makes a plane from the result of `for_core`."""
        kind, bits = plane["type"], plane["initial"]
        if kind == "bfloat16":
            initial = float(np.uint32(bits << 16).view(np.float32))
        else:
            dtype = np.dtype(_DTYPES[kind])
            initial = _BITS[dtype.itemsize](bits).view(dtype).item()
        return cls(plane["name"], kind, elements=plane["elements"], initial=initial)

    def full(self, n: int) -> npt.NDArray[Any]:
        """Returns the values of n new rows, [n, elements]."""
        bits = np.full((n, self.elements), self.bits(), _BITS[self.dtype.itemsize])
        return bits.view(self.dtype)

    def __str__(self) -> str:
        return f"{self.name!r} of {self.type}[{self.elements}]"


# The use of a row (cc/core/table/row_use.h): the last step that trained it, and a count of steps. A table that evicts
# rows has this plane, and its steps write it.
USE = MetadataPlane("use", "uint32", elements=2)


def as_planes(values: Mapping[str, npt.ArrayLike] | None) -> dict[str, npt.NDArray[Any]]:
    """Returns values of metadata planes by name, in the core's form. The core refuses a wrong type or shape.

    Raises:
      InvalidArgumentError: The argument is not a mapping whose keys are names.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise InvalidArgumentError(f"metadata must be a dict of arrays by the planes' names. Received: {type(values)}")
    return {name: np.ascontiguousarray(value) for name, value in values.items()}
