"""Kills writers at random times and checks the whole group after each kill: `make crash`, python -m tests.crash."""
