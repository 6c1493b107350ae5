"""The terminal output of an example's ranks: a bar, all messages except TensorFlow's start-up lines, and the report."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"},
    "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]),
}
# Writes the lines of TensorFlow's import, and fails on the last rank.
FAILING = """
import argparse, os, pathlib, sys, time
from support import launch

def train(options):
    print("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", file=sys.stderr)
    print("W0000 00:00:1795402455.605179   11385 port.cc:999] something else", file=sys.stderr, flush=True)
    rank = os.environ["TFSPS_RANK"]
    (options.out / f"began-{{rank}}").touch()
    if rank == str(options.ranks - 1):
        while len(list(options.out.glob("began-*"))) < options.ranks:
            time.sleep(0.02)
        {failure}
    time.sleep(60)

options = argparse.Namespace(ranks={ranks}, collectives="tensorflow", out=pathlib.Path(sys.argv[1]))
sys.exit(launch.run(train, options))
"""


def failing_job(tmp_path: Path, ranks: int, failure: str) -> tuple[int, str]:
    """Returns status and output of a job whose last rank runs the statement `failure`."""
    program, out = tmp_path / "program.py", tmp_path / "out"
    program.write_text(FAILING.format(ranks=ranks, failure=failure))
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(program), str(out)], capture_output=True, text=True, timeout=120, env=ENVIRONMENT
    )
    for rank in range(ranks):
        assert "absl::InitializeLog" in (out / "logs" / f"rank-{rank}.log").read_text()
    assert "absl::InitializeLog" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_traceback_of_a_failing_rank_is_shown_once(tmp_path: Path, ranks: int) -> None:
    status, shown = failing_job(tmp_path, ranks, "raise ArithmeticError('of the last rank')")
    assert status == 1
    assert len(re.findall(r"ArithmeticError: of the last rank$", shown, re.MULTILINE)) == 1
    assert len(re.findall(r"in train$", shown, re.MULTILINE)) == 1
    assert f"rank {ranks - 1} failed first, with exit status 1" in shown


def test_what_is_written_just_before_a_crash_is_shown(tmp_path: Path) -> None:
    status, shown = failing_job(tmp_path, 1, "os.write(2, b'last words'); os.kill(os.getpid(), 9)")
    assert status == 128 + 9
    assert "last words" in shown
    assert "SIGKILL" in shown


def in_terminal(command: list[str]) -> tuple[int, str]:
    """Returns status and output of a command that runs in a pseudo-terminal."""
    reader, writer = pty.openpty()
    job = subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, env=ENVIRONMENT, close_fds=True)
    os.close(writer)
    output = b""
    while True:
        try:
            part = os.read(reader, 1 << 16)
        except OSError:  # Linux's error after the last writer has closed
            part = b""
        if not part:
            break
        output += part
    os.close(reader)
    return job.wait(timeout=60), output.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("ranks", "collectives"),
    [
        (1, "auto"),
        pytest.param(2, "horovod", marks=pytest.mark.multirank),
        pytest.param(2, "tensorflow", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.daily_cases(1)
def test_a_terminal_shows_a_bar_in_place_and_the_report(tmp_path: Path, ranks: int, collectives: str) -> None:
    if collectives == "horovod":
        pytest.importorskip("horovod")
    options = "--samples 20000 --test-samples 2000 --batch 500 --dim 4 --evaluations 1 --learning-rate 0.02".split()
    out = tmp_path / "out"
    command = [sys.executable, str(EXAMPLES / "train_ctr.py"), *options, "--ranks", str(ranks), "--out", str(out)]
    command += ["--collectives", collectives]
    on_disk = collectives == "auto"
    if on_disk:
        command += ["--storage", "tiered", "--storage-folder", str(tmp_path / "disk"), "--storage-memory", "3MB"]
    status, shown = in_terminal(command)
    assert status == 0, shown
    lines = [
        line.rsplit("\r", 1)[-1].rstrip() for line in shown.split("\n")
    ]  # the part of each line that stays on the screen
    first, engine, held_out, bar, *report = [line for line in lines if line]
    if re.match(r"tf-sparse-ps: \S+ steps/s, ", report[-1]):  # the launcher's, unless the job was very short
        report.pop()
    assert first == f"Starting {ranks} rank{'s' * (ranks > 1)}; logs: {out / 'logs'}"
    names = {"auto": "none, there is one rank", "horovod": "Horovod", "tensorflow": "TensorFlow's collectives"}
    assert engine == f"Engine that connects the ranks: {names[collectives]}"
    assert any(re.fullmatch(rf" *engine +{re.escape(names[collectives])}", line) for line in report)
    assert re.fullmatch(r"step \d+: held-out AUC 0\.\d+", held_out)
    assert bar.startswith("100%")
    assert "20.0k/20.0k" in bar
    assert bool(re.search(r", waited \d+\.\d s for the disk, \S+ of \S+ rows late\]$", bar)) == on_disk
    assert ("s waited per rank" in shown) == on_disk
    assert report == (out / "report.txt").read_text().rstrip("\n").splitlines()
    assert shown.count("  0%") == 1
    assert "<stderr>" not in shown
