"""The version of the library, which the build reads without importing the package, and those that it works with."""

__version__ = "0.1.0"
PYTHON_RANGE = ((3, 10), (3, 13))
TENSORFLOW_RANGE = ((2, 15), (2, 21))
