"""Rows of tables on a device: the variables that hold them, what moves them, and the row optimizers' rules there."""
