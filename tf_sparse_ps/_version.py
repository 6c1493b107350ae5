"""The version of the library, which the build reads without importing the package."""

__version__ = "0.1.0"
