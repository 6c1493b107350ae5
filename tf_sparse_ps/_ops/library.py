"""Loads the op library `_ops_lib.so` into a supported version of TensorFlow."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_sparse_ps._version import TENSORFLOW_RANGE

_WRAPPED_OP = re.compile(r"^\{\{function_node __wrapped__\S*\}\} | \[Op:\w+\]$")


def check_tensorflow_version(found: str) -> None:
    """Refuses a version of TensorFlow outside of the supported range.

    Args:
        found: The version of the installed TensorFlow.

    Raises:
        ImportError: The version is outside of the range. The message names both.
    """
    low, high = (".".join(map(str, bound)) for bound in TENSORFLOW_RANGE)
    try:
        major, minor = (int(part) for part in found.split(".")[:2])
    except ValueError:
        major, minor = -1, -1
    if not TENSORFLOW_RANGE[0] <= (major, minor) <= TENSORFLOW_RANGE[1]:
        raise ImportError(
            f"tf_sparse_ps works with TensorFlow {low} to {high}; found TensorFlow {found}. Install a version in this "
            "range"
        )


def load() -> Any:
    """Returns the ops as Python functions.

    Raises:
        ImportError: The library is missing or cannot be loaded into this TensorFlow.
    """
    check_tensorflow_version(tf.__version__)
    library = Path(__file__).parent.with_name("_ops_lib.so")
    if not library.exists():
        raise ImportError(f"{library} is missing: build it with `make build`, or install the wheel")
    try:
        return _with_plain_messages(tf.load_op_library(str(library)))
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"{library} cannot be loaded into TensorFlow {tf.__version__}, although it supports every version from "
            f"{'.'.join(map(str, TENSORFLOW_RANGE[0]))} to {'.'.join(map(str, TENSORFLOW_RANGE[1]))}. Reinstall "
            f"tf_sparse_ps, or build it again: {error}"
        ) from error


def _with_plain_messages(library: Any) -> types.SimpleNamespace:
    """Returns the functions of an op library. In eager calls, their errors begin with the message of the op."""
    functions = {name: function for name, function in vars(library).items() if name.startswith("tsps_")}
    return types.SimpleNamespace(**{name: _plain(function) for name, function in functions.items()})


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    @tf.autograph.experimental.do_not_convert
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except tf.errors.OpError as error:
            # TensorFlow adds the name of its function for the op, and the device, which mean nothing to a user.
            message = _WRAPPED_OP.sub("", error.message)
            raise type(error)(error.node_def, error.op, message) from None

    return call


lib = load()
