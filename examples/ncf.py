"""Trains NeuMF on the leave-one-out MovieLens files of He et al. 2017, without pretraining.

    python examples/ncf.py --path DIR --ranks 2     # DIR holds ml-1m.train.rating, .test.rating, .test.negative

Protocol of the paper: log loss; 4 negatives per positive, drawn anew each epoch from the items that the user has not
in the training set; Adam; 20 epochs, after each of them HR@10 and NDCG@10 of the held-out item among 99 negatives. The
published figures are those of the epoch with the best HR@10; the last epoch is reported beside it. Two defaults are not
the paper's: the batch is 4096 for all ranks together at a learning rate of 0.002, not 256 at 0.001, which is many times
faster, and there is dropout, without which it overfits after 8 epochs.

Ends with a table, `OUT/report.txt` and `OUT/report.json`. The training itself is in neumf/job.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from support import arguments, launch, schedules


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line, checked."""
    parser = arguments.parser(__doc__ or "")
    count = arguments.positive
    add = parser.add_argument
    add("--path", type=Path, required=True, help="folder of the files")
    add("--stem", default="ml-1m", help="what their names begin with (default: ml-1m)")
    launch.add_arguments(parser)
    add("--factors", type=count, default=32, help="predictive factors (default: 32)")
    add("--epochs", type=count, default=20, help="default: 20")
    add("--batch", type=count, default=4096, help="samples per step, all ranks together (default: 4096)")
    add("--learning-rate", type=arguments.positive_float, default=0.002, help="of Adam (default: 0.002)")
    add("--dropout", type=arguments.fraction, default=0.2, help="the paper has none (default: 0.2)")
    add("--negatives", type=count, default=4, help="per positive (default: 4)")
    add("--dtype", choices=arguments.DTYPES, default="float32", help="of the tables' rows (default: float32)")
    schedules.add_arguments(parser)
    add("--seed", type=int, default=0, help="default: 0")
    add("--out", type=Path, default=Path("build/ncf"), help="folder of the results (default: build/ncf)")
    options = parser.parse_args(argv)
    if options.batch < options.ranks:
        parser.error(f"--batch {options.batch} leaves nothing to some of {options.ranks} ranks")
    return options


def train(options: argparse.Namespace) -> int:
    """One rank's part of the training; returns the exit status."""
    from neumf import job  # imports TensorFlow

    return job.run(options)


if __name__ == "__main__":
    sys.exit(launch.run(train, parse()))
