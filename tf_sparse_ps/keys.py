"""Keys of strings, without TensorFlow.

A layer with an unbounded vocabulary takes strings as ids. The key of a string is its fingerprint: FarmHash's
Fingerprint64 of its bytes (https://github.com/google/farmhash), which `tf.fingerprint` computes in a graph. It is the
same on all machines and in all versions.
"""

from __future__ import annotations

from typing import Any

import farmhash
import numpy as np
import numpy.typing as npt

__all__ = ["fingerprint"]

# The packages cityhash and pyfarmhash both install a module of this name. Either will do.
_fingerprint64 = getattr(farmhash, "Fingerprint64", None) or farmhash.fingerprint64


def fingerprint(strings: Any) -> npt.NDArray[np.int64]:
    """Returns the keys of strings.

    Args:
      strings: str or bytes, in a list or a NumPy array of any shape. A str stands for its UTF-8 encoding. NumPy's types
        "S" and "U" drop trailing zeros of strings; its type "object" keeps them.

    Returns:
      int64 of the same shape.

    Raises:
      TypeError: An entry is neither str nor bytes.

    Example:
      >>> tsps.keys.fingerprint(["rome", "oslo"])
      array([5169449253275140402, 9073593690157206658])
    """
    array = strings if isinstance(strings, np.ndarray) else np.asarray(strings, object)
    keys = np.fromiter((_fingerprint(string) for string in array.flat), np.uint64, array.size)
    return keys.view(np.int64).reshape(array.shape)


def _fingerprint(string: Any) -> int:
    if not isinstance(string, str | bytes):
        raise TypeError(f"ids must be str or bytes. Received: {string!r} (of type {type(string).__name__})")
    return int(_fingerprint64(string.encode() if isinstance(string, str) else string))
