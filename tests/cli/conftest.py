"""The commands of `tf-sparse-ps`, run in this process on a machine in all states. JSON is validated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import machine as machines
import pytest
from cli_support import ROOT, Done, Run, validate
from machine import Machine

from tf_sparse_ps import cli


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command. Its JSON is validated."""

    def run_command(*arguments: object) -> Done:
        words = [os.fspath(word) if isinstance(word, Path) else str(word) for word in arguments]
        try:
            status = cli.main(words)
        except SystemExit as ended:
            status = int(str(ended.code))
        out, err = capsys.readouterr()
        if "--json" in words and status != 2:
            family = words[0] == "checkpoint"
            validate(
                "-".join(words[: 1 + family]) if words[0] != "inspect" or "--keys" not in words else "keys",
                json.loads(out),
            )
        assert "\x1b" not in out + err, "colours in a log"
        return Done(status, out, err)

    return run_command


@pytest.fixture(scope="session")
def shm() -> Iterator[Path]:
    """A folder in shared memory."""
    path = Path(tempfile.mkdtemp(prefix="tf_sparse_ps-cli-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def machine_and_holder(shm: Path) -> Iterator[tuple[Machine, int]]:
    """The machine, and the process that writes the group run-n0."""
    made = Machine(shm)
    command = [sys.executable, "-c", machines.HOLDER, str(made.tables / "run-n0")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        yield made, holder.pid
        assert holder.stdin is not None
        holder.stdin.close()


@pytest.fixture
def machine(machine_and_holder: tuple[Machine, int], monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine, whose folder of tables is TFSPS_DIR."""
    monkeypatch.setenv("TFSPS_DIR", str(machine_and_holder[0].tables))
    return machine_and_holder[0]


@pytest.fixture
def holder(machine_and_holder: tuple[Machine, int]) -> int:
    """The process that writes the group run-n0."""
    return machine_and_holder[1]
