"""The exceptions form one family, and need no TensorFlow."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from fork_server import run_forked

from tf_sparse_ps import errors

# The classes that catch each exception: its family, and the built-in exceptions that programs catch.
BASES = {
    "Error": (RuntimeError,),
    "TableError": (errors.Error,),
    "InvalidArgumentError": (errors.TableError, ValueError),
    "NotFoundError": (errors.TableError, FileNotFoundError),
    "TableExistsError": (errors.TableError, FileExistsError),
    "StateError": (errors.TableError,),
    "KeyRangeError": (errors.TableError, IndexError, ValueError),
    "NoSpaceError": (errors.TableError, OSError),
    "DamagedFileError": (errors.TableError, OSError),
    "AccessError": (errors.TableError, PermissionError),
    "UnavailableError": (errors.TableError,),
    "WaitTimeoutError": (errors.TableError, TimeoutError),
    "WriterLockedError": (errors.TableError, BlockingIOError),
    "UnsupportedError": (errors.TableError, ValueError),
    "CollectivesError": (errors.Error,),
    "RankError": (errors.Error,),
    "RankDied": (errors.RankError,),
    "LeaderDied": (errors.RankDied,),
    "RankStopped": (errors.RankError,),
    "ExchangeFailed": (errors.RankError,),
    "RankLost": (errors.RankError,),
    "LaunchError": (errors.Error,),
    "WrongSecretError": (errors.CollectivesError, ConnectionError),
    "NotSavedError": (errors.Error, OSError),
    "PartNotSavedError": (errors.NotSavedError,),
}


def test_every_exception_is_in_the_table() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert classes == set(BASES)


@pytest.mark.parametrize("name", sorted(BASES))
def test_an_exception_is_caught_by_its_bases(name: str) -> None:
    cls = getattr(errors, name)
    for base in (*BASES[name], errors.Error, RuntimeError, Exception):
        with pytest.raises(base, match="why"):
            raise cls("why")


def test_no_exception_of_the_package_is_defined_elsewhere() -> None:
    program = (
        "import importlib, inspect, pkgutil, sys, tf_sparse_ps\n"
        "for one in pkgutil.walk_packages(tf_sparse_ps.__path__, 'tf_sparse_ps.'):\n"
        "    if one.name != 'tf_sparse_ps._ops_lib': importlib.import_module(one.name)\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    for cls in vars(module).values() if name.startswith('tf_sparse_ps.') else ():\n"
        "        if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == name:\n"
        "            print(name, cls.__name__)\n"
    )
    done = run_forked(program)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"tf_sparse_ps.errors"}


def test_the_exceptions_need_no_tensorflow() -> None:
    program = (
        "import sys; from tf_sparse_ps.errors import RankLost, CollectivesError; print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr


def test_where_they_were_before_they_still_are() -> None:
    program = (
        "from tf_sparse_ps import collectives, errors, failures\n"
        "assert collectives.CollectivesError is errors.CollectivesError\n"
        "for name in ('RankDied', 'LeaderDied', 'RankStopped', 'ExchangeFailed', 'RankLost'):\n"
        "    assert getattr(failures, name) is getattr(errors, name)\n"
    )
    done = run_forked(program)
    assert done.returncode == 0, done.stderr
