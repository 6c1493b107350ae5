"""Random programs in which one rank acts differently from the others."""
