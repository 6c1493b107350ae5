"""Trains a click-through-rate model, DLRM or Wide & Deep, whose tables have no fixed vocabulary.

    python examples/train_ctr.py --ranks 4                                    # a generator whose best AUC is known
    python examples/train_ctr.py --data criteo --path DIR --model wide_deep   # DIR holds train.* and test.*
    python examples/train_ctr.py --data avazu --path train.csv                # the last tenth is held out
    python examples/train_ctr.py --storage tiered --storage-memory 32MiB      # most rows of large tables on disk
    python examples/train_ctr.py --placement sharded                          # of several machines each has a part
    python examples/train_ctr.py --cache 100000                               # rows that are used often on the GPU

Ends with a report, `OUT/report.txt` and `OUT/report.json`, and the curves, `OUT/curves.png`. The training itself is
in ctr/job.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from support import arguments, cache, launch, schedules, storage


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line, checked."""
    parser = arguments.parser(__doc__ or "")
    count = arguments.positive
    add = parser.add_argument
    launch.add_arguments(parser)
    add("--model", choices=("dlrm", "wide_deep"), default="dlrm", help="default: dlrm")
    add("--data", choices=("generator", "criteo", "avazu"), default="generator", help="default: generator")
    add("--path", type=Path, help="criteo, avazu: a folder with train.* and test.*, or the training file")
    add("--test-path", type=Path, help="criteo, avazu: the held-out file (default: the last tenth of --path)")
    add("--samples", type=count, default=6_000_000, help="generator: training samples of all ranks (default: 6000000)")
    add("--test-samples", type=count, default=100_000, help="generator: held-out samples (default: 100000)")
    add("--epochs", type=count, default=1, help="passes over the training data (default: 1)")
    add("--batch", type=count, help="samples per rank and step (default: 8192 / ranks for the generator, else 256)")
    add("--dim", type=count, default=16, help="width of the embeddings (default: 16)")
    add("--optimizer", choices=("adam", "adagrad"), default="adam", help="default: adam")
    add("--learning-rate", type=arguments.positive_float, help="default: adam 0.004, adagrad 0.1")
    add("--evaluations", type=count, default=5, help="points of the AUC curve (default: 5)")
    add("--dtype", choices=arguments.DTYPES, default="float32", help="of the tables' rows (default: float32)")
    schedules.add_arguments(parser)
    storage.add_arguments(parser)
    cache.add_arguments(parser)
    add("--seed", type=int, default=0, help="of the generator and the initial weights (default: 0)")
    add("--out", type=Path, default=Path("build/train_ctr"), help="folder of the results (default: build/train_ctr)")
    options = parser.parse_args(argv)
    if options.data != "generator" and options.path is None:
        parser.error(f"--data {options.data} needs --path")
    if options.data == "generator" and (options.path or options.test_path):
        parser.error("--path and --test-path go with --data criteo or avazu")
    if options.storage == "memory" and options.storage_folder is not None:
        parser.error("--storage-folder goes with --storage tiered")
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
    """One rank's part of the training; returns the exit status."""
    from ctr import job  # imports TensorFlow

    return job.run(options)


if __name__ == "__main__":
    sys.exit(launch.run(train, parse()))
