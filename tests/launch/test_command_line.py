"""The options of the launcher, refused options, and the launcher's imports."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launcher import ROOT, environment, free_port

from tf_sparse_ps import cli
from tf_sparse_ps.cli import run
from tf_sparse_ps.errors import LaunchError
from tf_sparse_ps.launch import Options, horovod_check

pytestmark = pytest.mark.quick

HOROVOD = importlib.util.find_spec("horovod") is not None


@pytest.fixture(autouse=True)
def _no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TFSPS_RANK", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)


def words(text: str) -> list[str]:
    return ["run", *text.split()]


def parse(arguments: list[str]) -> Options:
    """Returns the options of a launcher that the arguments make."""
    with run.command.make_context("tf-sparse-ps run", arguments[1:]) as context:
        return run.options(**context.params)


def test_options_of_the_program_are_left_to_it() -> None:
    options = parse(words("-np 2 --log-dir logs true --all-ranks -np 9 -- x"))
    assert options.ranks == 2
    assert options.log_dir == Path("logs")
    assert not options.all_ranks
    assert options.command[0].endswith("/true")
    assert options.command[1:] == ("--all-ranks", "-np", "9", "--", "x")
    assert parse(words("-np 1 -- true")).command[1:] == ()


def test_a_second_machine() -> None:
    options = parse(words("--nnodes 2 --node-rank 1 --coordinator host0:29400 --nproc-per-node 2 true"))
    assert (options.nnodes, options.node_rank, options.coordinator) == (2, 1, ("host0", 29400))
    # The same script works on one machine.
    assert parse(words("--nnodes 1 --coordinator host0:29400 -np 2 true")).coordinator is None


def test_ranks_have_half_a_minute_to_save(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(words("-np 1 true")).grace_s == 30
    assert parse(words("-np 1 --grace 2.5 true")).grace_s == 2.5
    for grace in ("-1", "inf", "nan"):
        with pytest.raises(SystemExit):
            cli.main(words(f"-np 1 --grace {grace} true"))
        assert f"--grace must be a number of seconds of at least 0. Received: {float(grace)}" in capsys.readouterr().err


def test_collectives_are_horovods_if_it_is_installed() -> None:
    assert parse(words("-np 1 true")).collectives == ("horovod" if HOROVOD else "tensorflow")
    assert parse(words("-np 1 --collectives tensorflow true")).collectives == "tensorflow"


def test_horovod_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda _: None)
    assert parse(words("-np 1 true")).collectives == "tensorflow"
    with pytest.raises(SystemExit):
        cli.main(words("-np 1 --collectives horovod true"))
    assert f"Horovod is not installed for {sys.executable}" in capsys.readouterr().err


def settled(line: str, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Returns the options of a machine on which Horovod is installed."""
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda _: importlib.machinery.ModuleSpec("x", None))
    return horovod_check.settle(parse(words(line)))


