"""Compares the tables and variables of a model with those of a checkpoint. Needs no TensorFlow.

Without an `Allowance`, both are matched by their order, and any difference is refused, also the same names in another
order. With one, they are matched by their names: new ones are initialized, and those that the model lacks are dropped.
Optimizer variables follow the weight that they belong to. In Keras 2 and 3 their names contain that of the weight.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_sparse_ps.checkpoints.allowance import (
    ADDED_TABLES,
    ADDED_VARIABLES,
    CHANGED_VARIABLES,
    OTHER_ORDER,
    REMOVED_TABLES,
    REMOVED_VARIABLES,
    Allowance,
    Objection,
)

_SHOWN = 5
Facts = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """The result of a restore, the same on all ranks, except for `path`.

    Names are those of the model, except for what was dropped. Optimizer variables are not listed: they follow the
    weight that they belong to.

    Attributes:
      path: The folder of the checkpoint: a path of this machine, or a URL.
      restored_tables: Tables that have the rows of the checkpoint, renamed ones included.
      renamed_tables: The names of tables now, by their names in the checkpoint.
      new_tables: Tables that begin with initial values.
      dropped_tables: Tables of the checkpoint that the model lacks.
      restored_variables: Weights, seeds and extra variables that have the values of the checkpoint.
      new_variables: Those that the checkpoint lacks.
      changed_variables: Those that have another shape or type in the checkpoint. They are initialized.
      dropped_variables: Those of the checkpoint that the model lacks.
    """

    path: str
    restored_tables: tuple[str, ...] = ()
    renamed_tables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    new_tables: tuple[str, ...] = ()
    dropped_tables: tuple[str, ...] = ()
    restored_variables: tuple[str, ...] = ()
    new_variables: tuple[str, ...] = ()
    changed_variables: tuple[str, ...] = ()
    dropped_variables: tuple[str, ...] = ()

    @property
    def has_changes(self) -> bool:
        """Whether the model differs from the one that was saved."""
        tables = (self.renamed_tables, self.new_tables, self.dropped_tables)
        return any((*tables, self.new_variables, self.changed_variables, self.dropped_variables))

    def lines(self) -> list[str]:
        """Returns at most four lines that describe the differences."""
        renamed = [f"{new!r} has the rows of {old!r}" for old, new in self.renamed_tables.items()]
        lines = [f"tables: {', '.join(renamed)}"] if renamed else []
        for text, tables, variables in (
            ("initialized", self.new_tables, (*self.new_variables, *self.changed_variables)),
            ("dropped", self.dropped_tables, self.dropped_variables),
        ):
            parts = [
                f"{kind} {shown(names)}" for kind, names in (("tables", tables), ("variables", variables)) if names
            ]
            if parts:
                lines.append(f"{text}: {'; '.join(parts)}")
        return lines


def shown(names: Sequence[str]) -> str:
    """Returns the first of these names, as a text."""
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# --- tables ---


@dataclasses.dataclass
class TableMatch:
    """The places of a model's tables in a checkpoint.

    Attributes:
      numbers: For each table of the model, its place in the checkpoint; None: it is initialized.
      renamed: The names of renamed tables now, by their names in the checkpoint.
      dropped: The names of tables of the checkpoint that the model lacks.
      objections: What is not accepted.
    """

    numbers: list[int | None]
    renamed: dict[str, str] = dataclasses.field(default_factory=dict)
    dropped: list[str] = dataclasses.field(default_factory=list)
    objections: list[Objection] = dataclasses.field(default_factory=list)


def match_tables(
    tables: Sequence[Facts], stored: Sequence[Facts], allowance: Allowance, classes: Collection[str], folder: str
) -> TableMatch:
    """Matches tables.

    Args:
      tables, stored: `name`, `dim` and `key_limit` of the tables of the model and of the checkpoint.
      allowance: The differences that are accepted.
      classes: The names that Keras gives to layers of the model's classes, without numbers.
      folder: The checkpoint, for messages.
    """
    names, stored_names = [str(facts["name"]) for facts in tables], [str(facts["name"]) for facts in stored]
    refusals = [_refused_rename(old, new, names, stored_names, folder) for old, new in allowance.renames.items()]
    if any(refusals):
        return TableMatch([], objections=[Objection(refusal) for refusal in refusals if refusal is not None])
    in_order = TableMatch(list(range(len(tables))))
    by_number = allowance and not any(old in stored_names for old in allowance.renames)
    if names == stored_names or (by_number and _differ_in_numbers_only(names, stored_names, classes)):
        match = in_order
    elif allowance:
        match = _match_tables_by_name(names, stored_names, allowance, classes, folder)
    elif len(names) != len(stored_names):
        text = (
            f"the model has {len(names)} tables, {names}, and checkpoint {folder} has {len(stored_names)}, "
            f"{stored_names}. Build the model that was saved. If its first batch builds it, call it on one before"
        )
        return TableMatch([], objections=[_by_names(text, names, stored_names)])
    elif sorted(names) == sorted(stored_names):
        text = (
            f"the model's tables are {names}, those of checkpoint {folder} are {stored_names}: rows are restored by "
            "the order of layers, which is another one now. Build the model as it was saved"
        )
        return TableMatch([], objections=[Objection(text, (OTHER_ORDER,))])
    else:
        match = in_order
    for facts, number in zip(tables, match.numbers, strict=True):
        if number is not None and not _same_shape(facts, stored[number]):
            match.objections.append(_other_shape(facts, stored[number], bool(allowance), names, stored_names, folder))
    return match


def _match_tables_by_name(
    names: list[str], stored_names: list[str], allowance: Allowance, classes: Collection[str], folder: str
) -> TableMatch:
    match = TableMatch([])
    for each in (names, stored_names):
        if len(set(each)) < len(each):
            text = f"tables are matched by their names, and several have one name: {each}. Give them different names"
            match.objections.append(Objection(text))
            return match
    new_names = list(stored_names)
    for old, new in allowance.renames.items():
        if old in stored_names:
            new_names[stored_names.index(old)] = match.renamed[old] = new
    numbers = {name: number for number, name in enumerate(new_names)}
    match.numbers = [numbers.get(name) for name in names]
    match.dropped = [old for old, new in zip(stored_names, new_names, strict=True) if new not in names]
    of_keras = {name for name in names if _class_of(name, classes)}
    if of_keras and of_keras != {name for name in new_names if _class_of(name, classes)}:
        text = (
            f"Keras has numbered the tables {sorted(of_keras)}. The checkpoint {folder} has {stored_names}, so a "
            "number may now belong to another table. Give layers a name, or tables a TableConfig with one, and name "
            "the tables of the checkpoint with renames={'embedding': 'a name', ...}"
        )
        match.objections.append(Objection(text))
    added = [name for name, number in zip(names, match.numbers, strict=True) if number is None]
    missing = allowance.missing([*[ADDED_TABLES] * bool(added), *[REMOVED_TABLES] * bool(match.dropped)])
    if missing:
        text = f"the model's tables are {names}, those of checkpoint {folder} are {stored_names}"
        match.objections.append(Objection(text + _rename_hint(added, match), missing))
    return match


def _rename_hint(new: Sequence[str], match: TableMatch) -> str:
    if not new or not match.dropped:
        return ""
    return f". If {new[0]!r} is another name of a table, say so: renames={{{match.dropped[0]!r}: {new[0]!r}}}"


def _refused_rename(old: str, new: str, names: Sequence[str], stored_names: Sequence[str], folder: str) -> str | None:
    here = f"renames={{{old!r}: {new!r}}}"
    if new not in names:
        return f"{here}: the model has no table {new!r}, but {list(names)}"
    if old in names:
        return (
            f"{here}: the model still has a table {old!r}. A second restart could not tell it from the renamed one. "
            "Give new tables a name that the checkpoint does not have"
        )
    if old in stored_names and new in stored_names:
        return f"{here}: checkpoint {folder} has both tables. Choose another name for the renamed table"
    if old not in stored_names and new not in stored_names:
        return f"{here}: checkpoint {folder} has neither of these tables, but {list(stored_names)}"
    return None


def _by_names(text: str, names: Sequence[str], stored_names: Sequence[str]) -> Objection:
    added, removed = set(names) - set(stored_names), set(stored_names) - set(names)
    changes = [*[ADDED_TABLES] * bool(added), *[REMOVED_TABLES] * bool(removed)]
    return Objection(text, Allowance().missing(changes))


def _same_shape(facts: Facts, stored: Facts) -> bool:
    return all(facts[name] == stored[name] for name in ("dim", "key_limit"))


def _other_shape(
    facts: Facts, stored: Facts, by_name: bool, names: Sequence[str], stored_names: Sequence[str], folder: str
) -> Objection:
    here, there = ({name: each[name] for name in ("dim", "key_limit")} for each in (facts, stored))
    text = (
        f"table {facts['name']!r} has {here}, table {stored['name']!r} of checkpoint {folder} has {there}: build the "
        "model that was saved, or start from initial values in another directory"
    )
    if by_name or facts["name"] == stored["name"]:
        new_name = "To initialize this table, give it a name that the checkpoint does not have"
        return Objection(f"{text}. {new_name}, and allow={[ADDED_TABLES, REMOVED_TABLES]}")
    return _by_names(text, names, stored_names)


def _differ_in_numbers_only(names: Sequence[str], stored: Sequence[str], classes: Collection[str]) -> bool:
    """Whether names differ in Keras's numbers alone, in the same order, as when a notebook's cell runs again."""
    numbers: dict[str, set[tuple[int, int]]] = collections.defaultdict(set)
    for name, stored_name in itertools.zip_longest(names, stored, fillvalue=""):
        for part, stored_part in itertools.zip_longest(name.split("/"), stored_name.split("/"), fillvalue=""):
            cls = _class_of(part, classes)
            if cls != _class_of(stored_part, classes) or (cls is None and part != stored_part):
                return False
            if cls is not None:
                numbers[cls].add((_number_of(part), _number_of(stored_part)))
    pairs = [pair for each in numbers.values() for pair in itertools.pairwise(sorted(each))]
    return all(a < b and stored_a < stored_b for (a, stored_a), (b, stored_b) in pairs)


def _number_of(name: str) -> int:
    found = re.search(r"_(\d+)$", name)
    return int(found[1]) if found is not None else 0


def _class_of(name: str, classes: Collection[str]) -> str | None:
    """Returns the class of a layer by a name that Keras gave it; None: it has another name."""
    found = re.fullmatch(r"(.+?)(_\d+)?", name)
    return found[1] if found is not None and found[1] in classes else None


# --- variables ---


class _Weight(NamedTuple):
    """The identity of a weight, a seed or an extra variable."""

    kind: str
    name: str
    occurrence: int  # among those with this name


@dataclasses.dataclass
class VariableMatch:
    """The places of the variables of a model and its optimizer in a checkpoint.

    Attributes:
      numbers: For each variable that is restored, its place among those of the model, by its place in the checkpoint.
      restored, new, changed, dropped: The names of weights, seeds and extra variables, as in `RestoreReport`.
      shifted: Classes of layers whose numbers Keras may have given to other layers than in the checkpoint.
      repeated: Names that several restored weights or extra variables have. These are matched by their order.
      objections: What is not accepted.
    """

    numbers: dict[int, int]
    restored: list[str] = dataclasses.field(default_factory=list)
    new: list[str] = dataclasses.field(default_factory=list)
    changed: list[str] = dataclasses.field(default_factory=list)
    dropped: list[str] = dataclasses.field(default_factory=list)
    shifted: list[str] = dataclasses.field(default_factory=list)
    repeated: list[str] = dataclasses.field(default_factory=list)
    objections: list[Objection] = dataclasses.field(default_factory=list)

    @property
    def changes(self) -> list[str]:
        """The changes that must be accepted."""
        found = ((ADDED_VARIABLES, self.new), (REMOVED_VARIABLES, self.dropped), (CHANGED_VARIABLES, self.changed))
        return [change for change, names in found if names]


def match_variables(
    variables: Sequence[Facts], stored: Sequence[Facts], allowance: Allowance, classes: Collection[str], folder: str
) -> VariableMatch:
    """Matches dense variables.

    Args:
      variables, stored: `name`, `kind`, `dtype` and `shape` of the variables of the model and of the checkpoint. Those
        of metrics are left out of the match.
      allowance, classes, folder: As for `match_tables`.
    """
    here = {number: facts for number, facts in enumerate(variables) if facts["kind"] != "metric"}
    there = {number: facts for number, facts in enumerate(stored) if facts["kind"] != "metric"}
    comparable = [list(map(comparable_facts, each.values())) for each in (here, there)]
    names, stored_names = _names(here), _names(there)
    is_reordered = names != stored_names and sorted(names) == sorted(stored_names)
    in_order = not is_reordered and (not allowance or _differ_in_numbers_only(names, stored_names, classes))
    if in_order and comparable[0] == comparable[1]:
        match = VariableMatch(dict(zip(there, here, strict=True)))
        match.restored = [_clean(facts) for facts in here.values() if facts["kind"] != "optimizer"]
        match.repeated = _repeated_names(names)
        return match
    match = _match_variables_by_name(here, there, classes)
    match.repeated = [name for name in _repeated_names(names) if name in match.restored]
    if not allowance and is_reordered and not match.objections and not match.changes:
        text = (
            f"the model's variables have the names of those of checkpoint {folder}, in another order: here "
            f"{shown(names)}, stored {shown(stored_names)}. Build the model as it was saved"
        )
        match.objections = [Objection(text, (OTHER_ORDER,))]
        return match
    if not allowance:
        missing = () if match.objections else Allowance().missing(match.changes)
        match.objections = [Objection(_differences(here, there, folder), missing)]
    elif missing := allowance.missing(match.changes):
        changed = (("new", match.new), ("other shape", match.changed), ("not in the model", match.dropped))
        text = "; ".join(f"{what}: {shown(each)}" for what, each in changed if each)
        match.objections.append(
            Objection(f"checkpoint {folder} has other dense variables than the model: {text}", missing)
        )
    return match


def comparable_facts(facts: Facts) -> tuple[Any, ...]:
    """Returns what variables must have in common to have the same values."""
    return facts["kind"], facts["dtype"], tuple(facts["shape"])


def _differences(here: Mapping[int, Facts], there: Mapping[int, Facts], folder: str) -> str:
    pairs = itertools.zip_longest(here.values(), there.values())
    texts = [f"here {_named(a)}, stored {_named(b)}" for a, b in pairs if not _are_alike(a, b)]
    return (
        f"the model and its optimizer have {len(here)} dense variables, checkpoint {folder} has {len(there)}, or of "
        "other shapes: build the same model, and the same optimizer, as when it was saved. " + "; ".join(texts[:_SHOWN])
    )


def _are_alike(a: Facts | None, b: Facts | None) -> bool:
    return a is not None and b is not None and comparable_facts(a) == comparable_facts(b)


def _named(facts: Facts | None) -> str:
    return "nothing" if facts is None else f"{facts['name']} {facts['dtype']}{list(facts['shape'])}"


def _clean(facts: Facts) -> str:
    return re.sub(r":\d+$", "", str(facts["name"]))


def _names(variables: Mapping[int, Facts]) -> list[str]:
    """Returns the names of weights and extra variables."""
    return [_clean(facts) for facts in variables.values() if facts["kind"] in ("weight", "extra")]


def _repeated_names(names: Sequence[str]) -> list[str]:
    return [name for name, n in collections.Counter(names).items() if n > 1]


def _match_variables_by_name(
    here: Mapping[int, Facts], there: Mapping[int, Facts], classes: Collection[str]
) -> VariableMatch:
    weights, stored_weights = _weights(here), _weights(there)
    match = VariableMatch({})
    for weight in [*weights, *(weight for weight in stored_weights if weight not in weights)]:
        number, stored_number = weights.get(weight), stored_weights.get(weight)
        if number is None:
            assert stored_number is not None
            match.dropped.append(_clean(there[stored_number]))
        elif stored_number is None:
            match.new.append(_clean(here[number]))
        elif comparable_facts(here[number]) != comparable_facts(there[stored_number]):
            match.changed.append(_clean(here[number]))
        else:
            match.restored.append(_clean(here[number]))
            match.numbers[stored_number] = number
    for name in sorted(_repeated(weights, stored_weights)):
        text = f"several variables have the name {name!r}, and it is not known which one is which. Name the layers"
        match.objections.append(Objection(text))
    _match_optimizer(match, here, there, weights, stored_weights)
    restored = {_class_of(part, classes) for name in match.restored for part in name.split("/")}
    for name in sorted(set(classes) & restored):
        numbered, stored_numbered = (
            {part for weight in each for part in weight.name.split("/") if _class_of(part, classes) == name}
            for each in (weights, stored_weights)
        )
        if numbered != stored_numbered:
            match.shifted.append(name)
    return match


def _weights(variables: Mapping[int, Facts]) -> dict[_Weight, int]:
    """Returns the numbers of weights, seeds and extra variables by their identities. Seeds are known by their order."""
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    result = {}
    for number, facts in variables.items():
        if facts["kind"] == "optimizer":
            continue
        key = (str(facts["kind"]), "" if facts["kind"] == "seed" else _clean(facts))
        result[_Weight(*key, seen[key])] = number
        seen[key] += 1
    return result


def _repeated(weights: Iterable[_Weight], stored_weights: Iterable[_Weight]) -> set[str]:
    """Returns names that several variables have, and another number of variables in the checkpoint."""
    counts = [collections.Counter(w.name for w in each if w.kind != "seed") for each in (weights, stored_weights)]
    names = {name for count in counts for name, n in count.items() if n > 1}
    return {name for name in names if counts[0][name] != counts[1][name] and counts[0][name] and counts[1][name]}


def _match_optimizer(
    match: VariableMatch,
    here: Mapping[int, Facts],
    there: Mapping[int, Facts],
    weights: Mapping[_Weight, int],
    stored_weights: Mapping[_Weight, int],
) -> None:
    """Matches the optimizer variables of weights that are restored, and those of no weight."""
    names = {weight.name for weight in (*weights, *stored_weights) if weight.kind == "weight"}
    if repeated := _repeated_names([_flat(name) for name in names]):
        same = sorted(name for name in names if _flat(name) == repeated[0])
        text = f"the optimizer variables of the weights {same} have the same names: it is not known which is which"
        match.objections.append(Objection(text))
        return
    slots, stored_slots = _slots(here, weights), _slots(there, stored_weights)
    restored = {weight for weight, number in stored_weights.items() if number in match.numbers}
    for weight in [None, *restored]:
        own, stored = slots.get(weight, {}), stored_slots.get(weight, {})
        facts = {key: comparable_facts(here[number]) for key, number in own.items()}
        stored_facts = {key: comparable_facts(there[number]) for key, number in stored.items()}
        if facts != stored_facts:
            of = "the optimizer" if weight is None else f"the optimizer for {weight.name!r}"
            text = (
                f"{of} has the variables {sorted(name for name, _ in own)}, and had "
                f"{sorted(name for name, _ in stored)} in the checkpoint. It must be the optimizer that was "
                "saved: no value of `allow` accepts another one"
            )
            match.objections.append(Objection(text))
            return
        match.numbers |= {stored[key]: number for key, number in own.items()}


_Slots = dict[tuple[str, int], int]  # numbers of variables by their names, without that of the weight, and occurrence


def _slots(variables: Mapping[int, Facts], weights: Mapping[_Weight, int]) -> dict[_Weight | None, _Slots]:
    """Returns the optimizer variables of each weight, and, for None, those of no weight."""
    names = {_flat(weight.name): weight.name for weight in weights if weight.kind == "weight"}
    lengths = sorted({len(name) for name in names}, reverse=True)
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    result: dict[_Weight | None, _Slots] = collections.defaultdict(dict)
    for number, facts in variables.items():
        if facts["kind"] != "optimizer":
            continue
        name = _flat(_clean(facts))
        owner = _longest_part(name, names, lengths)
        before, star, after = (name, "", "") if owner is None else _around(name, owner)
        rest = re.sub(r"_\d+(?=_|$)", "", before) + star + after  # Keras numbers the names of optimizers
        key = (names.get(owner or "", ""), rest)
        occurrence, seen[key] = seen[key], seen[key] + 1
        if owner is None:
            result[None][rest, occurrence] = number
        else:
            result[_Weight("weight", names[owner], occurrence)][rest, 0] = number
    return result


def _around(name: str, owner: str) -> tuple[str, str, str]:
    before, _, after = name.partition(owner)
    return before, "_*_", after


def _flat(name: str) -> str:
    return f"_{name.replace('/', '_')}_"


def _longest_part(name: str, names: Mapping[str, str], lengths: Sequence[int]) -> str | None:
    """Returns the longest of `names` that is a part of a name."""
    for length in lengths:
        for start in range(len(name) - length + 1):
            if name[start : start + length] in names:
                return name[start : start + length]
    return None
