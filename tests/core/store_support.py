"""Helpers for tests of tables without TensorFlow: values, and programs in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import tf_sparse_ps

PACKAGE_PARENT = Path(tf_sparse_ps.__file__).parent.parent


def ones(n: int, dim: int = 4) -> np.ndarray:
    return np.ones((n, dim), np.float32)


def start_child(code: str, **pipes: int) -> subprocess.Popen[str]:
    """Starts Python code in another process, with its output as text. `pipes`: further pipes, as `stdin=PIPE`."""
    env = {**os.environ, "PYTHONPATH": os.fspath(PACKAGE_PARENT)}
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd="/", **pipes)


def run_child(code: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code in another process."""
    env = {**os.environ, "PYTHONPATH": os.fspath(PACKAGE_PARENT), "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/", timeout=240)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done
