"""Modules that the example programs share: they start ranks, show progress, measure memory, and compute metrics."""
