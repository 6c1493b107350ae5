"""The content of the group of the crash tests after step s, which is a function of s.

Each step changes several of the seven tables:

  hot    SGD, rate 1, gradient 1: 256 rows, all in every step, so each element is -s
  mixed  Adagrad, gradient 1: 64 rows in every step, 400 new keys per step (the index grows), and in every fifth step
         also the 400 keys of the step before (the undo log's size varies)
  rare   SGD: 32 rows, in every third step; other steps leave the table alone
  narrow, half  Nesterov's momentum with bfloat16 rows, AMSGrad with float16 rows, both rounded stochastically: 64 rows
         in every step, gradient 1
  passing  Adam, gradient 1: 100 new keys per step. Every fourth step is followed by an erase of all keys except those
         of the last four steps. At such a step the table contains either all keys to erase, or none
  far    Adagrad, gradient 1, partly on disk: 64 rows in every step, 100 new keys per step, and also the keys of the
         step 40 steps before. Memory holds the rows of some ten steps: rows go to disk, come back, and go again
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.reference import row_rules
from tf_sparse_ps import optimizers
from tf_sparse_ps import table as store
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.config.tiered import Tiered
from tf_sparse_ps.table import Table

HOT, MIXED, RARE, NARROW, NEW, PASSING = 256, 64, 32, 64, 400, 100
FAR, FAR_NEW, FAR_AGAIN = 64, 100, 40
FAR_ROWS = 1 << 18  # at most: 3 MiB of memory record their places, and 1.5 MiB are buffers
FAR_MEMORY = 5_590_000
ERASE_EVERY = 4  # steps
_SCANNED = 20  # the number of recent steps whose new rows a scan checks
_ADAGRAD = optimizers.Adagrad(learning_rate=1.0, initial_accumulator_value=0.1, epsilon=1e-7)
_SGD = optimizers.SGD(learning_rate=1.0)
_ADAM = optimizers.Adam(learning_rate=1.0, beta_1=0.9, beta_2=0.99, epsilon=1e-3)
_NESTEROV = optimizers.SGD(learning_rate=1e-3, momentum=0.5, nesterov=True)
_AMSGRAD = optimizers.Adam(learning_rate=1e-3, amsgrad=True)
CONFIGS = (
    TableConfig("hot", 16, seed=1, optimizer=_SGD),
    TableConfig("mixed", 8, seed=1, optimizer=_ADAGRAD),
    TableConfig("rare", 4, seed=1, optimizer=_SGD),
    TableConfig("passing", 4, seed=1, optimizer=_ADAM),
    TableConfig("narrow", 8, seed=1, optimizer=_NESTEROV, dtype="bfloat16"),
    TableConfig("half", 12, seed=1, optimizer=_AMSGRAD, dtype="float16"),
)


def disk_of(group: Path) -> Path:
    """Returns the folder for the rows of `far` on disk."""
    return group.with_name(group.name + "-disk")


def configs(group: Path) -> list[TableConfig]:
    """Returns the configurations of a group's tables. The rows of `far` are on a disk next to the group."""
    storage = Tiered(disk_of(group), FAR_MEMORY)
    far = TableConfig("far", 8, seed=1, max_rows=FAR_ROWS, optimizer=_ADAGRAD, storage=storage)
    return [*CONFIGS, far]


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def new_keys(step: int) -> Ints:
    """Returns the keys that enter `mixed` at `step`, spread over all int64 values."""
    numbers = (np.arange(NEW, dtype=np.uint64) + np.uint64(step * NEW + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return numbers.view(np.int64)


def passing_keys(first: int, last: int) -> Ints:
    """Returns the keys that enter `passing` in these steps."""
    return np.arange(max(first, 1) * PASSING, (last + 1) * PASSING, dtype=np.int64)


def far_keys(step: int) -> Ints:
    """Returns the keys that enter `far` at `step`."""
    return np.arange(step * FAR_NEW, (step + 1) * FAR_NEW, dtype=np.int64)


def updates(step: int) -> dict[str, Ints]:
    """Returns the keys of each table in `step` (1, 2, ...)."""
    mixed = [np.arange(MIXED, dtype=np.int64), new_keys(step)]
    if step % 5 == 0:
        mixed.append(new_keys(step - 1))
    parts = {
        "hot": np.arange(HOT, dtype=np.int64),
        "mixed": np.concatenate(mixed),
        "passing": passing_keys(step, step),
        "narrow": np.arange(NARROW, dtype=np.int64),
        "half": np.arange(NARROW, dtype=np.int64),
    }
    far = [np.arange(FAR, dtype=np.int64), far_keys(step)]
    if step > FAR_AGAIN:
        far.append(far_keys(step - FAR_AGAIN))
    parts["far"] = np.concatenate(far)
    if step % 3 == 0:
        parts["rare"] = np.arange(RARE, dtype=np.int64)
    return parts


@dataclasses.dataclass
class Group:
    """The open tables."""

    tables: dict[str, Table]

    @classmethod
    def create(cls, path: Path) -> Group:
        group = cls({config.name: Table.create(path / config.name, config) for config in configs(path)})
        for name, rows in (("hot", HOT), ("rare", RARE)):
            table = group.tables[name]
            table.assign(np.arange(rows), np.zeros((rows, table.config.dim), np.float32))
        return group

    @classmethod
    def open(cls, path: Path, mode: str) -> Group:
        return cls({config.name: Table.open(path / config.name, mode, config) for config in configs(path)})  # type: ignore[arg-type]

    @property
    def step(self) -> int:
        return self.tables["hot"].step

    def advance(self) -> int:
        """Makes the next step, and erases the keys that must go after it."""
        parts = updates(self.step + 1)
        step = store.step(
            {
                self.tables[name]: (keys, np.ones((len(keys), self.tables[name].config.dim), np.float32))
                for name, keys in parts.items()
            }
        )
        self.erase(step)
        return step

    def erase(self, step: int) -> None:
        """Erases keys after a step. A writer that takes over repeats it, because it cannot know whether it happened."""
        if step % ERASE_EVERY == 0:
            self.tables["passing"].erase(passing_keys(step - 2 * ERASE_EVERY, step - ERASE_EVERY))


class _Narrow:
    """Rows and slots of a table with 16-bit rows that every step changes, bit for bit."""

    def __init__(self, untouched: Table) -> None:
        self.name = untouched.config.name
        self._config = untouched.config
        self._salt = untouched.core_initializer()["salt"]
        self._initial = untouched.lookup(np.arange(NARROW))
        self._begin()

    def _begin(self) -> None:
        assert self._config.optimizer is not None
        self._step, self._rows = 0, self._initial
        self._slots = [np.full_like(self._initial, start) for start in self._config.optimizer.slot_init]

    def after(self, step: int) -> tuple[Floats, list[Floats]]:
        """Returns the rows and slots after a step."""
        rule, keys, gradients = self._config.optimizer, np.arange(NARROW), np.ones_like(self._initial)
        assert rule is not None
        if step < self._step:
            self._begin()
        while self._step < step:
            self._step += 1
            rows, self._slots = row_rules.update(
                rule.kind, rule.hyper_values(self._step), self._rows, self._slots, gradients
            )
            draws = row_rules.row_draws(1, self._salt, keys, self._step)
            self._rows = row_rules.widen(row_rules.stochastic(rows, self._config.dtype, draws))
        return self._rows, self._slots


class Expectation:
    """Expected rows. `untouched` is an untrained group of the same configuration, which has the initial rows."""

    def __init__(self, untouched: Group) -> None:
        self._initial = untouched.tables["mixed"]
        self._passing = untouched.tables["passing"]
        self._far = untouched.tables["far"]
        # After n updates by Adagrad with gradient 1: the sum of rates, in the order of float32 operations per element.
        self._accumulators = [np.float32(0.1)]
        self._hot_cache: tuple[int, Floats] | None = None
        self._narrow = [_Narrow(untouched.tables[name]) for name in ("narrow", "half")]

    def _accumulator(self, n: int) -> np.float32:
        while len(self._accumulators) <= n:
            self._accumulators.append(np.float32(self._accumulators[-1] + np.float32(1)))
        return self._accumulators[n]

    def mixed(self, keys: Ints, n_updates: int) -> tuple[Floats, np.float32]:
        """Returns the rows of `mixed` and the accumulator, equal in every element, after `n_updates`."""
        return self._by_adagrad(self._initial, keys, n_updates)

    def far(self, entered: int, step: int) -> tuple[Floats, np.float32]:
        """Returns the same for keys of `far` that entered at a step; with `entered` = 0, for the permanent ones."""
        again = entered > 0 and entered + FAR_AGAIN <= step
        n_updates = step if entered == 0 else 0 if entered > step else 2 if again else 1
        keys = np.arange(FAR, dtype=np.int64) if entered == 0 else far_keys(entered)
        return self._by_adagrad(self._far, keys, n_updates)

    def _by_adagrad(self, initial: Table, keys: Ints, n_updates: int) -> tuple[Floats, np.float32]:
        rows = initial.lookup(keys)
        for n in range(1, n_updates + 1):
            rows = rows - np.float32(1) / np.sqrt(self._accumulator(n) + np.float32(1e-7))
        return rows, self._accumulator(n_updates)

    @staticmethod
    def updates_of(entered: int, step: int) -> int:
        """Returns the number of updates by `step` of the keys that entered at step `entered`."""
        if entered > step:
            return 0
        return 2 if (entered + 1) % 5 == 0 and entered + 1 <= step else 1

    def check_read(self, group: Group, steps_ahead: int = 2) -> tuple[int, list[str]]:
        """Makes one consistent read of several tables. Returns its step and the faults."""
        current_step = group.step
        entered = list(range(max(1, current_step - 3), current_step + 1 + steps_ahead))
        fresh = np.concatenate([new_keys(s)[:50] for s in entered])
        distant = sorted({max(1, current_step - ago) for ago in (0, FAR_AGAIN - 1, FAR_AGAIN, 2 * FAR_AGAIN)})
        step, rows = store.read(
            {
                group.tables["narrow"]: np.arange(NARROW),
                group.tables["half"]: np.arange(NARROW),
                group.tables["hot"]: np.arange(HOT),
                group.tables["mixed"]: np.concatenate([np.arange(MIXED), fresh]),
                group.tables["rare"]: np.arange(RARE),
                group.tables["far"]: np.concatenate([far_keys(s) for s in distant]),
            }
        )
        wrong = []
        _expect(wrong, "hot", step, rows[group.tables["hot"]], np.float32(-step))
        _expect(wrong, "rare", step, rows[group.tables["rare"]], np.float32(-(step // 3)))
        for narrow_table in self._narrow:
            if not np.array_equal(rows[group.tables[narrow_table.name]], narrow_table.after(step)[0]):
                wrong.append(f"rows of {narrow_table.name} at step {step} differ")
        for s, part in zip(distant, np.split(rows[group.tables["far"]], len(distant)), strict=True):
            _expect(wrong, f"far row of step {s}", step, part, self.far(s, step)[0])
        mixed = rows[group.tables["mixed"]]
        _expect(wrong, "mixed", step, mixed[:MIXED], self._mixed_hot(step))
        for i, s in enumerate(entered):
            n = self.updates_of(s, step)
            label = "initial value" if n == 0 else f"row of {n} updates"
            part = mixed[MIXED + 50 * i : MIXED + 50 * (i + 1)]
            _expect(wrong, label, step, part, self.mixed(new_keys(s)[:50], n)[0])
        return step, wrong

    def check_all(self, group: Group, step: int) -> list[str]:
        """Returns the faults of all rows, slots and keys of a group without a writer."""
        wrong: list[str] = []
        table = group.tables["mixed"]
        hot = np.arange(MIXED, dtype=np.int64)
        keys = [hot if step else hot[:0]]
        expected = [(self._mixed_hot(step), self._accumulator(step))]
        for s in range(1, step + 1):
            keys.append(new_keys(s))
            expected.append(self.mixed(keys[-1], self.updates_of(s, step)))
        for part, (rows, accumulator) in zip(keys, expected, strict=True):
            is_present, values, slots = table.entries(part)
            if not is_present.all():
                wrong.append(f"step {step}: {int((~is_present).sum())} keys are missing")
                continue
            if len(part):
                _expect(wrong, "row", step, values, rows)
                _expect(wrong, "slot", step, slots[0], accumulator)
        count = sum(map(len, keys))
        if len(table) != count or not np.array_equal(np.sort(table.keys()), np.sort(np.concatenate(keys))):
            wrong.append(f"step {step}: {len(table)} keys, {count} expected")
        for narrow_table in self._narrow:
            is_present, values, slots = group.tables[narrow_table.name].entries(np.arange(NARROW if step else 0))
            expected_values, expected_slots = narrow_table.after(step)
            pairs = zip((values, *slots), (expected_values, *expected_slots), strict=True)
            if not is_present.all() or (step and not all(np.array_equal(a, b) for a, b in pairs)):
                wrong.append(f"rows or slots of {narrow_table.name} at step {step} differ")
        wrong += self._check_far(step, *group.tables["far"].entries(self._far_keys(step)))
        if len(group.tables["far"]) != len(self._far_keys(step)):
            wrong.append(f"step {step}: {len(group.tables['far'])} far keys, {len(self._far_keys(step))} expected")
        passing = group.tables["passing"]
        passing_keys_now = np.sort(passing.keys())
        wrong += self._check_passing(step, passing_keys_now, *passing.entries(passing_keys_now)[1:])
        _, read_wrong = self.check_read(group)
        return wrong + read_wrong

    def check_scans(self, group: Group) -> list[str]:
        """Scans each table, and returns the faults of its keys and of rows that change."""
        wrong: list[str] = []
        with group.tables["hot"].scan() as scan:
            keys, rows, *_ = scan.read()
            _expect(wrong, "scanned row", scan.step, rows, np.float32(-scan.step))
            if len(keys) != HOT:
                wrong.append(f"step {scan.step}: {len(keys)} keys in a scan")
        with group.tables["mixed"].scan() as scan:
            step, (keys, rows, (accumulators,), _) = scan.step, scan.read()
        entered = [new_keys(s) for s in range(1, step + 1)]
        known = np.concatenate([np.arange(MIXED if step else 0, dtype=np.int64), *entered])
        order, expected = np.argsort(keys), np.sort(known)
        if not np.array_equal(keys[order], expected):
            return [*wrong, f"step {step}: {len(keys)} keys in a scan, {len(known)} expected, or others"]
        for s in range(max(0, step - _SCANNED), step + 1):
            part = new_keys(s) if s else np.arange(MIXED if step else 0, dtype=np.int64)
            n = self.updates_of(s, step)
            row, accumulator = self.mixed(part, n) if s else (self._mixed_hot(step), self._accumulator(step))
            at = order[np.searchsorted(expected, part)]
            if len(part):
                _expect(wrong, "scanned row", step, rows[at], row)
                _expect(wrong, "scanned slot", step, accumulators[at], accumulator)
        with group.tables["far"].scan() as scan:
            step, (keys, rows, slots, _) = scan.step, scan.read()
        order = np.argsort(keys)
        if np.array_equal(keys[order], self._far_keys(step)):
            is_present = np.ones(len(keys), bool)
            wrong += self._check_far(step, is_present, rows[order], tuple(slot[order] for slot in slots))
        else:
            wrong.append(
                f"step {step}: {len(keys)} far keys in a scan, {len(self._far_keys(step))} expected, or others"
            )
        with group.tables["passing"].scan() as scan:
            step, (keys, rows, slots, _) = scan.step, scan.read()
        order = np.argsort(keys)
        return wrong + self._check_passing(step, keys[order], rows[order], tuple(slot[order] for slot in slots))

    @staticmethod
    def _far_keys(step: int) -> Ints:
        """Returns all keys of `far` after a step, ascending."""
        hot = np.arange(FAR if step else 0, dtype=np.int64)
        return np.concatenate([hot, np.arange(FAR_NEW, (step + 1) * FAR_NEW if step else FAR_NEW, dtype=np.int64)])

    def _check_far(
        self, step: int, is_present: npt.NDArray[np.bool_], rows: Floats, slots: tuple[Floats, ...]
    ) -> list[str]:
        wrong: list[str] = []
        if not is_present.all():
            return [f"step {step}: {int((~is_present).sum())} far keys are missing"]
        expected = [self.far(s, step) for s in range(step + 1)] if step else []
        if expected:
            _expect(wrong, "far row", step, rows, np.concatenate([row for row, _ in expected]))
            accumulators = np.concatenate([np.full(len(row), value, np.float32) for row, value in expected])
            _expect(wrong, "far slot", step, slots[0], np.broadcast_to(accumulators[:, None], rows.shape))
        return wrong

    def _check_passing(self, step: int, keys: Ints, rows: Floats, slots: tuple[Floats, ...]) -> list[str]:
        wrong: list[str] = []
        last = step - step % ERASE_EVERY  # some keys were erased after this step, or are being erased
        sets = [passing_keys(last - ERASE_EVERY + 1, step)]
        if step == last:
            sets.append(passing_keys(last - 2 * ERASE_EVERY + 1, step))
        if not any(np.array_equal(keys, key_set) for key_set in sets):
            return [
                f"step {step}: {len(keys)} passing keys, {' or '.join(str(len(key_set)) for key_set in sets)} expected"
            ]
        t = (keys // PASSING).astype(np.float64)[:, None]
        rate = np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
        change = rate * 0.1 / (np.sqrt(0.01) + 1e-3)
        if len(keys):
            _expect(wrong, "passing row", step, rows, (self._passing.lookup(keys) - change).astype(np.float32))
            _expect(wrong, "passing slot", step, slots[0], np.float32(0.1))
            _expect(wrong, "passing slot", step, slots[1], np.float32(0.01))
        return wrong

    def _mixed_hot(self, step: int) -> Floats:
        # One more update per step. Recomputing from the start every time would be quadratic.
        if self._hot_cache is None or self._hot_cache[0] > step:
            self._hot_cache = (0, self._initial.lookup(np.arange(MIXED)))
        at, rows = self._hot_cache
        for n in range(at + 1, step + 1):
            rows = rows - np.float32(1) / np.sqrt(self._accumulator(n) + np.float32(1e-7))
        self._hot_cache = (step, rows)
        return rows


def _expect(wrong: list[str], label: str, step: int, actual: Floats, expected: Floats | np.float32) -> None:
    if not np.allclose(actual, expected, rtol=1e-5, atol=1e-5):
        error = np.abs(actual - expected)
        wrong.append(f"{label} at step {step}: off by up to {error.max():.3g} in {int((error > 1e-5).sum())} elements")
