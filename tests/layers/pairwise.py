"""Selects few combinations of settings that contain every pair of values of two settings."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Pair = tuple[tuple[str, int], tuple[str, int]]  # two settings by name, each with the number of its value


def pairs(names: Sequence[str], case: Mapping[str, int]) -> set[Pair]:
    """Returns the pairs of a case. The case maps some of the settings to the number of a value."""
    chosen = [(name, case[name]) for name in names if name in case]
    return set(itertools.combinations(chosen, 2))


def pairwise(settings: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns cases that cover all pairs. The result is deterministic.

    The algorithm is greedy. A case begins with a missing pair whose values were used in the fewest cases. For each
    other setting it then takes the value that completes the most missing pairs.

    Args:
      settings: The values of each setting.
    """
    names = list(settings)
    missing = [
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i, j in itertools.product(range(len(settings[a])), range(len(settings[b])))
    ]
    cases: list[dict[str, int]] = []
    uses: Counter[tuple[str, int]] = Counter()
    while missing:
        case = dict(min(missing, key=lambda pair: uses[pair[0]] + uses[pair[1]]))
        uncovered = set(missing)
        for name in sorted(names, key=lambda setting: -len(settings[setting])):
            if name in case:
                continue
            gains = {i: len(uncovered & pairs(names, {**case, name: i})) for i in range(len(settings[name]))}
            case[name] = max(gains, key=lambda i: (gains[i], -uses[name, i]))
        missing = [setting for setting in missing if setting not in pairs(names, case)]
        uses.update(case.items())
        cases.append(case)
    return [{name: settings[name][case[name]] for name in names} for case in cases]


def covers(settings: Mapping[str, Sequence[Any]], cases: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some case contains each pair of values of two settings."""
    return all(
        {(case[a], case[b]) for case in cases} == set(itertools.product(settings[a], settings[b]))
        for a, b in itertools.combinations(settings, 2)
    )
