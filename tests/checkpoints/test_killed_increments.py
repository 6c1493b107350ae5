"""Saves of increments, compactions and restores are killed at fault points and at random times."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import increments_program as program
import pytest

from tf_sparse_ps.checkpoints import fault_points
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint

HERE = Path(__file__).resolve().parent


@pytest.fixture
def shared_memory() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="tsps-test-killed-", dir="/dev/shm")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def command(path: Path, folder: str, steps: int = 0, point: str = "-", passes: int = 0, flaw: str = "-") -> list[str]:
    file = str(HERE / "increments_program.py")
    return [sys.executable, file, str(path), folder, str(steps), point, str(passes), flaw]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the program until it ends or kills itself."""
    done = command(*args, **options)  # type: ignore[arg-type]
    return subprocess.run(done, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def must_be_whole(path: Path, at_least: int) -> StoredCheckpoint | None:
    """Asserts that the newest checkpoint is complete and contains the rows of its step, and that none was passed over.

    Args:
      path: The directory of checkpoints.
      at_least: A step that was saved.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)  # not ResourceWarning: garbage of an earlier test may raise it
        newest, skipped = CheckpointDirectory(path).newest()
    assert (skipped, [str(warning.message) for warning in caught]) == ([], []), "a checkpoint is not whole"
    if newest is None:
        assert at_least == 0
        return None
    assert newest.manifest.step >= at_least
    program.must_hold(newest)
    return newest


def newest_saved(output: str) -> int:
    """Returns the newest step that the program reported as saved."""
    return max((int(line.split()[1]) for line in output.splitlines() if line.startswith(("saved", "began"))), default=0)


def test_the_program_saves_increments_and_compacts(tmp_path: Path, shared_memory: str) -> None:
    done = run(tmp_path, shared_memory, steps=12)
    assert done.stdout.endswith("done\n"), done.stderr
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("step-")} == set()
    newest = must_be_whole(tmp_path, 12)
    assert newest is not None
    assert len(newest.builds_on) == 4  # 8 has all rows, because the program compacts after 7
    assert run(tmp_path, shared_memory, steps=1).stdout.splitlines() == ["began 12", "saved 13", "done"]


# The program saves an increment at step 2 and compacts at step 7. Every day the test kills it at the fault points
# between which a checkpoint begins to count.
DAILY = ("manifest_written", "renamed")
PASSED = [
    pytest.param(point, passes, marks=[] if point in DAILY and passes == 1 else pytest.mark.nightly)
    for point in fault_points.POINTS
    for passes in (1, 4)
]


@pytest.mark.parametrize(("point", "passes"), PASSED, ids=str)
def test_a_save_of_an_increment_that_is_killed_leaves_whole_checkpoints(
    tmp_path: Path, shared_memory: str, point: str, passes: int
) -> None:
    killed = run(tmp_path, shared_memory, steps=25, point=point, passes=passes)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    must_be_whole(tmp_path, newest_saved(killed.stdout))
    # Another run is killed on top of the leftover files. The next one completes.
    killed = run(tmp_path, shared_memory, steps=25, point=point, passes=passes)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = must_be_whole(tmp_path, newest_saved(killed.stdout))
    done = run(tmp_path, shared_memory, steps=3)
    assert done.returncode == 0, done.stderr
    after = must_be_whole(tmp_path, newest_saved(done.stdout))
    assert before is None or (after is not None and after.manifest.step == before.manifest.step + 3)
    assert all(path.name.startswith("step-") for path in tmp_path.iterdir()), "files are left over"


_COMPACT = """
import os, signal, sys
from pathlib import Path
from tf_sparse_ps.checkpoints import compaction, fault_points

left = [int(sys.argv[3])]

def act(point):
    if point == sys.argv[2]:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

fault_points.set_action(act)
compaction.compact(Path(sys.argv[1]), keep=1)
"""


@pytest.mark.parametrize(
    "point",
    [pytest.param(one, marks=[] if one in DAILY else pytest.mark.nightly) for one in fault_points.POINTS],
)
def test_a_compaction_that_is_killed_leaves_whole_checkpoints(tmp_path: Path, shared_memory: str, point: str) -> None:
    assert run(tmp_path, shared_memory, steps=6).returncode == 0
    before = must_be_whole(tmp_path, 6)
    assert before is not None
    assert len(before.builds_on) == 5
    for is_second in (False, True):
        passes = int(is_second and point == "file_written")
        compact = [sys.executable, "-c", _COMPACT, str(tmp_path), point, str(passes)]
        killed = subprocess.run(compact, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        # Once the new checkpoint exists, the second compaction only removes old ones.
        assert killed.returncode == -signal.SIGKILL or (is_second and killed.returncode == 0), killed.stderr
        newest = must_be_whole(tmp_path, 6)
        assert newest is not None
        assert newest.manifest.id == before.manifest.id
    done = subprocess.run([*compact[:-2], "-", "0"], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    newest = must_be_whole(tmp_path, 6)
    assert newest is not None
    assert newest.builds_on == ()
    assert [path.name for path in tmp_path.iterdir()] == [newest.path.name], "files are left over"


def test_a_restore_that_is_killed_is_done_again(tmp_path: Path, shared_memory: str) -> None:
    assert run(tmp_path, shared_memory, steps=6).returncode == 0
    killed = run(tmp_path, shared_memory, steps=2, point="rows_restored", passes=1)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    must_be_whole(tmp_path, 6)
    assert run(tmp_path, shared_memory, steps=1).stdout.splitlines() == ["began 6", "saved 7", "done"]


def kill_at_random(path: Path, folder: str, times: int, seed: int, flaw: str = "-") -> list[int]:
    """Kills the program after random times and checks its directory each time. Returns the steps that were found."""
    draw, steps = random.Random(seed), [0]
    for number in range(times):
        begun = command(path, folder, flaw=flaw)
        with subprocess.Popen(begun, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            output = job.stdout.readline()
            # However slow the machine is, some kills come after a save.
            while number % 4 == 3 and "saved" not in output and (line := job.stdout.readline()):
                output += line
            time.sleep(draw.expovariate(1 / 0.15))
            job.kill()
            output += job.stdout.read()
        assert output.startswith(f"began {steps[-1]}"), f"the program did not resume at step {steps[-1]}: {output}"
        newest = must_be_whole(path, newest_saved(output))
        steps.append(0 if newest is None else newest.manifest.step)
        for leftover in Path(folder).iterdir():
            shutil.rmtree(leftover)
        if steps[-1] > 150:  # starts over, because the expected content is computed from the first step on
            shutil.rmtree(path)
            steps.append(0)
    return steps


@pytest.mark.parametrize("times", [12, pytest.param(300, marks=pytest.mark.nightly)])
def test_kills_at_random_times_leave_whole_checkpoints(tmp_path: Path, shared_memory: str, times: int) -> None:
    steps = kill_at_random(tmp_path / "checkpoints", shared_memory, times, seed=times)
    assert max(steps) > 0, "some kills must come after a save"
    done = run(tmp_path / "checkpoints", shared_memory, steps=1)
    assert done.returncode == 0, done.stderr
    leftovers = [path.name for path in (tmp_path / "checkpoints").iterdir() if not path.name.startswith("step-")]
    assert not leftovers, "files are left over"


@pytest.mark.parametrize(("flaw", "text"), [("no rename", "is not whole"), ("old marks", "is not what there was")])
def test_the_kills_find_a_flaw(tmp_path: Path, shared_memory: str, flaw: str, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        kill_at_random(tmp_path / "checkpoints", shared_memory, 200, seed=1, flaw=flaw)
