"""Parser and argument types for the command lines of the examples."""

from __future__ import annotations

import argparse


def parser(doc: str) -> argparse.ArgumentParser:
    """Makes a parser whose help shows a program's docstring, the first paragraph above the options."""
    summary, _, details = doc.partition("\n\n")
    return argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )


DTYPES = ("float32", "bfloat16", "float16")  # the types of rows


def positive(text: str) -> int:
    """Parses an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}")
    return value


def positive_float(text: str) -> float:
    """Parses a finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0. Received: {text}")
    return value


def fraction(text: str) -> float:
    """Parses a number of at least 0 and below 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1. Received: {text}")
    return value
