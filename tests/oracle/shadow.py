"""`Shadow`: follows a job through its runs, and compares every snapshot with the model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from tests.oracle import checkpoint_rules, data, exports, snapshot
from tests.oracle.comparison import Arrays, Comparison
from tests.oracle.jobs import Outcome
from tests.oracle.model import Model
from tests.oracle.options import Plan
from tests.oracle.state import State
from tests.oracle.timeline import Position, Timeline, after, end_of, forward

_LABEL = re.compile(r"(begin|at|evaluated)-(\d+)-(\d+)")
_NOT_EQUAL = 3  # the number of problems of one comparison that are reported


class Shadow:
    """The model of a draw, and the known facts about the job.

    Attributes:
      problems: Descriptions of all problems.
      comparison: Compares, and counts the comparisons.
      candidates: The states that the tables of a named job may have between two runs. Keys are positions, followed by
        the number of applied gradients within a drain. Empty: unknown, for example after a restore was killed.
    """

    def __init__(self, plan: Plan) -> None:
        """Begins before the first run."""
        self._plan, self._options = plan, plan.options
        self.problems: list[str] = []
        self.candidates: dict[tuple[int, ...], State] = {}
        self._model: Model | None = None
        self.comparison: Comparison | None = None
        self._states: dict[Position, State] = {}  # from the last timeline that reached the positions
        self._oldest = (0, 0)  # the oldest checkpoint that a restart may take

    def check(self, number: int, folder: Path, outcome: Outcome) -> None:
        """Compares everything that a run has left."""
        if self._model is None and not self._begin(folder):
            return
        assert self._model is not None
        shots = snapshot.read(folder)
        if "found" in shots:
            self._check_found(number, shots["found"])
        begins = [label for label in shots if label.startswith("begin-")]
        if len(begins) > 1:
            self.problems.append(f"run {number}: ranks began at different positions: {begins}")
            return
        timeline = None
        if begins:
            timeline = self._timeline(number, _position(begins[0]), shots[begins[0]])
            if timeline is None:
                return
            self._check_labels(number, shots, timeline, folder)
        if not outcome.killed:
            self._check_end(number, shots, timeline)
        self._look_ahead(outcome, timeline)

    def _begin(self, folder: Path) -> bool:
        """Learns the facts that follow from (seed, table, key); False: no rank has written them."""
        options = self._options
        files = sorted(folder.glob("rank*.json"))
        if not files:
            return False
        facts = [json.loads(path.read_text())["initializers"] for path in files]
        if any(facts_of_rank != facts[0] for facts_of_rank in facts):
            self.problems.append(f"initial values differ between ranks: {facts}")
        from tf_sparse_ps import _table  # the store itself computes initial values

        initial = []
        for t, fact in enumerate(facts[0]):
            rows = _table.initial_rows(fact, data.pool(options, t), options.tables[t].dim)
            initial.append(_stored(rows, options.tables[t].dtype))
        salts = [fact["salt"] for fact in facts[0]]
        # Training does not decide which node owns a key.
        owners = [
            _table.owners(data.pool(options, t), options.shards(t))
            if options.shards(t) > 1
            else np.zeros(options.tables[t].keys, np.int64)
            for t in range(len(options.tables))
        ]
        self._model = Model(options, initial, salts, owners, self._plan.fault)
        self.comparison = Comparison(self._model)
        first = self._model.first()
        self._states = {(0, 0): first}
        self.candidates = {(0, 0): first}
        return True

    # --- where a run begins ---

    def _check_found(self, number: int, ranks: dict[int, Arrays]) -> None:
        """Compares tables as a run has found them, before it restores anything."""
        assert self._model is not None
        assert self.comparison is not None
        if not self._options.named:
            self.candidates = {(0, 0): self._model.first()}
            self.comparison.count_from_zero(self._model.first())
        if not self.candidates or self._options.any_table(cache="lru") or self._options.any_table(cache="admission"):
            return
        problems_of = {
            position: self.comparison.problems(state, ranks, tables_only=True)
            for position, state in self.candidates.items()
        }
        matching = {position: self.candidates[position] for position, problems in problems_of.items() if not problems}
        if matching:
            self.candidates = matching
            return
        fewest = min(problems_of, key=lambda position: len(problems_of[position]))
        self._add(
            f"run {number} found tables in a state that is not among {sorted(problems_of)}; nearest is {fewest}",
            problems_of[fewest],
        )

    def _timeline(self, number: int, begin: Position, ranks: dict[int, Arrays]) -> Timeline | None:
        """Returns the states of a run that began at a position; None: it must not begin there.

        Args:
          number: The number of the run.
          begin: The position.
          ranks: The snapshots that ranks wrote there.
        """
        assert self._model is not None
        assert self.comparison is not None
        options = self._options
        if options.policy in ("checkpointer", "callback"):
            if begin < self._oldest:
                self.problems.append(
                    f"run {number} began at {begin}, although a checkpoint of {self._oldest} was complete"
                )
            if begin not in self._states:
                self.problems.append(f"run {number} began at {begin}, where nothing was saved")
                return None
            base = self._states[begin]
        else:
            states_of = {forward(self._plan.operations, (at[0], at[1])): state for at, state in self.candidates.items()}
            if begin not in states_of:
                self.problems.append(f"run {number} began at {begin}, not at one of {sorted(states_of)}")
                return None
            base = states_of[begin]
            if options.policy == "live":  # dense weights and the optimizer start again
                base, first = base.copy(), self._model.first()
                base.dense, base.dense_slots, base.iterations = first.dense, first.dense_slots, 0
                base.rate, base.pending, base.in_cycle = first.rate, [], 0
        base = base.copy()
        self._take_seeds(number, base, ranks)
        # The tables of a live job keep their counters. Others count from the time when they were made.
        if number and options.policy != "live":
            self.comparison.count_from(base, ranks)
        else:
            self.comparison.count_from_zero(self._model.first())
        timeline = Timeline(self._model, self._plan.operations, begin, base)
        self._states |= timeline.states
        return timeline

    def _take_seeds(self, number: int, base: State, ranks: dict[int, Arrays]) -> None:
        """Gives the policies the seeds of the tables' hashes, which each job draws."""
        for t, table in enumerate(base.tables):
            for shard, policies in enumerate(table.policies):
                of_node = [
                    tuple(arrays[f"table{t}.seeds"].tolist())
                    for rank, arrays in ranks.items()
                    if len(table.policies) == 1 or self._options.node_of(rank) == shard
                ]
                if len(set(of_node)) > 1:
                    self.problems.append(f"run {number}: ranks with the same rows have other hashes: {of_node}")
                if not of_node:
                    continue
                sketch = policies.admissions.index_seed if policies.admissions is not None else 0
                if policies.has_counts and sketch != of_node[0][1]:
                    self.problems.append(f"run {number}: counts of table {t} were restored with other hashes")
                policies.take_seeds(*of_node[0])

    # --- results of a run ---

    def _check_labels(self, number: int, shots: dict[str, dict[int, Arrays]], timeline: Timeline, folder: Path) -> None:
        assert self.comparison is not None
        for label, ranks in shots.items():
            if (match := _LABEL.fullmatch(label)) is None:
                continue
            position = _position(label)
            if position not in timeline.states:
                self.problems.append(f"run {number} was at {position}, which it cannot reach from its beginning")
                continue
            state = timeline.states[position]
            if match[1] == "evaluated":
                operation = self._plan.operations[position[0] - 1]
                for rank, arrays in ranks.items():
                    batch = data.batch(self._options, operation.first, rank)
                    problems = self.comparison.of_predictions(state, rank, arrays, batch)
                    self._add(f"run {number}, {label}", problems)
                continue
            self._add(f"run {number}, {label}", self.comparison.problems(state, ranks))
        for path in sorted(folder.glob("export-*.tfsps")):
            position = (int(path.name.split("-")[1]), 0)
            if position in timeline.states:
                problems = exports.problems(path, self._options, self.comparison, timeline.states[position])
                self._add(f"run {number}, {path.name}", problems)

    def _check_end(self, number: int, shots: dict[str, dict[int, Arrays]], timeline: Timeline | None) -> None:
        """Checks that a run without a kill has made the whole script, on all ranks."""
        end = end_of(self._plan.operations)
        label = f"at-{end[0]}-0"
        begun_at_end = timeline is not None and end in timeline.states and len(timeline.states) == 1
        if not begun_at_end and len(shots.get(label, {})) != self._options.ranks:
            self.problems.append(f"run {number} ended before the end of its script on some ranks")

    def _look_ahead(self, outcome: Outcome, timeline: Timeline | None) -> None:
        """Records the states that the next run may find, and the oldest checkpoint that it may take."""
        notes = outcome.progress
        begun = [note for note in notes if note is not None and note.phase in ("running", "done")]
        if timeline is None:
            if any(note is not None and note.phase in ("restoring", "running") for note in notes):
                self.candidates = {}
            return
        operations = self._plan.operations
        # A rank that has not begun the script has not passed the beginning of the run.
        passed = [(note.op, note.sub) for note in begun]
        low = min(passed if len(begun) == len(notes) else timeline.states)
        high = after(operations, max(passed)) if passed else low
        self._oldest = max(self._oldest, checkpoint_rules.oldest(self._plan, begun))
        positions = timeline.between(low, high)
        # Loading weights changes the tables several times, one after another.
        loads = any(operations[op].kind == "load_weights" for op, _ in positions if op < len(operations))
        self.candidates = {} if loads else {position: timeline.states[position] for position in positions}
        assert self._model is not None
        for position, state in list(self.candidates.items()):
            for n in range(1, len(state.pending) + 1):
                self.candidates[(*position, n)] = self._model.part_of_drain(state, n)

    def _add(self, where: str, problems: list[str]) -> None:
        self.problems += [f"{where}: {problem}" for problem in problems[:_NOT_EQUAL]]
        if len(problems) > _NOT_EQUAL:
            self.problems.append(f"{where}: and {len(problems) - _NOT_EQUAL} more")

    def edit(self, number: int, position: tuple[int, ...]) -> None:
        """Records that the tables were written between two runs, in the state of a position."""
        assert self._model is not None
        state = self.candidates[position].copy()
        self._model.edit(state, number)
        self.candidates = {position: state}


def _position(label: str) -> Position:
    match = _LABEL.fullmatch(label)
    assert match is not None
    return int(match[2]), int(match[3])


def _stored(rows: np.ndarray, dtype: str) -> np.ndarray:
    import row_rules

    return rows if dtype == "float32" else row_rules.widen(row_rules.nearest(rows, dtype))
