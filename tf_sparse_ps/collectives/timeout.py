"""`timeout_s`: how long ranks wait for each other."""

from __future__ import annotations

import os


def timeout_s() -> float:
    """Returns how many seconds ranks wait for each other before that is an error: TFSPS_TIMEOUT_S, by default 600.

    Raises:
      ValueError: TFSPS_TIMEOUT_S is not a number greater than 0.
    """
    text = os.environ.get("TFSPS_TIMEOUT_S", "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"TFSPS_TIMEOUT_S must be a number of seconds greater than 0. Received: {text!r}")
    return seconds
