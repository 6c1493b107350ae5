"""The view of type checkers: a user's script under mypy --strict, and the stub next to the built module."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tf_sparse_ps import _table

pytest.importorskip("mypy")
ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "tf_sparse_ps" / "_table.pyi"

GOOD = """
from __future__ import annotations

import numpy as np
import tf_sparse_ps as tsps

layer = tsps.Embedding(1000, 16)
reveal_type(layer)
reveal_type(tsps.Embedding.__init__)
reveal_type(layer.output_dim)
tsps.Embedding(None, 16, "uniform", mask_zero=True, table=tsps.TableConfig("user", 16), name="user")
bags = tsps.EmbeddingReduce(input_dim=1000, output_dim=16, combiner="sum")
reveal_type(bags.combiner)
user = tsps.TableConfig("user", 16, optimizer=tsps.optimizers.Adagrad(learning_rate=0.1))
reveal_type(user)
collection = tsps.EmbeddingCollection({"user": tsps.FeatureConfig(table=user)})
reveal_type(collection({"user": [1, 2]}))
schedule = tsps.schedules.DelayedGlobal(staleness=2, cycle=10)
optimizer = tsps.DistributedOptimizer("adam", sparse_optimizer=tsps.optimizers.Adagrad(), schedule=schedule)
reveal_type(optimizer)
reveal_type(tsps.callbacks.BroadcastVariables())
try:
    reveal_type(tsps.Table.open("/dev/shm/group/user", mode="r").lookup(np.arange(4)))
except tsps.errors.NotFoundError:
    pass
except tsps.errors.Error as error:
    reveal_type(error)
reveal_type(tsps.init())
"""
REVEALED = [
    r"tf_sparse_ps\.layers\.embedding\.Embedding",
    r"def \(self: .*, input_dim: builtins\.int \| None, output_dim: builtins\.int, .*'mask_zero'\?: builtins\.bool.*",
    r"builtins\.int",
    r"builtins\.str",
    r"tf_sparse_ps\.config\.table_config\.TableConfig",
    r"builtins\.dict\[builtins\.str, Any\]",
    r"tf_sparse_ps\.training\.distributed_optimizer\.DistributedOptimizer",
    r"tf_sparse_ps\.callbacks\.broadcast\.BroadcastVariables",
    r"numpy\.ndarray\[.*32Bit.*",
    r"tf_sparse_ps\.errors\.Error",
    r"tf_sparse_ps\.collectives\.interface\.Collectives",
]
# Each wrong line of a script, and mypy's message for it.
BAD = {
    "tsps.Embedding(1000)": 'Missing positional argument "output_dim"',
    'tsps.Embedding("1000", 16)': 'Argument 1 to "Embedding" has incompatible type "str"; expected "int | None"',
    "tsps.Embedding(1000, 16, mask_zeros=True)": 'Unexpected keyword argument "mask_zeros"',
    "tsps.EmbeddingReduce(1000, 16, combiner=3)": 'Argument "combiner" to "EmbeddingReduce" has incompatible type',
    'tsps.EmbeddingCollection(["user"])': 'expected "Mapping[str, FeatureConfig]"',
    'tsps.TableConfig("user", dims=16)': 'Unexpected keyword argument "dims"',
    "tsps.optimizers.Adagrad(rate=0.1)": 'Unexpected keyword argument "rate"',
    'tsps.DistributedOptimizer("adam", sparse_reduction=1)': 'Argument "sparse_reduction"',
    'tsps.Table.open("user", mode="w")': "expected \"Literal['r', 'r+']\"",
    "tsps.schedules.DelayedGlobal(stale=2)": 'Unexpected keyword argument "stale"',
    "tsps.errors.NoSuchError": 'Module has no attribute "NoSuchError"',
    "tsps.NoSuchName": 'Module has no attribute "NoSuchName"',
}


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs a Python module with this tree's package."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    arguments = [sys.executable, "-m", *map(str, command)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)


def mypy(tmp_path: Path, script: str) -> str:
    """Checks a user's script outside of this tree and its settings, and returns mypy's output."""
    path = tmp_path / "script.py"
    path.write_text(script)
    done = run("mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", path)
    return done.stdout + done.stderr


@pytest.mark.nightly
def test_a_script_without_mistakes_sees_the_package_s_types(tmp_path: Path) -> None:
    output = mypy(tmp_path, GOOD)
    assert "Success: no issues found" in output, output
    revealed = re.findall(r'Revealed type is "(.*)"', output)
    assert len(revealed) == len(REVEALED), output
    for pattern, text in zip(REVEALED, revealed, strict=True):
        assert re.fullmatch(pattern, text)


@pytest.mark.nightly
def test_mistakes_are_found_where_they_are(tmp_path: Path) -> None:
    output = mypy(tmp_path, "\n".join(["import tf_sparse_ps as tsps", *BAD]) + "\n")
    for number, (line, message) in enumerate(BAD.items(), 2):
        of_line = [text for text in output.splitlines() if f"script.py:{number}: error:" in text]
        assert any(message in text for text in of_line), f"{line}: {message}\n{output}"
    assert len(re.findall(r"error:", output)) == len(BAD), output


@pytest.mark.nightly
def test_the_stub_has_every_name_of_the_module(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed.txt"
    # pybind11's classes have a metaclass of their own, and without a constructor one that raises.
    allowed.write_text("tf_sparse_ps\\._table\\.[A-Z]\\w+(\\.__init__)?\n")
    settings = ["--mypy-config-file", ROOT / "pyproject.toml", "--allowlist", allowed]
    done = run("mypy.stubtest", "tf_sparse_ps._table", *settings)
    assert done.returncode == 0, done.stdout + done.stderr


def documented(text: str) -> list[tuple[str, str | None]]:
    """Returns names and defaults of a signature in pybind11's format, `f(self: A, *, n: int = 3) -> None`."""
    head = text[: text.index(") -> ") + 1]
    call = ast.parse(re.sub(r"tf_sparse_ps\._table\.", "", f"def {head}: ...")).body[0]
    assert isinstance(call, ast.FunctionDef)
    return arguments(call)


