"""`Allowance`: the differences between a model and a checkpoint that a restore accepts. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

ADDED_TABLES, REMOVED_TABLES = "added_tables", "removed_tables"
ADDED_VARIABLES, REMOVED_VARIABLES, CHANGED_VARIABLES = "added_variables", "removed_variables", "changed_variables"
OTHER_ORDER = "other_order"  # of tables or variables; each other value accepts it, too
CHANGES = (ADDED_TABLES, REMOVED_TABLES, ADDED_VARIABLES, REMOVED_VARIABLES, CHANGED_VARIABLES, OTHER_ORDER)


@dataclasses.dataclass(frozen=True)
class Allowance:
    """The differences that a restore accepts.

    Attributes:
      changes: Some of `CHANGES`.
      renames: The names that tables have in the model now, by their names in the checkpoint.
    """

    changes: frozenset[str] = frozenset()
    renames: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, allow: Any, renames: Any) -> Allowance:
        """Checks arguments of `Checkpointer.restore` and `callbacks.Checkpoint`.

        Args:
          allow: A collection of strings, see `CHANGES`.
          renames: A dict of names of tables, or None.

        Raises:
          TypeError: `allow` is no collection of strings, or `renames` no dict of strings.
          ValueError: `allow` has an unknown value; or two tables get one name; or a name is both an old and a new one.
        """
        if isinstance(allow, str | Mapping) or not isinstance(allow, Collection):
            raise TypeError(f"`allow` must be a list of some of {list(CHANGES)}. Received: allow={allow!r}")
        if unknown := [value for value in allow if value not in CHANGES]:
            raise ValueError(f"`allow` must be a list of some of {list(CHANGES)}. Received: {unknown[0]!r}")
        if renames is not None and not isinstance(renames, Mapping):
            raise TypeError(f"`renames` must be a dict from old names of tables to new ones. Received: {renames!r}")
        names = dict(renames or {})
        for old, new in names.items():
            if not isinstance(old, str) or not isinstance(new, str):
                raise TypeError(f"`renames` must have names of tables. Received: {old!r}: {new!r}")
            if list(names.values()).count(new) > 1:
                raise ValueError(f"`renames` gives two tables the name {new!r}. Received: renames={names!r}")
            if new in names:
                raise ValueError(
                    f"`renames` has {new!r} both as an old and as a new name, so a second restart would rename its "
                    f"table again. Choose names that the checkpoint does not have. Received: renames={names!r}"
                )
        return cls(frozenset(allow), names)

    def __bool__(self) -> bool:
        return bool(self.changes or self.renames)

    def facts(self) -> dict[str, str]:
        """Returns what ranks compare."""
        return {"allow": str(sorted(self.changes)), "renames": str(sorted(self.renames.items()))}

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `of`."""
        return {"allow": self.changes, "renames": self.renames}

    def missing(self, changes: Iterable[str]) -> tuple[str, ...]:
        """Returns those of these changes that are not accepted, in the order of `CHANGES`."""
        wanted = set(changes) - self.changes
        return tuple(change for change in CHANGES if change in wanted)


@dataclasses.dataclass(frozen=True)
class Objection:
    """A difference that a restore does not accept.

    Attributes:
      text: What differs, in sentences without the last full stop.
      missing: The values of `allow` that would accept it; empty: no value would.
    """

    text: str
    missing: tuple[str, ...] = ()


def refuse(objections: Sequence[Objection], accepted: Allowance) -> None:
    """Raises ValueError if there are objections. The message names the value of `allow` that would accept them."""
    if not objections:
        return
    text = ". ".join(objection.text for objection in objections)
    if all(objection.missing for objection in objections):
        wanted = {change for objection in objections for change in objection.missing} | accepted.changes
        value = [change for change in CHANGES if change in wanted and (change != OTHER_ORDER or len(wanted) == 1)]
        text += f". To restore what is the same nevertheless, give restore() or callbacks.Checkpoint allow={value}"
    raise ValueError(text)
