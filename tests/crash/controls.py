"""Runs a harness without one of the mechanisms that it tests. The harness must then find violations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence


def is_noticed(module: str, mechanism: str, options: Sequence[str]) -> bool:
    """Whether a harness finds violations without a mechanism. Prints the result.

    Args:
      module: The module of the harness. The last line of its output is JSON: the numbers of `kills` and `violations`.
      mechanism: The value of TFSPS_FAULT_OFF. The core reads it once, so the control is a process of its own.
      options: The arguments of the harness.
    """
    control = subprocess.run(
        [sys.executable, "-m", module, *options],
        env={**os.environ, "TFSPS_FAULT_OFF": mechanism},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    outcome = json.loads(control.stdout.splitlines()[-1])
    caught = bool(outcome["violations"] > 0)
    verdict = "violation found after" if caught else "NOTHING FOUND in"
    print(f"control with the {mechanism} off: {verdict} {outcome['kills']} kills")
    return caught
