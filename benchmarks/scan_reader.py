"""The external process of the suite `scans`: makes all long reads of a table, and checks the results.

It reads lines `WHERE SECONDS` from its standard input. For each line, it works for that long, or until the operation
that it has begun is complete, and prints a line of JSON. WHERE is "alone" (it only sleeps), "copy" or "job". It keeps
everything that it reads. It checks this after the time is over, or in a pause when there is too much to keep, so that
checking takes nothing from the job while its steps are counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import scan_content
from tf_sparse_ps import _table
from tf_sparse_ps import table as store
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.table import Report, Table

_COMMIT_S = 120.0  # a job that commits nothing for this long is dead
_POLL_S = 0.0005
_KEPT_BYTES = 2 << 30  # of results that are still unchecked
_NEWEST = 32  # a lookup reads the new keys of this many steps; half of these steps are not made yet

Check = Callable[[], list[str]]  # returns what is wrong


class Place:
    """A table, and the operations on it.

    Args:
        path: The path of the table.
        filled: The group's step when training began.
        content: The expected content.
        folder: A folder for files.
    """

    def __init__(
        self, path: str, filled: int, sizes: scan_content.Sizes, content: scan_content.Content, folder: Path
    ) -> None:
        self.table = Table.open(path)
        self._filled, self._sizes, self._content, self._folder = filled, sizes, content, folder
        self._draw = np.random.default_rng(7)
        self._saved = 0
        self.operations: dict[str, Callable[[], Check]] = {
            "keys": self._keys,
            "save": self._save,
            "verify": self._verify,
            "lookup": self._lookup,
        }

    @property
    def n(self) -> int:
        """The last training step."""
        return self.table.step - self._filled

    def _keys(self) -> Check:
        before = self.n
        keys = self.table.keys()
        after = self.n
        return lambda: self._content.wrong_keys(keys, before, after)

    def _save(self) -> Check:
        self._saved += 1
        path = self.table.save(self._folder / str(self._saved))
        return lambda: self._wrong_in_file(path)

    def _verify(self) -> Check:
        report = self.table.verify()
        return lambda: self._wrong_in_report(report)

    def _lookup(self) -> Check:
        keys = self._draw.integers(0, self._sizes.rows, self._sizes.lookup)
        newest = range(max(1, self.n - _NEWEST // 2), max(1, self.n - _NEWEST // 2) + _NEWEST)
        new = np.concatenate([scan_content.new_keys(step) for step in newest])
        keys[: len(new)] = new
        step, rows = store.read({self.table: keys})
        return lambda: self._content.wrong_rows(keys, rows[self.table], step - self._filled)

    def _wrong_in_report(self, report: Report) -> list[str]:
        return [*report.problems, *self._content.wrong_count(report.rows, report.step - self._filled)]

    def _wrong_in_file(self, path: Path) -> list[str]:
        reader = _table.ParameterFileReader(str(path))
        n = reader.info()["step"] - self._filled
        wrong, keys_of_blocks = self._content.wrong_count(reader.info()["n_rows"], n), []
        for block in range(reader.blocks()):
            keys, rows, (accumulators,), _ = reader.read_block(block, True)
            keys_of_blocks.append(keys)
            wrong += self._content.wrong_rows(keys, rows, n, accumulators)
        shutil.rmtree(path.parent)
        return wrong + self._content.wrong_keys(np.concatenate(keys_of_blocks), n, n)


@dataclasses.dataclass(frozen=True)
class Job:
    """The job that trains meanwhile.

    Attributes:
        table: The table that the job trains.
        pids: The process ids of its ranks.
    """

    table: Place
    pids: Sequence[int]

    def await_commit(self) -> tuple[int, float]:
        """Waits for the next step; returns the step, and the time at which it was seen."""
        before, deadline = self.table.n, time.perf_counter() + _COMMIT_S
        while (step := self.table.n) == before:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"the job has not made a step for {_COMMIT_S} s")
            time.sleep(_POLL_S)
        return step, time.perf_counter()

    def processor_s(self) -> float:
        """Returns the processor time of all ranks so far."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def work(place: Place | None, job: Job, seconds: float, lookups: int) -> dict[str, Any]:
    """Repeats every other operation once and then `lookups` lookups, until the time is over; checks the results.

    Args:
        place: The table to work on; None: sleep.
        job: The job that trains meanwhile.
        seconds: The least time to work.
        lookups: The number of lookups after the other operations.

    Returns:
        The job's steps and the seconds that they took; the processor time that this process, and the ranks, used in
        them; the seconds that each operation took, and the job's steps meanwhile, by operation; the seconds for which
        each lookup was blocked or retried; errors; and what was wrong with results.
    """
    times: dict[str, list[float]] = {}
    meanwhile: dict[str, int] = {}
    blocked: list[float] = []
    errors: list[str] = []
    checks: list[tuple[str, Check]] = []
    wrong: list[str] = []
    steps, elapsed, processor, ranks = 0, 0.0, 0.0, 0.0
    names = itertools.cycle(["keys", "save", "verify", *["lookup"] * lookups])
    done = 0
    while elapsed < seconds or done % (lookups + 3):
        first, began = job.await_commit()
        processor, ranks = processor - time.process_time(), ranks - job.processor_s()
        if place is None:
            time.sleep(seconds)
        else:
            while True:
                name = next(names)
                done += 1
                waited, n, start = _blocked_s(place), job.table.n, time.perf_counter()
                try:
                    checks.append((name, place.operations[name]()))
                except TableError as error:
                    errors.append(f"{name}: {error}")
                times.setdefault(name, []).append(time.perf_counter() - start)
                meanwhile[name] = meanwhile.get(name, 0) + job.table.n - n
                if name == "lookup":
                    blocked.append(_blocked_s(place) - waited)
                complete = done % (lookups + 3) == 0 and elapsed + time.perf_counter() - began >= seconds
                if complete or _own_bytes() > _KEPT_BYTES:
                    break
        processor += time.process_time()
        last, ended = job.await_commit()
        ranks += job.processor_s()
        steps, elapsed = steps + last - first, elapsed + ended - began
        wrong += [f"{name}: {text}" for name, check in checks for text in check()]
        checks.clear()
    return {
        "steps": steps,
        "seconds": elapsed,
        "processor_s": processor,
        "ranks_processor_s": ranks,
        "times": times,
        "meanwhile": meanwhile,
        "blocked": blocked,
        "errors": errors,
        "wrong": wrong,
    }


def _own_bytes() -> int:
    """Returns the bytes of memory that this process shares with no other."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _blocked_s(place: Place) -> float:
    # This does not call stats(), because it reads the table.
    return float(place.table._group.counters()["read_blocked_ns_total"]) / 1e9


def main() -> None:
    """Works until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="a folder for files")
    parser.add_argument("--job", required=True, help="the table that is trained")
    parser.add_argument("--filled", type=int, required=True, help="the step of that table when training began")
    parser.add_argument("--pids", type=int, nargs="+", required=True, help="the process ids of the job's ranks")
    parser.add_argument("--copy", required=True, help="a table of another group, with the same rows as at that step")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sizes = scan_content.QUICK if options.quick else scan_content.FULL
    content = scan_content.Content(sizes)
    trained = Place(options.job, options.filled, sizes, content, options.folder / "job")
    copy = Place(options.copy, Table.open(options.copy).step, sizes, content, options.folder / "copy")
    places = {"alone": None, "copy": copy, "job": trained}
    job = Job(trained, options.pids)
    for line in sys.stdin:
        where, seconds = line.split()
        print(json.dumps(work(places[where], job, float(seconds), sizes.lookups)), flush=True)


if __name__ == "__main__":
    main()
