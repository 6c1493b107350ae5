"""`make train`: the engine that it sets up, without running it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD_HOROVOD = REPOSITORY / "tools/horovod/build.sh"
TAG = "tf2.21.0-cp311"
# Stands for the interpreter of an environment: it answers build.sh, and records the commands for pip.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  *tensorflow-cpu*) echo 2.21.0 ;;
  *version_info*) echo cp311 ;;
  "-m pip"*) echo "$*" >> "$(dirname "$0")/pip.log" ;;
esac
"""


def planned(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Returns the commands that `make train` would run in a fresh checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--dry-run", "--always-make", "train", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("engine", ["mpi", ""])
def test_an_unknown_engine_is_refused_with_the_known_ones(engine: str) -> None:
    done = planned(f"ENGINE={engine}")
    assert done.returncode == 2
    assert f"ENGINE={engine} is unknown" in done.stderr
    for known in ("horovod", "tensorflow", "auto"):
        assert f"ENGINE={known}" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("arguments", "engine", "horovod"),
    [
        ([], "auto", "build.sh --if-built .venv"),
        (["ENGINE=tensorflow"], "tensorflow", ""),
        (["ENGINE=horovod"], "horovod", "build.sh .venv"),
    ],
)
def test_horovod_is_built_only_if_it_is_asked_for(arguments: list[str], engine: str, horovod: str) -> None:
    lines = planned(*arguments).stdout.splitlines()
    assert [line.partition("tools/horovod/")[2] for line in lines if "tools/horovod/" in line] == [horovod] * bool(
        horovod
    )
    assert any(f"train_ctr.py --collectives {engine} " in line for line in lines)
    assert not [line for line in lines if "requirements-dev.txt" in line]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment for `build.sh`, whose pip only logs its commands."""
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path / "venv"


def install_if_built(environment: Path) -> tuple[str, str]:
    """Returns the output of `build.sh --if-built`, and the commands for pip."""
    command = [str(BUILD_HOROVOD), "--if-built", str(environment), str(environment.parent / "wheels")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    log = environment / "bin/pip.log"
    return done.stdout, log.read_text() if log.exists() else ""


def test_horovod_that_is_not_built_is_left_out(environment: Path) -> None:
    assert install_if_built(environment) == ("", "")
    assert not (environment.parent / "wheels").exists()


def test_a_horovod_wheel_is_installed_once(environment: Path) -> None:
    wheel = environment.parent / "wheels" / TAG / "horovod-0.28.1.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    _, log = install_if_built(environment)
    assert str(wheel) in log.splitlines()[-1]
    assert (environment / ".horovod").read_text().strip() == TAG
    assert install_if_built(environment) == ("", log)


def test_a_horovod_of_another_tensorflow_is_removed(environment: Path) -> None:
    (environment / ".horovod").write_text("tf2.20.0-cp311\n")
    printed, log = install_if_built(environment)
    assert "tf2.20.0-cp311" in printed
    assert log == "-m pip uninstall -qq --yes horovod\n"
    assert not (environment / ".horovod").exists()
