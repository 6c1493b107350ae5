"""The shown output of ranks, and the content of their logs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from launcher import LONGEST_S, PROLOGUE, Launchers, environment

from tf_sparse_ps.launch.output import Lines
from tf_sparse_ps.launch.start_up_lines import StartUpFilter, is_start_up

WARNING = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
ONEDNN = b"I0000 00:00:1795411909.282260   15500 port.cc:153] oneDNN custom operations are on. You may see ..."
FEATURES = b"2024-01-02 03:04:05.678: I tsl/cpu_feature_guard.cc:182] This TensorFlow binary is optimized to use AVX2"
REBUILD = (
    b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate "
    b"compiler flags."
)
START_UP = [WARNING, ONEDNN, FEATURES, REBUILD]
TALK = r"""
sys.stdout.write(f"out {rank}\n50%\r100%\n")
sys.stdout.flush()
sys.stderr.write(f"err {rank}\n1/2\r2/2 of {rank}")
"""


def filtered(*parts: bytes) -> list[bytes]:
    taken: list[bytes] = []
    through = StartUpFilter(taken.append)
    for part in parts:
        through(part)
    through.end()
    return taken


@pytest.mark.parametrize("line", START_UP)
def test_start_up_lines_are_left_out(line: bytes) -> None:
    assert is_start_up(line)
    assert filtered(b"before\n" + line + b"\nafter\n") == [b"before\nafter\n"]
    assert b"".join(filtered(line + b"\r\n", b"after")) == b"after"
    # This does not depend on how the lines are cut into parts.
    for at in range(len(line)):
        assert b"".join(filtered(b"before\n" + line[:at], line[at:] + b"\nafter")) == b"before\nafter"
    assert b"".join(filtered(*(bytes([byte]) for byte in line + b"\nafter"))) == b"after"


@pytest.mark.parametrize("line", [b"Waiting for you: ", b"Input: ", b"2", b"\r50%", b"WARNING: mine", b"Traceback"])
def test_other_lines_pass_and_wait_only_if_they_may_become_one(line: bytes) -> None:
    taken: list[bytes] = []
    through = StartUpFilter(taken.append)
    through(b"before\n" + line)
    assert b"".join(taken) == b"before\n" + (line if line != b"2" else b"")
    through(b" more " + ONEDNN + b"\n")
    through.end()
    assert b"".join(taken) == b"before\n" + line + b" more " + ONEDNN + b"\n"


def test_lines_are_what_a_terminal_shows_in_the_end() -> None:
    taken: list[bytes] = []
    lines = Lines(taken.append)
    for part in (b"one\ntw", b"o\r\n", b"10%\r", b"20%", b"\r30%\r\n", ONEDNN + b"\n", b"40%\r50", b"%"):
        lines(part)
    lines.end()
    assert taken == [b"one", b"two", b"30%", b"50%"]


def test_a_progress_bar_without_an_end_takes_no_room() -> None:
    lines = Lines(lambda _: None)
    for i in range(100_000):
        lines(b"\r%d%%" % i)
    assert len(lines._rest) < 100
    taken: list[bytes] = []
    lines = Lines(taken.append)
    for _ in range(100):
        lines(b"x" * 1000)
    lines.end()
    assert sum(map(len, taken)) == 100_000
    assert len(taken) > 1


def test_rank_0_is_shown_as_it_is_and_others_are_not(launch: Launchers) -> None:
    job = launch("-np", "2", program=TALK)
    assert job.wait() == 0
    assert job.stdout == b"out 0\n50%\r100%\n"
    assert job.stderr == b"err 0\n1/2\r2/2 of 0"


def test_start_up_lines_of_rank_0_are_not_shown(launch: Launchers) -> None:
    program = f"for line in {START_UP!r}: sys.stderr.buffer.write(line + b'\\n')\nsys.exit('mine' if rank else 0)"
    job = launch("-np", "2", program=program)
    assert job.wait() == 1
    assert job.said == "tf-sparse-ps: rank 1 failed first, with exit status 1 (its last lines):\nmine\n"


def test_logs_have_everything(launch: Launchers) -> None:
    logs = launch.folder / "a" / "logs"
    program = TALK + f"sys.stderr.buffer.write({b'-' + ONEDNN!r})"
    for _ in range(2):  # the logs are the second job's alone
        job = launch("-np", "2", "--log-dir", str(logs), program=program.replace("b'-I", "b'\\nI"))
        assert job.wait() == 0
        assert job.stdout == b"out 0\n50%\r100%\n"
        for rank in range(2):
            log = (logs / f"rank-{rank}.log").read_bytes()
            assert b"out %d\n50%%\r100%%\n" % rank in log
            assert b"err %d\n1/2\r2/2 of %d\n" % (rank, rank) + ONEDNN in log
            assert log.count(b"out") == 1


def test_lines_of_all_ranks_have_their_numbers(launch: Launchers) -> None:
    job = launch("-np", "3", "--all-ranks", program=TALK)
    assert job.wait() == 0
    assert sorted(job.stdout.splitlines()) == sorted(
        line for rank in range(3) for line in (b"[%d] out %d" % (rank, rank), b"[%d] 100%%" % rank)
    )
    assert sorted(job.stderr.splitlines()) == sorted(
        line for rank in range(3) for line in (b"[%d] err %d" % (rank, rank), b"[%d] 2/2 of %d" % (rank, rank))
    )


def test_an_error_that_all_ranks_output_has_is_not_shown_again(launch: Launchers) -> None:
    job = launch("-np", "2", "--all-ranks", program="if rank: sys.exit('mine')")
    assert job.wait() == 1
    assert job.said.count("mine") == 1
    assert "rank 1 failed first, with exit status 1: see what it wrote above" in job.said


def test_what_ranks_print_for_a_log_comes_at_once(launch: Launchers) -> None:
    program = "print('here')\nnote('printed')\nwait_for('seen')"
    job = launch("-np", "1", "--log-dir", str(launch.folder), program=program)
    launch.wait_for("printed")
    log = launch.folder / "rank-0.log"
    for _ in range(1000):
        if log.read_text() == "here\n":
            break
        subprocess.run(["sleep", "0.01"], check=True)
    assert log.read_text() == "here\n"
    (launch.folder / "seen").touch()
    assert job.wait() == 0


def test_rank_0_reads_what_the_launcher_is_given(tmp_path: Path) -> None:
    code = PROLOGUE + "print(repr(sys.stdin.read()), file=sys.stderr if rank else sys.stdout)"
    command = [sys.executable, "-m", "tf_sparse_ps", "run", "-np", "2", "--all-ranks", sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment(tmp_path), input=b"words", capture_output=True, timeout=LONGEST_S, check=True
    )
    assert done.stdout == b"[0] 'words'\n"
    assert done.stderr == b"[1] ''\n"


def test_the_order_of_stdout_and_stderr_stays_where_they_are_one(tmp_path: Path) -> None:
    code = PROLOGUE + "assert rank or os.path.sameopenfile(1, 2)\n"
    code += "for i in range(500): print(i, flush=True, file=(sys.stdout, sys.stderr)[i % 2])"
    command = [sys.executable, "-m", "tf_sparse_ps", "run", "-np", "2", sys.executable, "-c", code]
    done = subprocess.run(
        command,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LONGEST_S,
        check=True,
    )
    assert done.stdout.split() == [b"%d" % i for i in range(500)]


@pytest.mark.parametrize("options", [[], ["--log-dir", "logs"]])
def test_rank_0_has_a_terminal_where_the_launcher_has_one(options: list[str], tmp_path: Path) -> None:
    """The terminal has the launcher's size, and no \\r before a line's end unless the program writes it."""
    code = PROLOGUE + "if rank: sys.exit()\n"
    code += "print(*(os.get_terminal_size(i) for i in (1, 2)), os.isatty(0))\nprint('x', file=sys.stderr)"
    command = [sys.executable, "-m", "tf_sparse_ps", "run", "-np", "2", *options, sys.executable, "-c", code]
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (33, 77)) if hasattr(termios, "tcsetwinsize") else pytest.skip("needs Python 3.11")
    job = subprocess.Popen(command, env=environment(tmp_path), stdin=writer, stdout=writer, stderr=writer, cwd=tmp_path)
    try:
        assert job.wait(LONGEST_S) == 0
    finally:
        job.kill()
        job.wait()
    os.close(writer)
    shown = os.read(reader, 1 << 16).decode()
    size = "os.terminal_size(columns=77, lines=33)"
    assert shown == f"{size} {size} True\r\nx\r\n"
    if options:
        assert b"\r" not in (tmp_path / "logs" / "rank-0.log").read_bytes()
    os.close(reader)


def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    code = PROLOGUE + "[print('x' * 1000) for _ in range(1000)]\nnote(f'done-{rank}')"
    command = [sys.executable, "-m", "tf_sparse_ps", "run", "-np", "2", "--all-ranks", sys.executable, "-c", code]
    job = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stdout is not None
    job.stdout.read(10)
    job.stdout.close()
    try:
        assert job.wait(LONGEST_S) == 0
    finally:
        job.kill()
        job.wait()
        assert job.stderr is not None
        job.stderr.close()
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-0", "done-1"]
