"""The command line as a whole: its help, processor time, imports, completion, statuses, and schemas."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import jsonschema
import machine as machines
import numpy as np
import pytest
from cli_support import ROOT, SCHEMAS, Run, validate
from machine import KEYS, Machine

from tf_sparse_ps import __version__, cli
from tf_sparse_ps.cli.main import COMMANDS

HELP_S, COMMAND_S = 0.3, 0.8  # of processor time, on the machine of docs/results.md
WITHOUT_TENSORFLOW = [name for name in COMMANDS if name != "publish"]


def environment(**values: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFSPS_", "HOROVOD_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **values}


def all_commands() -> dict[str, click.Command]:
    """Returns the commands by their words."""
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = importlib.import_module(f"tf_sparse_ps.cli.{name}").command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": each for inner, each in command.commands.items()}
        else:
            found[name] = command
    return found


def test_help_lists_all_commands_and_each_has_its_own(run: Run) -> None:
    done = run("--help")
    assert done.status == 0
    for name, text in COMMANDS.items():
        assert f"{name} " in done.out
        assert text in done.out
    for words, command in all_commands().items():
        text = run(*words.split(), "--help").out
        assert text.startswith(f"Usage: tf-sparse-ps {words} ")
        assert all(option.help for option in command.params if isinstance(option, click.Option)), words
    assert __version__ in run("--version").out


def test_the_page_lists_all_commands() -> None:
    page = (ROOT / "docs" / "commands.md").read_text().partition("## All commands")[2]
    listed = [line.split("`")[1].split()[0] for line in page.splitlines() if line.startswith(("| `", "| [`"))]
    assert sorted(listed) == sorted(COMMANDS)


def test_mistakes_have_status_2(run: Run) -> None:
    for words in (
        ["lss"],
        ["ls", "x"],
        ["inspect"],
        ["get", "x"],
        ["diff", "x"],
        ["verify", "--jsn", "x"],
        ["checkpoint"],
    ):
        done = run(*words)
        assert (done.status, done.out) == (2, ""), words
        assert done.err
    done = run("inspect", "x", "--keys", "--histogram")
    assert (done.status, "exclude each other" in done.err) == (2, True)
    assert run("follow", "a", "b", "--pin", "1", "--unpin").status == 2


def test_every_command_with_json_has_a_valid_schema() -> None:
    with_json = {
        words for words, command in all_commands().items() if any(option.name == "as_json" for option in command.params)
    }
    assert set(all_commands()) - with_json == {"run", "metrics"}, "`run` prints what its program prints"
    schemas = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.iterdir()}
    assert set(schemas) - {"keys", "plan-config"} == {words.replace(" ", "-") for words in with_json}
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["description"], name
        with pytest.raises(jsonschema.ValidationError):
            validate(name, {"other": 1})


def test_no_command_but_publish_imports_tensorflow(machine: Machine, tmp_path: Path) -> None:
    planned = tmp_path / "job.json"
    planned.write_text('{"tables": [{"name": "words", "dim": 4, "rows": 1000}], "batch_size": 8}')
    code = f"""
import sys
from tf_sparse_ps import cli
folder, files = {str(machine.tables)!r}, {str(machine.files)!r}
commands = [
    ["--help"], ["ls"], ["inspect", folder + "/old-n0", "--histogram"], ["inspect", files + "/serve"],
    ["verify", files + "/checkpoints"], ["verify", files + "/serve"], ["get", files + "/words.tfsps", "1"],
    ["diff", files + "/words.tfsps", files + "/serve"], ["doctor"], ["checkpoint", "list", files + "/checkpoints"],
    ["plan", {os.fspath(planned)!r}],
    ["clean", "--job", "run", "--yes"], ["top", "--once", "--every", "0.05"],
    ["follow", files + "/serve", files + "/followed", "--once"],
    ["export", files + "/words.tfsps", "--to", files + "/rows.npz"],
    ["import", files + "/rows.npz", "--into", files + "/again.tfsps"],
]
for words in commands:
    cli.main(words)
    assert "tensorflow" not in sys.modules, words
assert {{words[0] for words in commands}} == {{*{WITHOUT_TENSORFLOW!r}, "--help"}} - {{"run", "metrics"}}
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(TFSPS_DIR=str(machine.tables)),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(machine.files / "followed")
    for name in ("rows.npz", "again.tfsps"):
        (machine.files / name).unlink()