def arguments(function: ast.FunctionDef) -> list[tuple[str, str | None]]:
    """Returns names and defaults, with `*` before keyword-only arguments."""
    of = function.args
    missing = [None] * (len(of.args) - len(of.defaults))
    pairs: list[tuple[str, ast.expr | None]] = [
        (a.arg, d) for a, d in zip(of.args, [*missing, *of.defaults], strict=True)
    ]
    pairs += [("*", None)] * bool(of.kwonlyargs)
    pairs += [(a.arg, d) for a, d in zip(of.kwonlyargs, of.kw_defaults, strict=True)]
    return [(name, None if default is None else ast.unparse(default)) for name, default in pairs]


def functions_of_the_stub() -> dict[str, ast.FunctionDef]:
    functions = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            of_class = [
                statement
                for statement in node.body
                if isinstance(statement, ast.FunctionDef) and statement.name != "property"
            ]
            functions |= {f"{node.name}.{statement.name}": statement for statement in of_class}
    return functions


def runtime(name: str) -> Any:
    value: Any = _table
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", sorted(functions_of_the_stub()))
def test_the_stub_has_the_arguments_of_the_built_module(name: str) -> None:
    stub, built = functions_of_the_stub()[name], runtime(name)
    if isinstance(built, property):
        assert [decorator.id for decorator in stub.decorator_list if isinstance(decorator, ast.Name)] == ["property"]
        return
    assert documented(built.__doc__) == arguments(stub)


def test_a_wheel_has_the_stub_and_the_marker() -> None:
    program = (
        "import os, setuptools\n"
        "distribution = setuptools.Distribution()\n"
        "distribution.parse_config_files()\n"
        "command = distribution.get_command_obj('build_py')\n"
        "command.finalize_options()\n"
        "command.manifest_files = {}\n"
        "print(*map(os.path.basename, command.find_data_files('tf_sparse_ps', 'tf_sparse_ps')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert {"py.typed", "_table.pyi"} <= set(done.stdout.split()), done.stderr
