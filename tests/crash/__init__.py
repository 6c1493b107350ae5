"""Kills writers at random instants and checks the whole group afterwards. `make crash`, or python -m tests.crash."""
