"""What the tests of TimedBuckets and their program both know."""

from __future__ import annotations

# The third matrix is big enough to travel as it is.
SIZES = (6, 12, 150, 120, 9, 1)
STEPS, PROFILE = 14, 3
IN_BUCKETS = STEPS - PROFILE - 2  # one more step warms up; the one during which the plan is made is an old trace's
HALVES = ([6, 7, 8, 9], [0, 1, 2, 3, 4, 5])  # gradients of the last two layers, and of those before
GATE = 3  # the layer in front of which the program can hold the gradient back: between the halves
NO_SAMPLES = (5, 9)  # steps in which the last rank has weight 0 and gradients that are not numbers
