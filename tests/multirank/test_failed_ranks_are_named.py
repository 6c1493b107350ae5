"""A rank that is killed, stopped or slow is named by the others, with its step; a late one is no error.

A rank that calls hvd.join, or has fewer steps than the others, is named by all, too.
"""

from __future__ import annotations

import re
import time

import pytest
from launch import ONE_NODE, TWO_NODES, Launch, launched

TIMEOUT_S = 4
VICTIM, OTHERS, AT_STEP = 2, (0, 1, 3), 20
RANK = "<rank>"  # stands for the number of who speaks


def expect_others_to_say(job: Launch, said: str, happened: float, within_s: float) -> None:
    """All ranks but the lost one say a regular expression, at most so long after it was lost."""

    def silent() -> set[int]:
        return {rank for rank in OTHERS if not re.search(said.replace(RANK, str(rank)), job.output)}

    while silent() and time.monotonic() < happened + within_s and job.talks:
        time.sleep(0.1)
    missing = silent()
    print(f"named {time.monotonic() - happened:.1f} s later, not by {sorted(missing)}")
    if len(missing) < len(OTHERS):
        # On a busy machine the launcher may end a rank first: it does when it sees one die.
        missing -= {rank for rank in missing if f"[{rank}]<stderr>:Terminated" in job.output}
    assert not missing, f"ranks {sorted(missing)} did not say {said!r}:\n{job.output[-20000:]}"


@pytest.mark.parametrize(
    ("what", "schedule"),
    [(what, "") for what in ("kill", "stop", "slow")]
    + [(what, schedule) for what in ("kill", "slow") for schedule in ("-buckets", "-delayed")],
)
def test_the_others_say_which_rank_and_in_which_step(what: str, schedule: str) -> None:
    environment = {"TFSPS_TIMEOUT_S": str(TIMEOUT_S)}
    with launched("failure_program.py", what + schedule, hosts=ONE_NODE, env=environment) as job:
        happened = job.wait_for(f"rank {VICTIM}: {what}", 150)
        pid = re.search(rf"rank {VICTIM} is pid (\d+)", job.output)
        assert pid
        # With gradients on their way the last step may not be made.
        last = f"({AT_STEP - 1}|{AT_STEP - 2})" if schedule == "-delayed" else AT_STEP - 1
        said = {
            "kill": rf"rank {RANK}: rank 2 of node 0 \(pid {pid[1]}\) died in step {last};",
            "stop": rf"rank {RANK} waited 4 s for rank 2 \(pid {pid[1]}\) in operation 'tsps\.0\.sparse' of step "
            rf"{AT_STEP}: that process is stopped by a signal, and step {AT_STEP - 1} is the last",
            "slow": rf"rank {RANK} waited 4 s for rank 2 \(pid {pid[1]}\) in operation 'tsps\.0\.sparse' of step "
            rf"{AT_STEP}: that process is alive and waiting for something, and step {AT_STEP - 1} is the last",
        }[what]
        expect_others_to_say(job, said, happened, TIMEOUT_S + 6)


IN_STEP = rf"of step ({AT_STEP}|{AT_STEP + 1})"  # a rank whose gradients are delayed goes on
WAITED = (
    rf"3 of 4 ranks have waited \d+ s in operation 'tsps\.0\.[\w.]+' {IN_STEP} "
    r"for rank 2 of node {node} \(pid {pid}\), "
)


