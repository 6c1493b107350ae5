"""Training on one or many ranks: the optimizer wrapper, the two rings, and what binds tables to them."""
