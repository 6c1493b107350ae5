"""The end of a job: which rank's error is shown, the status, and that nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launcher import ROOT, Launchers, gone, until

NAP = "note(f'pid-{rank}', str(os.getpid()))\ntime.sleep(300)\n"
# For waits that have their own limit: the launcher's grace, and the time until SIGKILL.
GRACE_S, KILL_S = 5.0, 5.0


def pids(launch: Launchers, size: int) -> list[int]:
    return [int(text) for text in launch.wait_for(*(f"pid-{rank}" for rank in range(size)))]


def test_all_is_well(launch: Launchers) -> None:
    job = launch("-np", "3", program="note(f'done-{rank}')")
    assert job.wait() == 0
    assert job.said == ""
    assert len(list(launch.folder.glob("done-*"))) == 3


def test_the_first_rank_to_fail_is_shown_once_and_ends_the_others(launch: Launchers) -> None:
    program = """
note(f'pid-{rank}', str(os.getpid()))
if rank == 2:
    for other in (0, 1, 3):
        wait_for(f"pid-{other}")
    print("about to fail", file=sys.stderr)
    print("not of stderr", flush=True)
    raise SystemExit(7)
time.sleep(300)
"""
    job = launch("-np", "4", program=program)
    assert job.wait() == 7
    assert "rank 2 failed first, with exit status 7 (its last lines):\nabout to fail\n" in job.said
    assert job.said.count("about to fail") == 1
    assert b"not of stderr" not in job.stdout
    assert all(gone(pid) for pid in pids(launch, 4))


def test_others_may_say_in_a_while_why_they_end(launch: Launchers) -> None:
    program = """
note(f'pid-{rank}', str(os.getpid()))
if rank == 1:
    wait_for("pid-0")
    sys.exit("mine")
wait_for("pid-1")
time.sleep(1)
sys.exit("rank 1 is gone")
"""
    job = launch("-np", "2", program=program)
    assert job.wait() == 1
    assert job.said.index("rank 1 is gone") < job.said.index("rank 1 failed first, with exit status 1")
    assert job.said.endswith("(its last lines):\nmine\n")


def test_a_rank_killed_by_a_signal(launch: Launchers) -> None:
    job = launch("-np", "2", program=NAP)
    rank_pids = pids(launch, 2)
    os.kill(rank_pids[1], signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL
    assert "rank 1 failed first, killed by SIGKILL; it wrote nothing to stderr" in job.said
    assert gone(rank_pids[0])


def test_the_error_of_rank_0_is_not_shown_twice(launch: Launchers) -> None:
    job = launch("-np", "2", program="if rank == 0:\n    wait_for('pid-1')\n    raise ValueError('mine')\n" + NAP)
    assert job.wait() == 1
    assert job.said.count("ValueError: mine") == 1
    assert "rank 0 failed first, with exit status 1: see what it wrote above" in job.said


def test_a_rank_that_has_reported_its_end_is_named_though_another_was_faster(launch: Launchers) -> None:
    program = """
from tf_sparse_ps.collectives.key_values import EXIT_REPORT, KeyValueStore
if rank == 2:
    KeyValueStore.of_launcher().write(EXIT_REPORT, "rank 2 ended with ValueError: mine")
    note("reported")
    wait_for("faster")
    time.sleep(0.5)
    sys.exit("ValueError: mine")
wait_for("reported")
note("faster") if rank == 0 else None
sys.exit(5)
"""
    job = launch("-np", "3", program=program)
    assert job.wait() == 1
    assert "rank 2 failed first, with exit status 1 (its last lines):\nValueError: mine" in job.said


def test_a_rank_that_has_reported_its_end_and_was_ended_did_not_fail_first(launch: Launchers) -> None:
    program = """
from tf_sparse_ps.collectives.key_values import EXIT_REPORT, KeyValueStore
if rank == 1:
    KeyValueStore.of_launcher().write(EXIT_REPORT, "rank 1 ended with ValueError: mine")
    note("reported")
    time.sleep(300)
wait_for("reported")
sys.exit(5)
"""
    job = launch("-np", "2", program=program)
    assert job.wait() == 5
    assert "rank 0 failed first, with exit status 5, for this reason: rank 1 ended with ValueError: mine" in job.said


def test_a_report_of_a_rank_that_has_not_failed_is_shown_as_the_reason(launch: Launchers) -> None:
    program = """
from tf_sparse_ps.collectives.key_values import EXIT_REPORT, KeyValueStore
if rank == 0:
    KeyValueStore.of_launcher().write(EXIT_REPORT, "rank 0 had no more steps to make")
    note("reported")
else:
    wait_for("reported")
    sys.exit("lost")
"""
    job = launch("-np", "2", program=program)
    assert job.wait() == 1
    assert "rank 1 failed first, with exit status 1, for this reason: rank 0 had no more steps to make" in job.said


def test_only_the_last_lines_are_shown(launch: Launchers) -> None:
    program = """
if rank == 1:
    for i in range(500):
        print(f"line {i}", file=sys.stderr)
    sys.exit(1)
"""
    job = launch("-np", "2", program=program)
    assert job.wait() == 1
    shown = re.findall(r"^line (\d+)$", job.said, re.MULTILINE)
    assert shown == [str(i) for i in range(460, 500)]


def test_children_of_a_rank_that_died_end_at_once(launch: Launchers) -> None:
    program = """
if rank == 1:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    note("child", str(child.pid))
    wait_for("pid-0")
    os.kill(os.getpid(), signal.SIGABRT)
wait_for("child")
note("pid-0", str(os.getpid()))
child = int((folder / "child").read_text())
while os.path.exists(f"/proc/{child}") and "Z" not in open(f"/proc/{child}/stat").read().split()[2]:
    time.sleep(0.01)