def without_an_address(monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the machine's name have no address."""

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(horovod_check.socket, "gethostname", lambda: "otherbox")
    monkeypatch.setattr(horovod_check.socket, "getaddrinfo", unknown)
    return "the name of this machine, 'otherbox', has no address"


def that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes Horovod belong to another TensorFlow."""
    monkeypatch.setattr(horovod_check, "_LOAD", "raise OSError('mpi_lib.so: undefined symbol: _ZN3abc')")
    monkeypatch.setattr(horovod_check.socket, "getaddrinfo", lambda *_: [])
    reason = "OSError: mpi_lib.so: undefined symbol: _ZN3abc"
    return f"Horovod is installed for {sys.executable}, but it cannot be imported ({reason})"


@pytest.mark.parametrize("broken", [without_an_address, that_does_not_load])
def test_horovod_that_cannot_work_is_refused_before_a_rank_starts(
    broken: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected_text = broken(monkeypatch)
    with pytest.raises(LaunchError) as refused:
        settled("-np 2 --collectives horovod true", monkeypatch)
    assert refused.value.status == 2
    assert expected_text in str(refused.value)
    assert "or use --collectives tensorflow" in str(refused.value)
    assert settled("-np 2 true", monkeypatch).collectives == "tensorflow"
    stderr = capfd.readouterr().err
    assert expected_text in stderr
    assert "The ranks use TensorFlow's collectives instead" in stderr
    assert settled("-np 2 --collectives tensorflow true", monkeypatch).collectives == "tensorflow"
    assert capfd.readouterr().err == ""


def test_horovod_that_works_is_used(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(horovod_check.socket, "getaddrinfo", lambda *_: [])
    monkeypatch.setattr(horovod_check, "_LOAD", "pass")
    for line in ("-np 2 true", "-np 2 --collectives horovod true"):
        assert settled(line, monkeypatch).collectives == "horovod"
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not HOROVOD, reason="Horovod is not installed here")
def test_the_horovod_that_is_installed_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_check.socket, "getaddrinfo", lambda *_: [])
    assert horovod_check._problem() == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-np 0 true", "-np must be 1 or more, the number of ranks on this machine. Received: 0"),
        ("-np two true", "'two' is not a valid integer"),
        ("true", "-np"),
        ("-np 2", "the program to run is missing"),
        ("-np 2 --", "the program to run is missing"),
        ("-np 2 --nnodes 0 true", "--nnodes must be 1 or more. Received: 0"),
        ("-np 2 --coordinator a:1 true", "Give --nnodes, too. Received: 'a:1'"),
        ("-np 2 --nnodes 2 true", "--nnodes greater than 1 needs --coordinator HOST:PORT"),
        ("-np 2 --node-rank 1 true", "--node-rank must be 0 to 0 with --nnodes 1. Received: 1"),
        ("-np 2 --nnodes 2 --node-rank 2 --coordinator a:1 true", "--node-rank must be 0 to 1 with --nnodes 2"),
        ("-np 2 --nnodes 2 --node-rank -1 --coordinator a:1 true", "--node-rank must be 0 to 1"),
        ("-np 2 --coordinator host true", "--coordinator must be HOST:PORT"),
        ("-np 2 --coordinator host:port true", "Received: 'host:port'"),
        ("-np 2 --coordinator :80 true", "--coordinator must be HOST:PORT"),
        ("-np 2 --coordinator host:0 true", "--coordinator must be HOST:PORT"),
        ("-np 2 --coordinator host:65536 true", "--coordinator must be HOST:PORT"),
        ("-np 2 --coordinator http://host:80 true", "--coordinator must be HOST:PORT"),
        ("-np 2 --timeout 0 true", "--timeout must be a number of seconds greater than 0"),
        ("-np 2 --timeout nan true", "--timeout must be a number of seconds greater than 0"),
        ("-np 2 --collectives mpi true", "'mpi' is not one of"),
        ("-np 2 no-such-program --lr 1", "no such program: 'no-such-program'"),
        ("-np 2 --all true", "--all"),
    ],
)
def test_mistakes_are_named(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words(line))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_script_that_python_was_forgotten_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(SystemExit):
        cli.main(["run", "-np", "2", str(tmp_path / "train.py")])
    assert f"cannot be executed. Run it with: python {tmp_path}/train.py" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["TFSPS_RANK", "HOROVOD_RANK"])
def test_a_launcher_within_a_rank(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "3")
    with pytest.raises(SystemExit) as ended:
        cli.main(words("-np 2 true"))
    assert ended.value.code == 2
    assert f"{variable}=3 is set: this process is itself a rank" in capsys.readouterr().err


def test_a_port_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status = cli.main(words(f"--nnodes 2 --coordinator 127.0.0.1:{port} -np 1 true"))
    assert status == 2
    assert f"127.0.0.1:{port}: Address already in use" in capfd.readouterr().err


def test_a_coordinator_that_nobody_knows(capfd: pytest.CaptureFixture[str]) -> None:
    line = f"--nnodes 2 --node-rank 1 --coordinator no-such-host.invalid:{free_port()} -np 1 --timeout 5 true"
    assert cli.main(words(line)) == 2
    assert "this machine cannot reach no-such-host.invalid" in capfd.readouterr().err


def test_a_folder_of_logs_that_cannot_be(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["run", "-np", "1", "--log-dir", str(tmp_path / "file" / "logs"), "true"]) == 2
    assert "--log-dir: cannot make" in capfd.readouterr().err


@pytest.mark.parametrize("collectives", ["tensorflow", *(["horovod"] if HOROVOD else [])])
def test_a_launcher_does_not_import_tensorflow(collectives: str, tmp_path: Path) -> None:
    code = f"""
import sys
from tf_sparse_ps.cli import main
status = main(["run", "-np", "2", "--collectives", {collectives!r}, "true"])
sys.exit(status or ("tensorflow imported" if "tensorflow" in sys.modules else 0))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_and_the_script_of_that_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tf_sparse_ps", "run", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "--coordinator host0:29400" in done.stdout
    assert 'tf-sparse-ps = "tf_sparse_ps.cli:main"' in (ROOT / "pyproject.toml").read_text()
