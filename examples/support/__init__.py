"""What the example programs share: starting ranks, a progress bar, memory accounting, metrics."""
