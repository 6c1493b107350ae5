"""Few combinations of settings in which every two values of two settings meet."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Pair = tuple[tuple[str, int], tuple[str, int]]  # of settings by their names, and of the numbers of their values


def pairs(names: Sequence[str], case: Mapping[str, int]) -> set[Pair]:
    """Those that meet in a case, which has the number of a value for some of the settings."""
    given = [(name, case[name]) for name in names if name in case]
    return set(itertools.combinations(given, 2))


def pairwise(settings: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Cases that cover all pairs; always the same ones.

    Greedy: a case begins with a pair that no case has, of values that have been in the fewest cases, and takes of each
    other setting the value that meets most of its others for the first time.

    Args:
      settings: The values of each.
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
        left = set(missing)
        for name in sorted(names, key=lambda one: -len(settings[one])):
            if name in case:
                continue
            found = {i: len(left & pairs(names, {**case, name: i})) for i in range(len(settings[name]))}
            case[name] = max(found, key=lambda i: (found[i], -uses[name, i]))
        missing = [one for one in missing if one not in pairs(names, case)]
        uses.update(case.items())
        cases.append(case)
    return [{name: settings[name][case[name]] for name in names} for case in cases]


def covers(settings: Mapping[str, Sequence[Any]], cases: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every two values of two settings meet in some case."""
    return all(
        {(case[a], case[b]) for case in cases} == set(itertools.product(settings[a], settings[b]))
        for a, b in itertools.combinations(settings, 2)
    )
