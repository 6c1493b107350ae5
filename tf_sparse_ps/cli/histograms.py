"""Histograms of the rows of a table: their norms, and their ages and counts where the table records their use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.config.metadata import USE
from tf_sparse_ps.stored.contents import Content

_ZERO = -(1 << 20)  # the bin of values that are 0
_USE_UNIT = 256  # of the counts in the plane (cc/core/table/row_use.h)
_FINITE = 1 << 19  # the bin of values that are not finite


class _Histogram:
    """Counts values in bins from a power of 2 to the next one. Zeros, and values that are not finite, have own bins."""

    def __init__(self, name: str) -> None:
        self.name, self._bins, self._sum, self._n = name, dict[int, int](), 0.0, 0
        self._least, self._most = math.inf, -math.inf

    def add(self, values: npt.NDArray[Any]) -> None:
        values = values.astype(np.float64)
        finite = np.isfinite(values)
        bins = np.full(len(values), _FINITE)
        bins[finite] = np.where(values[finite] > 0, np.frexp(values[finite])[1] - 1, _ZERO)
        for number, n in zip(*np.unique(bins, return_counts=True), strict=True):
            self._bins[int(number)] = self._bins.get(int(number), 0) + int(n)
        if finite.any():
            self._least = min(self._least, float(values[finite].min()))
            self._most = max(self._most, float(values[finite].max()))
            self._sum, self._n = self._sum + float(values[finite].sum()), self._n + int(finite.sum())

    def facts(self) -> dict[str, Any]:
        bins = []
        for number in sorted(self._bins):
            if number == _FINITE:
                continue
            low, high = (0.0, 0.0) if number == _ZERO else (2.0**number, 2.0 ** (number + 1))
            bins.append({"from": low, "to": high, "rows": self._bins[number]})
        return {
            "of": self.name,
            "bins": bins,
            "not_finite": self._bins.get(_FINITE, 0),
            "least": self._least if self._n else None,
            "mean": self._sum / self._n if self._n else None,
            "most": self._most if self._n else None,
        }


def of(content: Content) -> list[dict[str, Any]]:
    """Reads all rows of a table, and counts them by their norm, and by age and count of use.

    Returns:
      A histogram of "norm"; and of "age", in steps, and "uses", if the table records the use of its rows. Each is as
      `schemas/inspect.json` describes it.
    """
    norm = _Histogram("norm")
    use = {"age": _Histogram("age"), "uses": _Histogram("uses")}
    has_use = False
    for block in content.blocks(slots=True):
        with np.errstate(over="ignore", invalid="ignore"):
            norm.add(np.sqrt(np.square(block.rows.astype(np.float64)).sum(1)))
        if (values := block.metadata.get(USE.name)) is not None:
            has_use = True
            use["age"].add(np.maximum(content.step - values[:, 0].astype(np.int64), 0))
            use["uses"].add(values[:, 1] / _USE_UNIT)
    return [norm.facts(), *(each.facts() for each in use.values() if has_use)]


def lines(histogram: dict[str, Any], width: int = 40) -> Iterator[tuple[str, str, str]]:
    """Yields the range, the number of rows and a bar of each bin."""
    rows = [(_range(each), each["rows"]) for each in histogram["bins"]]
    if histogram["not_finite"]:
        rows.append(("not finite", histogram["not_finite"]))
    most = max((n for _, n in rows), default=1)
    for label, n in rows:
        yield label, f"{n:,}", "#" * max(1, round(n / most * width))


def _range(each: dict[str, Any]) -> str:
    return "0" if each["to"] == 0 else f"{each['from']:g} to {each['to']:g}"