note("child-is-gone")
time.sleep(300)
"""
    job = launch("-np", "2", program=program)
    assert job.wait() == 128 + signal.SIGABRT
    launch.wait_for("child-is-gone", timeout_s=0.1)
    assert "killed by SIGABRT" in job.said


@pytest.mark.nightly
def test_a_rank_that_does_not_heed_sigterm_is_killed(launch: Launchers) -> None:
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif rank: wait_for('pid-0'); sys.exit(3)\n" + NAP
    began = time.monotonic()
    job = launch("-np", "2", program=program)
    assert job.wait() == 3
    assert time.monotonic() > began + GRACE_S + KILL_S
    assert gone(pids(launch, 1)[0])


def test_a_stopped_rank_ends_with_the_others(launch: Launchers) -> None:
    job = launch("-np", "2", program=NAP)
    rank_pids = pids(launch, 2)
    os.kill(rank_pids[0], signal.SIGSTOP)
    until(lambda: psutil.Process(rank_pids[0]).status() == psutil.STATUS_STOPPED)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(KILL_S / 2) == 128 + signal.SIGTERM
    assert gone(rank_pids[0])


def test_ctrl_c_lets_ranks_clean_up(launch: Launchers) -> None:
    program = """
note(f'pid-{rank}', str(os.getpid()))
try:
    time.sleep(300)
except KeyboardInterrupt:
    note(f"cleaned-{rank}")
"""
    job = launch("-np", "2", program=program)
    rank_pids = pids(launch, 2)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert "got SIGINT" in job.said
    launch.wait_for("cleaned-0", "cleaned-1", timeout_s=0.1)
    assert all(map(gone, rank_pids))


def test_a_second_ctrl_c_kills(launch: Launchers) -> None:
    program = """
signal.signal(signal.SIGINT, lambda *_: note(f"heard-{rank}"))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note(f'pid-{rank}', str(os.getpid()))
while True:
    time.sleep(1)
"""
    job = launch("-np", "2", program=program)
    rank_pids = pids(launch, 2)
    job.process.send_signal(signal.SIGINT)
    launch.wait_for("heard-0", "heard-1")
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    assert job.wait(3.0) == 130
    assert all(map(gone, rank_pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_launcher_that_is_told_to_end(number: signal.Signals, launch: Launchers) -> None:
    job = launch("-np", "2", program=NAP)
    rank_pids = pids(launch, 2)
    job.process.send_signal(number)
    assert job.wait(KILL_S) == 128 + number
    assert all(map(gone, rank_pids))


def saves(seconds: float) -> str:
    """Returns a program that takes a time to end after SIGTERM."""
    return f"""
def save(number, _):
    time.sleep({seconds})
    note(f"saved-{{rank}}")
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
"""


@pytest.mark.nightly
def test_ranks_have_the_grace_to_save_after_a_signal(launch: Launchers) -> None:
    job = launch("-np", "2", program=saves(KILL_S + 1) + NAP)  # after a failure, this would be too long
    pids(launch, 2)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    launch.wait_for("saved-0", "saved-1", timeout_s=0.1)
    assert "the launcher of node 0 got SIGTERM" in job.said


def test_a_repeated_sigterm_takes_no_time_from_the_ranks(launch: Launchers) -> None:
    program = """
def save(*_):
    note(f"heard-{rank}")
    wait_for("go")
    time.sleep(0.5)  # a launcher that kills ranks after the second signal does so now
    note(f"saved-{rank}")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
"""
    job = launch("-np", "2", program=program + NAP)
    pids(launch, 2)
    job.process.send_signal(signal.SIGTERM)
    launch.wait_for("heard-0", "heard-1")
    job.process.send_signal(signal.SIGTERM)
    job.process.send_signal(signal.SIGHUP)
    (launch.folder / "go").touch()
    assert job.wait() == 143
    launch.wait_for("saved-0", "saved-1", timeout_s=0.1)


def test_ranks_that_take_longer_than_the_grace_are_killed(launch: Launchers) -> None:
    job = launch("-np", "2", "--grace", "0.5", program=saves(300) + NAP)
    rank_pids = pids(launch, 2)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert all(map(gone, rank_pids))
    assert not list(launch.folder.glob("saved-*"))


def test_no_rank_outlives_a_launcher_that_was_killed(launch: Launchers) -> None:
    job = launch("-np", "3", program=NAP)
    rank_pids = pids(launch, 3)
    job.process.kill()
    until(lambda: all(map(gone, rank_pids)), 10.0)


def test_a_rank_whose_launcher_is_gone_before_it_began_does_not_begin(tmp_path: Path) -> None:
    start = str(ROOT / "tf_sparse_ps" / "launch" / "rank_start.py")
    for launcher, status in ((os.getpid(), 0), (os.getppid(), 128 + signal.SIGTERM)):
        command = [sys.executable, "-I", "-S", start, str(launcher), "/bin/true"]
        assert subprocess.run(command, timeout=30, check=False).returncode == status


def test_ranks_that_have_begun_end_when_another_cannot_be_started(launch: Launchers) -> None:
    (launch.folder / "logs" / "rank-2.log").mkdir(parents=True)
    job = launch("-np", "3", "--log-dir", str(launch.folder / "logs"), program=NAP)
    assert job.wait() == 2
    assert "node 0 cannot start its ranks: --log-dir: cannot write" in job.said
    assert "rank-2.log is a folder, not a regular file" in job.said


def test_a_program_that_cannot_be_run_is_named(launch: Launchers) -> None:
    program = launch.folder / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    job = launch.start(["-np", "2", str(program)])
    assert job.wait() == 1
    assert f"cannot run {program}: No such file or directory" in job.said