@pytest.mark.parametrize(
    ("what", "hosts", "says"),
    [
        ("kill", TWO_NODES, rf"the leader of node 1 \(pid {{pid}}\) died after step {AT_STEP - 1} of"),
        ("stop", TWO_NODES, WAITED + "which is stopped by a signal"),
        ("slow", TWO_NODES, WAITED + rf"which is alive and waiting for something, in step {AT_STEP}, in no operation"),
        ("kill-dense", TWO_NODES, r"rank 2 of node 1 \(pid {pid}\) died; rank 3 is in step"),
        ("raise-dense", TWO_NODES, "rank 2 ended with ValueError: no such shard"),
        ("raise-dense-delayed", TWO_NODES, "rank 2 ended with ValueError: no such shard"),
        ("stop-dense", TWO_NODES, WAITED + "which is stopped by a signal"),
        ("slow-dense-delayed", TWO_NODES, WAITED + r"which is alive and waiting for something, in step \d+, in "),
        ("slow-dense-buckets", ONE_NODE, WAITED + r"which is alive and waiting for something, in step \d+, in no"),
    ],
)
def test_ranks_of_all_nodes_and_without_tables_say_it_too(what: str, hosts: str, says: str) -> None:
    with launched("failure_program.py", what, hosts=hosts, env={"TFSPS_TIMEOUT_S": str(TIMEOUT_S)}) as job:
        happened = job.wait_for(f"rank {VICTIM}: {what.partition('-')[0]}", 150)
        pid = re.search(rf"rank {VICTIM} is pid (\d+)", job.output)
        assert pid
        said = says.format(pid=pid[1], node=int(hosts == TWO_NODES))
        expect_others_to_say(job, f"rank {RANK}: {said}", happened, 2 * TIMEOUT_S + 6)


def test_a_gradient_that_is_not_finite_is_every_ranks_error() -> None:
    with launched("failure_program.py", "nan", hosts=ONE_NODE, env={"TFSPS_TIMEOUT_S": "60"}) as job:
        job.wait_for(f"rank {VICTIM}: nan", 150)
        assert job.wait(30) != 0
        # Nobody catches it here. The launcher ends the ranks that have not printed it when the first one has ended.
        said = r"\[\d\]<stderr>:.*the gradient of key \d+ is not finite; step 20 was not applied"
        assert re.search(said, job.output), f"no rank said why:\n{job.output[-20000:]}"


def test_a_rank_that_ends_before_the_others_is_no_failure() -> None:
    with launched("failure_program.py", "end", hosts=ONE_NODE) as job:
        assert job.wait(150) == 0, job.output[-20000:]
        assert sorted(path.name for path in job.folder.iterdir()) == ["done-0", "done-1", "done-2", "done-3"]
        assert "died" not in job.output
        assert "ends" not in job.output
        assert list(job.tables.glob("*-n*")) == [], "the leader left its group behind"


def test_a_rank_that_is_late_by_less_than_the_timeout_is_no_failure() -> None:
    with launched("failure_program.py", "late", hosts=ONE_NODE, env={"TFSPS_TIMEOUT_S": str(TIMEOUT_S)}) as job:
        assert job.wait(150) == 0, job.output[-20000:]
        assert sorted(path.name for path in job.folder.iterdir()) == ["done-0", "done-1", "done-2", "done-3"]
        assert "waited" not in job.output


@pytest.mark.parametrize("hosts", [ONE_NODE, TWO_NODES], ids=["one-node", "two-nodes"])
@pytest.mark.parametrize(
    ("what", "says", "ranks"),
    [
        ("join", r"rank 2 called hvd\.join\(\), .* tsps\.callbacks\.EqualSteps; .*rank_weight", (0, 1, 2, 3)),
        ("short", r"rank 2 had no more steps to make: .* tsps\.callbacks\.EqualSteps", OTHERS),
    ],
)
def test_ranks_that_leave_the_others_alone_are_named_on_all_nodes(
    what: str, says: str, ranks: tuple[int, ...], hosts: str
) -> None:
    with launched("failure_program.py", what, hosts=hosts) as job:
        happened = job.wait_for(f"rank {VICTIM}: {what}", 150)
        assert job.wait(30) != 0
        print(f"{what}: the job ended {time.monotonic() - happened:.1f} s later")
        for rank in ranks:
            said = re.search(
                rf"^\[{rank}\]<stderr>:[A-Za-z_.]*(RankLost: rank {rank}|RuntimeError): {says}",
                job.output,
                re.MULTILINE,
            )
            assert said, f"rank {rank} did not say why:\n{job.output[-20000:]}"
