"""python -m tests.crash.nodes [--kills 60]: kills ranks while nodes with sharded tables make a step together.

A job of several nodes trains a sharded table and a replicated one. The harness kills one of its ranks at a named fault
point or at a random time, and starts the job again under the same name. The job must find all nodes at one step, with
the tables of a job that was never killed, bit for bit. It then trains until the next kill. A control without the vote
must find nodes that disagree.

After that, ranks look ahead, with delays between the phases of every write. The tables must equal those of a job that
does not look ahead. In a control, owners send rows ahead that a step may change; its tables must differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

import tf_sparse_ps
from tests.crash import controls
from tf_sparse_ps import _table

_TESTS = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(_TESTS / "multirank")]  # ranks are started by its module `launch`
from launch import launched  # noqa: E402  (see above)

HOSTS = ("localhost:1,127.0.0.1:1", "localhost:1,127.0.0.1:1,127.0.0.2:1")
STEPS = 60  # steps of a job; then another job begins
STEPS_OF_A_RUN = 12
# The points that a step passes, with the highest passage at which a rank is killed.
ONCE_PER_STEP = (
    "begin.undo_valid",
    "begin.odd",
    "undo.reserved",
    "seal.record",
    "seal.sealed",
    "vote.sealed",
    "vote.decided",
    "publish.record",
    "publish.even",
)
POINTS = {
    **dict.fromkeys(ONCE_PER_STEP, STEPS_OF_A_RUN),
    "apply.row": 3000,
    "undo.block": 12,
    "undo.record": 20,
    "commit.insert": 300,
}
OF_TIERS = {
    "record_moves_declared": 12,
    "record_moves_written": 12,
    "tier_appended": 12,
    "record_store_entered_one": 60,
}
_TIMEOUT_S = 40
# The path of the library and of these tests; the library is the build with fault points.
_PYTHON_PATH = os.pathsep.join(
    [str(Path(tf_sparse_ps.__path__[0]).parent), str(_TESTS.parent), str(_TESTS / "multirank")]
)


class Job:
    """A named job and its tables.

    Attributes:
      nodes: The number of nodes. Each has one rank.
      storage: The storage of its sharded table, "memory" or "tiered".
      acknowledged: The last step that a rank has reported as made.
    """

    def __init__(self, folder: Path, name: str, hosts: str, storage: str) -> None:
        self.nodes, self.storage = hosts.count(":"), storage
        self.acknowledged = 0
        self._name, self._hosts, self._tables, self._disk = name, hosts, folder / "tables", folder / "disk"
        for path in (self._tables, self._disk):
            path.mkdir(exist_ok=True)

    def run(self, victim: int = -1, how: str = "0", steps: int = STEPS_OF_A_RUN) -> str:
        """Runs the job once, and returns its output.

        Args:
          victim: The rank that is killed; -1: none, and the ranks report their tables after every step.
          how: How the rank is killed, as an argument of the program.
          steps: The number of steps to make.
        """
        environment = {
            "PYTHONPATH": _PYTHON_PATH,
            "TFSPS_JOB": self._name,
            "TFSPS_DIR": str(self._tables),
            "TFSPS_TIMEOUT_S": str(_TIMEOUT_S),
        }
        each = "each" if victim < 0 else "-"
        program = ["voting_program.py", self.storage, str(victim), how, str(steps), each, str(self._disk)]
        with launched(*program, hosts=self._hosts, ranks=self.nodes, env=environment) as job:
            job.wait(4 * _TIMEOUT_S)
        self.acknowledged = max([self.acknowledged, *map(int, re.findall(r"made (\d+)", job.output))])
        return job.output


@dataclasses.dataclass
class Result:
    """The results of a run of the harness.

    Attributes:
      kills: The number of killed ranks.
      undecided: The number of kills that left a step undecided on some node.
      wrong: Descriptions of states that a job without kills does not have.
    """

    kills: int = 0
    undecided: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


def held(output: str) -> dict[tuple[int, int], str]:
    """Returns the reported content by node and step."""
    return {
        (int(n), int(step)): content for n, step, content in re.findall(r"node (\d+) has step (\d+): (\w+)", output)
    }


def plans(rng: random.Random) -> Iterator[str]:
    """Yields the ways to kill a rank: every fault point and random times take turns."""
    while True:
        for point, highest in (POINTS | OF_TIERS).items():
            yield f"{point}:{rng.randint(1, highest)}"
            yield f"{rng.uniform(0, 0.4):.4f}"


def sealed(folder: Path) -> bool:
    """Whether a group of the job has an undecided step."""
    groups = [folder_of_group.parent for folder_of_group in (folder / "tables").glob("*/group")]
    return any(_table.Group.open(str(folder_of_group)).info()["sealed"] is not None for folder_of_group in groups)


def run(kills: int, seed: int) -> Result:
    """Kills ranks until `kills` are dead, or a state is wrong.

    With TFSPS_FAULT_OFF=vote the run is a control: leaders publish without a vote.
    """
    result, rng = Result(), random.Random(seed)
    how = plans(rng)
    expected: dict[tuple[int, str], dict[tuple[int, int], str]] = {}
    with tqdm(total=kills, desc="kills", unit="kill", delay=2, disable=None) as bar:
        number = 0
        while result.kills < kills and not result.wrong:
            hosts, storage = HOSTS[number % 2], ("memory", "tiered")[number // 2 % 2]
            with tempfile.TemporaryDirectory(prefix="tsps-nodes-", dir="/dev/shm") as folder:
                job = Job(Path(folder), f"crash{number}", hosts, storage)
                case = (job.nodes, storage)
                if case not in expected:
                    with tempfile.TemporaryDirectory(prefix="tsps-nodes-", dir="/dev/shm") as reference_folder:
                        expected[case] = held(Job(Path(reference_folder), "reference", hosts, storage).run(steps=STEPS))
                _kill_until_the_end(job, Path(folder), how, expected[case], rng, kills, result, bar)
            number += 1
    return result


def _kill_until_the_end(
    job: Job,
    folder: Path,
    how: Iterator[str],
    expected: dict[tuple[int, int], str],
    rng: random.Random,
    kills: int,
    result: Result,
    bar: tqdm,
) -> None:
    while job.acknowledged < STEPS - STEPS_OF_A_RUN:
        last = job.acknowledged
        output = job.run(rng.randrange(job.nodes), next(how))
        begun = held(output)
        problems = _problems(begun, expected, job.nodes, last)
        if problems:
            result.wrong += [*problems, output[-3000:]]
            return
        if output.count("rank is done") < job.nodes:
            result.kills += 1
            result.undecided += sealed(folder)
            bar.update()
        if result.kills >= kills:
            break
    last = job.acknowledged
    result.wrong += _problems(held(job.run(steps=1)), expected, job.nodes, last)


def _problems(
    begun: dict[tuple[int, int], str], expected: dict[tuple[int, int], str], nodes: int, last: int
) -> list[str]:
    """Returns the faults of the content of nodes when a job begins.

    Args:
      begun: The reported content by node and step.
      expected: The content of a job that was never killed.
      nodes: The number of nodes.
      last: The last step that a rank has reported as made.
    """
    first_step: dict[int, int] = {}
    for node, step in begun:
        first_step[node] = min(step, first_step.get(node, step))
    if len(first_step) < nodes or len(set(first_step.values())) != 1:
        return [f"after step {last}, nodes begin at steps {first_step}"]
    (step,) = set(first_step.values())
    wrong = [f"step {step} is not step {last}, which was made"] if step < last else []
    return wrong + [
        f"step {step} of node {node}: {begun[node, step]}, not {expected[node, step]}"
        for node in range(nodes)
        if step > 0 and begun[node, step] != expected[node, step]
    ]


def looks_ahead(control: str = "") -> str:
    """Trains tables that look ahead. Returns the ranks' output if the tables are wrong, otherwise "".

    Args:
      control: The value of TFSPS_FAULT_OFF.
    """
    environment = {"PYTHONPATH": _PYTHON_PATH, "TFSPS_FAULT_DELAY": "100", "TFSPS_FAULT_OFF": control}
    with launched("sharded_ahead_program.py", "100,20", hosts=HOSTS[0], ranks=2, env=environment) as job:
        status = job.wait()
        return "" if status == 0 and job.output.count("rank is done") == 2 else job.output


def main() -> int:
    """Runs the harness, and its controls, which must find violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.nodes", description=__doc__)
    parser.add_argument("--kills", type=int, default=140, help="of ranks, half of them at named points (default: 140)")
    parser.add_argument("--seed", type=int, default=1, help="of the random times (default: 1)")
    parser.add_argument("--control", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    result = run(arguments.kills, arguments.seed)
    if arguments.control:
        print(json.dumps({"kills": result.kills, "violations": len(result.wrong)}))
        return 0
    print(f"{result.kills} kills, {result.undecided} of which left an undecided step; {len(result.wrong)} violations")
    for problem in result.wrong:
        print(f"  {problem}")
    failed = int(bool(result.wrong))
    options = ["--control", "--kills", str(arguments.kills), "--seed", str(arguments.seed)]
    failed += not controls.is_noticed("tests.crash.nodes", "vote", options)
    wrong = looks_ahead()
    print(f"looking ahead with delays: {'tables differ' if wrong else 'tables are equal'}")
    print(wrong[-3000:], end="")
    failed += bool(wrong)
    caught = "looked-up rows differ" in looks_ahead("rows_that_stay")
    print(f"control that sends rows which a step may change: {'tables differ' if caught else 'NOTHING FOUND'}")
    failed += not caught
    print(f"{4 - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
