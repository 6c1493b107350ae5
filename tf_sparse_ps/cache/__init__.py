"""Rows of tables on devices: variables that hold them, code that moves them, and the row optimizers' rules there."""
