"""Trains NeuMF on the leave-one-out MovieLens files of He et al. 2017, without pretraining.

    python examples/ncf.py --path DIR --ranks 2     # DIR holds ml-1m.train.rating, .test.rating, .test.negative

The program follows the protocol of the paper: log loss; 4 negatives per positive, drawn in each epoch from the items
that the user does not have in the training set; Adam; 20 epochs, and after each of them HR@10 and NDCG@10 of the
held-out item among 99 negatives. The paper publishes the epoch with the best HR@10. The report contains this epoch and
the last one. Two defaults differ from the paper. The batch is 4096 for all ranks together, at a learning rate of 0.002,
instead of 256 at 0.001, which is many times slower. The model has dropout, without which it overfits after 8 epochs.

At its end, the program prints a report and writes it to `OUT/report.txt` and `OUT/report.json`. neumf/job.py trains.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from support import arguments, launch, schedules


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parses and checks the command line."""
    parser = arguments.parser(__doc__ or "")
    count = arguments.positive
    add = parser.add_argument
    add("--path", type=Path, required=True, help="folder of the files")
    add("--stem", default="ml-1m", help="prefix of their names (default: ml-1m)")
    launch.add_arguments(parser)
    add("--factors", type=count, default=32, help="predictive factors (default: 32)")
    add("--epochs", type=count, default=20, help="passes over the training data (default: 20)")
    add("--batch", type=count, default=4096, help="samples per step, all ranks together (default: 4096)")
    add("--learning-rate", type=arguments.positive_float, default=0.002, help="learning rate of Adam (default: 0.002)")
    add("--dropout", type=arguments.fraction, default=0.2, help="dropout rate; 0 in the paper (default: 0.2)")
    add("--negatives", type=count, default=4, help="negatives per positive (default: 4)")
    add("--dtype", choices=arguments.DTYPES, default="float32", help="type of the tables' rows (default: float32)")
    schedules.add_arguments(parser)
    add("--seed", type=int, default=0, help="seed of initial weights and samples (default: 0)")
    add("--out", type=Path, default=Path("build/ncf"), help="folder of the results (default: build/ncf)")
    options = parser.parse_args(argv)
    if options.batch < options.ranks:
        parser.error(f"--batch {options.batch} leaves nothing to some of {options.ranks} ranks. Use a larger --batch")
    return options


def train(options: argparse.Namespace) -> int:
    """Trains on one rank. Returns the exit status."""
    from neumf import job  # imports TensorFlow

    return job.run(options)


if __name__ == "__main__":
    sys.exit(launch.run(train, parse()))