def processor_time_s(words: list[str], **values: str) -> float:
    """Returns the least processor time of three runs of a command."""
    times = []
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "tf_sparse_ps", *words], env=environment(**values), stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode in (0, 1)
        times.append(usage.ru_utime + usage.ru_stime)
    return min(times)


@pytest.mark.parametrize(
    ("words", "most_s"),
    [
        (["--help"], HELP_S),
        (["run", "--help"], HELP_S),
        (["ls"], HELP_S),
        (["top", "--once", "--every", "0.05"], COMMAND_S),
        (["inspect", "{tables}/old-n0"], COMMAND_S),
        (["verify", "{files}/serve"], COMMAND_S),
        (["diff", "{files}/words.tfsps", "{files}/checkpoints"], COMMAND_S),
        (["checkpoint", "verify", "{files}/checkpoints"], COMMAND_S),
        (["doctor"], COMMAND_S),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_start_fast(words: list[str], most_s: float, machine: Machine) -> None:
    words = [word.format(tables=machine.tables, files=machine.files) for word in words]
    assert processor_time_s(words, TFSPS_DIR=str(machine.tables)) <= most_s


def test_the_shell_completes_commands_and_options(machine: Machine) -> None:
    for words, expected in (("tf-sparse-ps in", "inspect"), ("tf-sparse-ps ls --js", "--json")):
        done = subprocess.run(
            [sys.executable, "-m", "tf_sparse_ps"],
            env=environment(
                _TF_SPARSE_PS_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1)
            ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert f"plain,{expected}" in done.stdout.split(), done


def test_ctrl_c_is_status_130(machine: Machine, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tf_sparse_ps", "follow", str(machine.files / "serve"), str(tmp_path / "to")]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "is there" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_terminal_gets_a_table_of_its_width(machine: Machine) -> None:
    import pty

    main, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tf_sparse_ps", "ls"],
        env=environment(TFSPS_DIR=str(machine.tables), COLUMNS="60", TERM="xterm"),
        stdout=end,
    )
    os.close(end)
    text, until = b"", time.monotonic() + 60
    while time.monotonic() < until:
        try:
            part = os.read(main, 4096)
        except OSError:  # the command has ended
            break
        text += part
    os.close(main)
    assert process.wait(60) == 1
    assert b"\x1b[1m" in text, "titles are bold"
    shown = re.sub(r"\x1b\[[\d;]*m", "", text.decode())
    assert "\u2026" not in shown, "nothing is cut"
    assert "GROUP" in shown.splitlines()[0].split()
    assert "WRITTEN" in shown.splitlines()[0].split()
    assert re.search(r"pid \d+,? *$|^ +alive|dead", shown, re.MULTILINE), "a long text is continued in its column"


# --- the JSON of commands that other tests run with TensorFlow ---


def test_documents_of_checkpoint_commands(machine: Machine, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "checkpoints"
    shutil.copytree(machine.files / "checkpoints", path)
    shutil.copytree(machine.files / "damaged-checkpoints", tmp_path / "damaged")
    assert run("checkpoint", "list", path, "--json").status == 0
    assert run("checkpoint", "verify", path, "--json").status == 0
    assert run("checkpoint", "verify", tmp_path / "damaged", "--json").status == 1
    assert run("checkpoint", "diff", path, "--json").status == 1
    assert run("checkpoint", "export", path, "--to", tmp_path / "out", "--json").status == 0
    assert run("diff", tmp_path / "out" / "words.tfsps", path).status == 0
    np.save(tmp_path / "ids.npy", KEYS[:3])
    done = run("checkpoint", "erase", path, "--keys", tmp_path / "ids.npy", "--json")
    assert (done.status, done.facts["rows"]) == (0, 3)
    assert run("checkpoint", "compact", path, "--json").status == 0


def test_documents_of_follow(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["follow", str(machine.files / "serve"), str(tmp_path / "to"), "--once", "--json"]
    assert cli.main(command) == 0
    (line,) = capsys.readouterr().out.splitlines()
    validate("follow", json.loads(line))
    assert machines.table_versions.Version(tmp_path / "to" / "2").manifest.step == 0
