"""The PEP 517 backend: that of setuptools, which also requires TensorFlow if it is not installed.

A fixed `build-system.requires = ["tensorflow"]` would install a second TensorFlow into every isolated build. This
backend requires TensorFlow only if the environment for which the package is built has none. It never changes the
TensorFlow of that environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta

sys.path.insert(0, str(Path(__file__).resolve().parent))

import native

build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
build_sdist = build_meta.build_sdist
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def _with_tensorflow(requirements: list[str]) -> list[str]:
    if native.tensorflow_package() is None:
        (low_major, low_minor), (high_major, high_minor) = native.TENSORFLOW_RANGE
        requirements = [
            *requirements,
            f"tensorflow-cpu>={low_major}.{low_minor},<{high_major}.{high_minor + 1}",
        ]
    return requirements


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Returns the requirements of setuptools, and TensorFlow if it is missing."""
    return _with_tensorflow(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Returns the requirements of setuptools, and TensorFlow if it is missing."""
    return _with_tensorflow(build_meta.get_requires_for_build_editable(config_settings))
