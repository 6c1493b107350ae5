"""How gradients of all ranks become one: dense ones, and sparse ones for the tables' step."""
