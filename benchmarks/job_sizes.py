"""The sizes of the job of the suites `ranks` and `cluster`, which the scaling model uses, too."""

ROWS = 1_000_000  # of the table
DIM = 64  # floats per row
BATCH = 4_096  # samples per rank and step
FIELDS = 26  # ids per sample
HIDDEN = 256  # units of the dense layer before the last
EXPONENT = 1.05  # of Zipf's law, from which the ids are drawn

QUICK_ROWS, QUICK_BATCH = 10_000, 256
