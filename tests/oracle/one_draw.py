"""Makes one draw: runs its job until a run ends without a kill, and compares the results of every run."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
import traceback
from pathlib import Path

from tests.oracle import jobs, live_tables
from tests.oracle.options import Plan
from tests.oracle.shadow import Shadow


@dataclasses.dataclass
class Result:
    """The result of a draw.

    Attributes:
      plan: The plan of the draw.
      problems: Descriptions of all problems; empty: none.
      folder: The folder of plan, outputs and snapshots, which is kept if there are problems.
      runs, kills, compared: The numbers of runs, kills and compared arrays.
      seconds: The duration of the draw.
    """

    plan: Plan
    problems: list[str] = dataclasses.field(default_factory=list)
    folder: Path | None = None
    runs: int = 0
    kills: int = 0
    compared: int = 0
    seconds: float = 0.0


def make(plan: Plan) -> Result:
    """Makes a draw. Its folders are removed, except for the first one with problems."""
    result, began = Result(plan), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"tsps-oracle-{plan.options.seed}-"))
    tables = Path(tempfile.mkdtemp(prefix="tsps-oracle-", dir="/dev/shm"))
    path = folder / "plan.json"
    path.write_text(plan.to_json())
    shadow = Shadow(plan)
    try:
        _runs(plan, path, tables, shadow, result)
    except jobs.HangError as error:
        result.problems.append(f"hang: {error}")
    except Exception:  # includes exceptions of the store, which the driver reads
        result.problems.append(traceback.format_exc())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(tables, ignore_errors=True)
    result.problems = [*shadow.problems, *result.problems]
    result.compared = 0 if shadow.comparison is None else shadow.comparison.made
    result.seconds = time.monotonic() - began
    if result.problems:
        result.folder = folder
        (folder / "problems.txt").write_text("\n".join(result.problems))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _runs(plan: Plan, path: Path, tables: Path, shadow: Shadow, result: Result) -> None:
    for number in range(len(plan.kills) + 1):
        outcome = jobs.run(plan, path, number, tables)
        result.runs += 1
        result.kills += outcome.killed
        shadow.check(number, path.parent / f"run{number}", outcome)
        if not outcome.killed and outcome.status != 0:
            result.problems.append(f"run {number} failed with status {outcome.status}: {_errors(outcome.output)}")
        if shadow.problems or result.problems or not outcome.killed:
            return
        _between(plan, number, tables, shadow)


def _between(plan: Plan, number: int, tables: Path, shadow: Shadow) -> None:
    """Reads the tables of one node in another process, and may write them, after all ranks have ended."""
    options = plan.options
    if not options.named or len(options.nodes) > 1 or any(table.cache for table in options.tables):
        return
    folders = live_tables.paths(tables, len(options.tables))
    if not folders or not shadow.candidates or shadow.comparison is None:
        return
    arrays = live_tables.read(folders)
    matching = live_tables.matching(shadow.comparison, shadow.candidates, arrays)
    if not matching:
        problems = {
            position: shadow.comparison.problems(state, {0: arrays}, tables_only=True)[:2]
            for position, state in shadow.candidates.items()
        }
        shadow.problems.append(f"after run {number}, the tables have a state that they must not have: {problems}")
        return
    shadow.candidates = {position: shadow.candidates[position] for position in matching}
    if edit := plan.edits[number]:
        position = max(matching)
        shadow.problems += live_tables.edit(folders, options, edit)
        shadow.edit(edit, position)


def _errors(output: str) -> str:
    """Returns the lines of an output that describe errors, and the last lines."""
    lines = output.splitlines()
    telling = [line for line in lines if "Error" in line or "died" in line or "assert" in line.lower()]
    return "\n".join([*telling[-12:], "...", *lines[-12:]])


def remove(result: Result) -> None:
    """Removes the folder that a draw has kept."""
    if result.folder is not None:
        shutil.rmtree(result.folder, ignore_errors=True)
        result.folder = None
