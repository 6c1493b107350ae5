"""The other ranks name a rank that is killed, stopped or slow, and its step. A rank that is only late is no error.

All ranks also name a rank that calls hvd.join, or has fewer steps than the others. Ranks are shielded from the
launcher, which ends all ranks as soon as one has ended.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import pytest
from launch import LONGEST_S, ONE_NODE, TWO_NODES, Launch, launched

TIMEOUT_S = 6  # in cases that wait for it
VICTIM, OTHERS, AT_STEP = 2, (0, 1, 3), 20
RANK, PID = "<rank>", "<pid>"  # placeholders for the reporting rank, and for the process that was lost


@contextlib.contextmanager
def failing(event: str, hosts: str, timeout_s: float | None = None, *, by_horovodrun: bool = False) -> Iterator[Launch]:
    """Runs a job in which something happens to a rank. `timeout_s`: how long ranks wait for each other; None: long."""
    environment = {"TFSPS_TIMEOUT_S": str(timeout_s or LONGEST_S)}
    program = ("shielded.py", "failure_program.py", event)
    with launched(*program, hosts=hosts, env=environment, by_horovodrun=by_horovodrun) as job:
        yield job


def expect_report(job: Launch, event: str, expected_text: str, ranks: tuple[int, ...] = OTHERS) -> None:
    """Waits until all these ranks print a match of a regular expression; then the job may end, with an error."""
    happened = job.wait_for(f"rank {VICTIM}: {event.partition('-')[0]}", LONGEST_S)
    pid = re.search(rf"rank {VICTIM} is pid (\d+)", job.output)
    assert pid

    def silent() -> list[int]:
        pattern = expected_text.replace(PID, pid[1])
        return [rank for rank in ranks if not re.search(pattern.replace(RANK, str(rank)), job.output, re.MULTILINE)]

    while silent() and time.monotonic() < happened + LONGEST_S and job.talks:
        time.sleep(0.1)
    assert not silent(), f"ranks {silent()} did not say {expected_text!r}:\n{job.output[-20000:]}"
    print(f"named {time.monotonic() - happened:.1f} s later")
    (job.folder / "end").touch()


@pytest.mark.parametrize(
    ("what", "schedule"),
    [pytest.param("kill", "", marks=pytest.mark.daily), ("slow", ""), ("stop", "")]
    + [(what, schedule) for what in ("kill", "slow") for schedule in ("-buckets", "-delayed")],
)
def test_the_others_say_which_rank_and_in_which_step(what: str, schedule: str) -> None:
    # With gradients in flight, the last step may not be made.
    last = f"({AT_STEP - 1}|{AT_STEP - 2})" if schedule == "-delayed" else AT_STEP - 1
    waited = (
        rf"rank {RANK} waited {TIMEOUT_S} s for rank 2 \(pid {PID}\) in operation 'tsps\.0\.sparse' of step {AT_STEP}"
    )
    expected_text = {
        "kill": rf"rank {RANK}: rank 2 of node 0 \(pid {PID}\) died in step {last};",
        "stop": rf"{waited}: that process is stopped by a signal, and step {AT_STEP - 1} is the last",
        "slow": rf"{waited}: that process is alive and waiting for something, and step {AT_STEP - 1} is the last",
    }[what]
    with failing(what + schedule, ONE_NODE, None if what == "kill" else TIMEOUT_S) as job:
        expect_report(job, what, expected_text)


# A rank whose gradients are delayed continues. TensorFlow's collectives fetch results from the process that has them:
# if it stops as it begins a step, others may still wait for the results of the step before.
IN_STEP = rf"of step ({AT_STEP - 1}|{AT_STEP}|{AT_STEP + 1})"
IN_OPERATION = rf"ranks have waited \d+ s in operation 'tsps\.0\.[\w.]+' {IN_STEP} (\(line [^;]*\) )?"
# On a busy machine another rank may not have answered. Then it is counted, and named, as another missing rank.
WAITED = (
    rf"(3 of 4 {IN_OPERATION}|2 of 4 {IN_OPERATION}(for rank [01] of node \d \(pid \d+\), [^;]*; )?)"
    rf"for rank 2 of node {{node}} \(pid {PID}\), "
)
STOPPED = WAITED + "which is stopped by a signal"
ALIVE = "which is alive and waiting for something, "
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("what", "hosts", "says"),
    [
        ("kill", TWO_NODES, rf"the leader of node 1 \(pid {PID}\) died after step {AT_STEP - 1} of"),
        pytest.param("stop", TWO_NODES, STOPPED, marks=NIGHTLY),
        pytest.param("slow", TWO_NODES, WAITED + ALIVE + rf"in step {AT_STEP}, in no operation", marks=NIGHTLY),
        pytest.param(
            "kill-dense", TWO_NODES, rf"rank 2 of node 1 \(pid {PID}\) died; rank 3 is in step", marks=NIGHTLY
        ),
        ("raise-dense", TWO_NODES, "rank 2 ended with ValueError: no such shard"),
        pytest.param("raise-dense-delayed", TWO_NODES, "rank 2 ended with ValueError: no such shard", marks=NIGHTLY),
        pytest.param("stop-dense", TWO_NODES, STOPPED, marks=NIGHTLY),
        pytest.param("slow-dense-delayed", TWO_NODES, WAITED + ALIVE + r"in step \d+, in ", marks=NIGHTLY),
        pytest.param("slow-dense-buckets", ONE_NODE, WAITED + ALIVE + r"in step \d+, in no", marks=NIGHTLY),
    ],
)
def test_ranks_of_all_nodes_and_without_tables_say_it_too(what: str, hosts: str, says: str) -> None:
    with failing(what, hosts, TIMEOUT_S if what.startswith(("stop", "slow")) else None) as job:
        # The ranks of its machine notice a killed rank at once; Horovod ends the others as its connections close.
        ranks = (3,) if what.startswith("kill") else OTHERS
        expect_report(job, what, f"rank {RANK}: " + says.format(node=int(hosts == TWO_NODES)), ranks)


def test_a_gradient_that_is_not_finite_is_every_ranks_error() -> None:
    with failing("nan", ONE_NODE) as job:
        expected_text = rf"^\[{RANK}\]<stderr>:.*the gradient of key \d+ is not finite; step 20 was not applied"
        expect_report(job, "nan", expected_text, (0, 1, 2, 3))
        assert job.wait() != 0


@pytest.mark.nightly
def test_the_launcher_ends_a_job_whose_rank_died_and_names_the_process() -> None:
    """The ranks are not shielded here. What they report before their end depends on which one is faster.

    On a busy machine, horovodrun may notice another rank's end first, which it then calls the first process to end.
    """
    with launched("failure_program.py", "kill", hosts=ONE_NODE, by_horovodrun=True) as job:
        assert job.wait() != 0
        assert f"Process {VICTIM} exit with status code 137." in job.output, job.output[-20000:]


def test_a_rank_that_ends_before_the_others_is_no_failure() -> None:
    with launched("failure_program.py", "end", hosts=ONE_NODE) as job:
        assert job.wait() == 0, job.output[-20000:]
        assert sorted(path.name for path in job.folder.iterdir()) == ["done-0", "done-1", "done-2", "done-3"]
        assert "died" not in job.output
        assert "ends" not in job.output
        assert list(job.tables.glob("*-n*")) == [], "the leader must remove its group"


@pytest.mark.parametrize(
    ("what", "timeout_s"),
    [("late", TIMEOUT_S), pytest.param("pause", LONGEST_S, marks=NIGHTLY)],  # TensorFlow's own timeout is 10 s
)
def test_a_rank_that_is_late_by_less_than_the_timeout_is_no_failure(what: str, timeout_s: float) -> None:
    with launched("failure_program.py", what, hosts=ONE_NODE, env={"TFSPS_TIMEOUT_S": str(timeout_s)}) as job:
        assert job.wait() == 0, job.output[-20000:]
        assert sorted(path.name for path in job.folder.iterdir()) == ["done-0", "done-1", "done-2", "done-3"]
        assert "waited" not in job.output


@pytest.mark.parametrize(
    "hosts", [pytest.param(ONE_NODE, id="one-node", marks=NIGHTLY), pytest.param(TWO_NODES, id="two-nodes")]
)
@pytest.mark.parametrize(
    ("what", "says", "ranks"),
    [
        ("join", r"rank 2 called hvd\.join\(\), .* tsps\.callbacks\.EqualSteps\. .*rank_weight", (0, 1, 2, 3)),
        pytest.param(
            "short", r"rank 2 had no more steps to make: .* tsps\.callbacks\.EqualSteps", OTHERS, marks=NIGHTLY
        ),
    ],
)
def test_ranks_that_leave_the_others_alone_are_named_on_all_nodes(
    what: str, says: str, ranks: tuple[int, ...], hosts: str
) -> None:
    with failing(what, hosts, by_horovodrun=what == "join") as job:
        expect_report(job, what, rf"^\[{RANK}\]<stderr>:[A-Za-z_.]*(RankLost: rank {RANK}|RuntimeError): {says}", ranks)
        assert job.wait() != 0


@pytest.mark.parametrize("hosts", [pytest.param(ONE_NODE, id="one-node"), pytest.param(TWO_NODES, id="two-nodes")])
def test_ranks_make_no_step_after_they_have_reported_a_late_rank(hosts: str) -> None:
    with failing("back-dense", hosts, TIMEOUT_S) as job:
        # The late rank asks every 0.1 s whether it was reported, so it may also be found running.
        says = WAITED.format(node=int(hosts == TWO_NODES)) + r"which is (alive and waiting for something|running), in "
        expect_report(job, "back", rf"^\[{RANK}\]<stderr>:[A-Za-z_.]*RankLost: rank {RANK}: {says}")
        assert job.wait() != 0
        assert list(job.folder.glob("done-*")) == []
