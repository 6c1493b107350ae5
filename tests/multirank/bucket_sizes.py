"""Sizes that the tests of TimedBuckets share with their program."""

from __future__ import annotations

# The third matrix is large enough to travel alone.
SIZES = (6, 12, 150, 120, 9, 1)
STEPS, PROFILE = 14, 3
IN_BUCKETS = STEPS - PROFILE - 2  # one more step warms up, and the step that makes the plan still runs the old trace
HALVES = ([6, 7, 8, 9], [0, 1, 2, 3, 4, 5])  # the gradients of the last two layers, and those of the earlier ones
GATE = 3  # the program can hold back the gradient in front of this layer, which is between the halves
NO_SAMPLES = (5, 9)  # in these steps, the last rank has weight 0 and gradients that are not numbers
