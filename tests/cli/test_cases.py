"""Every command on every kind of path, in every state, prints what its schema says and returns its status."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from pathlib import Path

import machine as machines
import pytest
from cli_support import Run
from machine import CASES, Machine

from tf_sparse_ps import _table, cli

COMMANDS = (("inspect",), ("inspect", "--keys"), ("inspect", "--histogram"), ("verify",), ("get",), ("diff",))


@pytest.mark.parametrize("name", CASES)
def test_statuses_and_schemas(name: str, machine: Machine, run: Run) -> None:
    if name.endswith("other-n0") and os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    path = machine.tables.parent / name
    key = str(machines.KEYS[_table.owners(machines.KEYS, 3) == 1][0])  # of the shard, and of all others
    for command, expected in zip(COMMANDS, CASES[name], strict=True):
        words = (*command, path, *{"get": [key], "diff": [path]}.get(command[0], []))
        for json_words in ((), ("--json",)):
            done = run(*words, *json_words)
            assert done.status == expected, (words, done)
            if expected == 2:
                assert done.out == ""
                assert len(done.err.splitlines()) == 1
                assert done.err.startswith(f"tf-sparse-ps {command[0]}: ")


def test_the_table_of_cases_has_every_path_of_the_machine(machine: Machine, holder: int) -> None:
    assert {Path(name).name for name in CASES if name.startswith("tables/") and name.count("/") == 1} - {"none-n0"} == {
        path.name for path in machine.tables.iterdir()
    } | ({"other-n0"} if os.geteuid() else set())


def as_other_user(words: list[str]) -> tuple[int, str]:
    """Runs a command in a child that has given up root's rights. Returns its status, and what it printed."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        text, status = io.StringIO(), 99
        try:
            os.setgroups([])
            os.setgid(machines.OTHER_USER)
            os.setuid(machines.OTHER_USER)
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                status = cli.main(words)
        except BaseException as error:
            text.write(repr(error))
        os.write(into, text.getvalue().encode())
        os._exit(status)
    os.close(into)
    with os.fdopen(out) as stream:
        text_of_child = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text_of_child


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another user")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls"], "cannot be read by this user"),
        (["clean", "--yes"], "cannot be read by this user"),
        (["verify", "{tables}/old-n0"], "does not exist"),  # the user cannot look into the folder
        (["inspect", "{tables}"], "cannot be read by this user"),
        (["get", "{tables}", "1"], "cannot be read by this user"),
    ],
)
def test_another_user_sees_nothing(words: list[str], message: str, machine: Machine) -> None:
    for name in words[:1]:
        importlib.import_module(f"tf_sparse_ps.cli.{name}")  # the other user may not be able to read the package
    machine.tables.parent.chmod(0o755)
    status, text = as_other_user([word.format(tables=machine.tables) for word in words])
    assert status == 2, text
    assert message in text
