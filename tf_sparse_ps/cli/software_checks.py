"""Checks of the software that is installed, which import none of it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_sparse_ps._version import PYTHON_RANGE, TENSORFLOW_RANGE, __version__
from tf_sparse_ps.cli.checks import NOTE, OK, PROBLEM, Check, in_words

# The distributions that contain the package `tensorflow`.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu")
_LEGACY = "TF_USE_LEGACY_KERAS"
_LIBRARY = Path(__file__).resolve().parents[1] / "_ops_lib.so"


def installed(name: str) -> str | None:
    """Returns the version of a distribution, or None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def all_of(version_of: Callable[[str], str | None] = installed, library: Path = _LIBRARY) -> Iterator[Check]:
    """Yields the checks.

    Args:
      version_of: Returns the version of a distribution, or None.
      library: The op library.
    """
    yield Check("tf_sparse_ps", OK, __version__, facts={"version": __version__})
    yield python(sys.version_info[:2])
    name = next((name for name in _TENSORFLOWS if version_of(name) is not None), None)
    tensorflow_version = None if name is None else version_of(name)
    yield tensorflow(tensorflow_version)
    if tensorflow_version is not None:
        legacy = os.environ.get(_LEGACY) in ("1", "true", "True")
        yield keras(tensorflow_version, version_of("tf-keras" if legacy else "keras"), legacy=legacy)
        yield numpy(tensorflow_version, version_of("numpy"))
    yield op_library(library, tensorflow_version)
    horovod = version_of("horovod")
    found = "is not installed; ranks use TensorFlow's collectives" if horovod is None else horovod
    yield Check("horovod", OK, found, facts={"version": horovod})


def python(version: tuple[int, ...]) -> Check:
    """Checks the version of Python."""
    text, facts = ".".join(map(str, version)), {"version": ".".join(map(str, version))}
    if PYTHON_RANGE[0] <= version <= PYTHON_RANGE[1]:
        return Check("python", OK, text, facts=facts)
    return Check("python", PROBLEM, text, f"Use Python {in_words(PYTHON_RANGE)}", facts)


def tensorflow(version: str | None) -> Check:
    """Checks the version of TensorFlow."""
    facts = {"version": version}
    if version is None:
        remedy = f"To train, install TensorFlow {in_words(TENSORFLOW_RANGE)}. Tables and served versions do not need it"
        return Check("tensorflow", NOTE, "is not installed", remedy, facts)
    if TENSORFLOW_RANGE[0] <= _numbers(version) <= TENSORFLOW_RANGE[1]:
        return Check("tensorflow", OK, version, facts=facts)
    return Check("tensorflow", PROBLEM, version, f"Install TensorFlow {in_words(TENSORFLOW_RANGE)}", facts)


def keras(tensorflow_version: str, version: str | None, *, legacy: bool) -> Check:
    """Checks whether Keras fits TensorFlow: 2.15 comes with Keras 2, later ones with Keras 3 unless told otherwise."""
    facts = {"version": version, "legacy": legacy}
    package = "tf-keras" if legacy else "keras"
    expected = 2 if legacy or _numbers(tensorflow_version) < (2, 16) else 3
    if version is None:
        remedy = f"Run `pip install {package}`"
        return Check("keras", PROBLEM, f"{package} is not installed", remedy, facts)
    if _numbers(version)[0] == expected:
        return Check("keras", OK, version, facts=facts)
    command = f"pip install '{package}>={expected},<{expected + 1}'"
    remedy = f"TensorFlow {tensorflow_version} needs Keras {expected}. Run `{command}`"
    return Check("keras", PROBLEM, version, remedy, facts)


def numpy(tensorflow_version: str, version: str | None) -> Check:
    """Checks whether NumPy fits TensorFlow."""
    facts = {"version": version}
    if version is not None and _numbers(version) >= (2, 0) and _numbers(tensorflow_version) < (2, 18):
        remedy = f"TensorFlow {tensorflow_version} needs NumPy 1. Run `pip install 'numpy<2'`"
        return Check("numpy", PROBLEM, version, remedy, facts)
    return Check("numpy", OK, str(version), facts=facts)


def op_library(path: Path, tensorflow_version: str | None) -> Check:
    """Checks whether the op library is there. One library works with every supported TensorFlow."""
    facts = {"path": os.fspath(path), "bytes": path.stat().st_size if path.exists() else None}
    if facts["bytes"]:
        return Check("op library", OK, f"{path.name}, for TensorFlow {in_words(TENSORFLOW_RANGE)}", facts=facts)
    status = NOTE if tensorflow_version is None else PROBLEM
    return Check("op library", status, f"{path} is missing", "Install the wheel again, or run `make build`", facts)


def _numbers(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version; (0, 0) if it has none."""
    match = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (0, 0) if match is None else (int(match[1]), int(match[2] or 0))
