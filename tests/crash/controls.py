"""Runs of a harness without one of the mechanisms that it tests: they must find violations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence


def is_noticed(module: str, mechanism: str, options: Sequence[str]) -> bool:
    """Whether a harness finds violations with a mechanism off; says so.

    Args:
      module: Of the harness. Its last line is JSON: how many `kills` and `violations` there were.
      mechanism: TFSPS_FAULT_OFF, which the core reads once: the control is a process of its own.
      options: Of the harness.
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
