"""The sizes of the case of many features, each with its own table, in the suite `layers`."""

FEATURES = 26
NAMES = tuple(f"f{number}" for number in range(FEATURES))
IDS = 512  # of each feature
DIM = 16  # floats per row
ROWS = 100_000  # from which the ids are drawn
