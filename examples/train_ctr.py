"""Trains a click-through-rate model, DLRM or Wide & Deep, whose tables have no fixed vocabulary.

    python examples/train_ctr.py --ranks 4                                    # generated data with a known best AUC
    python examples/train_ctr.py --data criteo --path DIR --model wide_deep   # DIR holds train.* and test.*
    python examples/train_ctr.py --data avazu --path train.csv                # the last tenth is held out
    python examples/train_ctr.py --storage tiered --storage-memory 32MiB      # most rows of large tables on disk
    python examples/train_ctr.py --placement sharded                          # each machine has a part of the rows
    python examples/train_ctr.py --cache 100000                               # frequent rows on the GPU

At its end, the program prints a report and writes it to `OUT/report.txt` and `OUT/report.json`, with curves in
`OUT/curves.png`. ctr/job.py trains.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from support import arguments, cache, launch, schedules, storage


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parses and checks the command line."""
    parser = arguments.parser(__doc__ or "")
    count = arguments.positive
    add = parser.add_argument
    launch.add_arguments(parser)
    add("--model", choices=("dlrm", "wide_deep"), default="dlrm", help="model to train (default: dlrm)")
    add("--data", choices=("generator", "criteo", "avazu"), default="generator", help="data (default: generator)")
    add("--path", type=Path, help="criteo, avazu: folder with train.* and test.*, or the training file")
    add("--test-path", type=Path, help="criteo, avazu: held-out file (default: the last tenth of --path)")
    add("--samples", type=count, default=6_000_000, help="generator: training samples of all ranks (default: 6000000)")
    add("--test-samples", type=count, default=100_000, help="generator: held-out samples (default: 100000)")
    add("--epochs", type=count, default=1, help="passes over the training data (default: 1)")
    add("--batch", type=count, help="samples per rank and step (default: 8192 / ranks for the generator, else 256)")
    add("--dim", type=count, default=16, help="width of the embeddings (default: 16)")
    add("--optimizer", choices=("adam", "adagrad"), default="adam", help="optimizer (default: adam)")
    add("--learning-rate", type=arguments.positive_float, help="learning rate (default: adam 0.004, adagrad 0.1)")
    add("--evaluations", type=count, default=5, help="points of the AUC curve (default: 5)")
    add("--dtype", choices=arguments.DTYPES, default="float32", help="type of the tables' rows (default: float32)")
    schedules.add_arguments(parser)
    storage.add_arguments(parser)
    cache.add_arguments(parser)
    add("--seed", type=int, default=0, help="seed of the generator and the initial weights (default: 0)")
    add("--out", type=Path, default=Path("build/train_ctr"), help="folder of the results (default: build/train_ctr)")
    options = parser.parse_args(argv)
    if options.data != "generator" and options.path is None:
        parser.error(f"--data {options.data} needs --path")
    if options.data == "generator" and (options.path or options.test_path):
        parser.error("--path and --test-path need --data criteo or avazu")
    if options.storage == "memory" and options.storage_folder is not None:
        parser.error("--storage-folder needs --storage tiered")
    if options.storage == "tiered" and options.schedule == "delayed":
        parser.error("--schedule delayed trains tables in memory only")
    if options.placement == "sharded" and options.schedule == "delayed":
        parser.error("--schedule delayed trains replicated tables only")
    if options.batch is None:
        options.batch = max(1, 8192 // options.ranks) if options.data == "generator" else 256
    cache.check(parser, options)
    if options.learning_rate is None:
        options.learning_rate = {"adam": 0.004, "adagrad": 0.1}[options.optimizer]
    return options


def train(options: argparse.Namespace) -> int:
    """Trains on one rank. Returns the exit status."""
    from ctr import job  # imports TensorFlow

    return job.run(options)


if __name__ == "__main__":
    sys.exit(launch.run(train, parse()))
