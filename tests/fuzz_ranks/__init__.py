"""Random programs in which one rank does something else than the others."""
