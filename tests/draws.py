"""The command line of a program that makes random draws, each of a seed of its own."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm


def parse(program: str, description: str, *flags: tuple[str, str]) -> argparse.Namespace:
    """Reads the arguments; `seed` is drawn unless it is given.

    Args:
      program: The name for `--help`.
      description: One line for `--help`.
      flags: Further options without a value: name and help.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--draws", type=int, help="how many (default: as many as fit into --minutes, or 20)")
    parser.add_argument("--minutes", type=float, help="begin no draw after so many")
    parser.add_argument("--seed", type=int, help="of the first draw; the next ones count up (default: random)")
    parser.add_argument("--control", action="store_true", help="only the planted faults")
    parser.add_argument("--no-control", action="store_true", help="no planted faults: to repeat a draw")
    for name, text in flags:
        parser.add_argument(name, action="store_true", help=text)
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(10**6)
    arguments.began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes what was started and made
    return arguments


def make(arguments: argparse.Namespace, one: Callable[[int], Any], tell: Callable[[Any], str]) -> list[Any]:
    """Makes the draws, with a progress bar.

    Args:
      arguments: What `parse` returned. The minutes count from there.
      one: Makes the draw of a seed.
      tell: What is to be shown of a draw; "": nothing.

    Returns:
      What `one` returned for each seed.
    """
    count = arguments.draws or (20 if arguments.minutes is None else 10**6)
    results = []
    with tqdm(total=arguments.draws or None, unit="draw", disable=None) as bar:
        for seed in range(arguments.seed, arguments.seed + count):
            if arguments.minutes is not None and time.monotonic() - arguments.began > arguments.minutes * 60:
                break
            bar.set_description(f"seed {seed}")
            results.append(one(seed))
            bar.update()
            if text := tell(results[-1]):
                tqdm.write(text)
    return results
