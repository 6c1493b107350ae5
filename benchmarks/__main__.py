"""Lists and runs the suites: `python -m benchmarks`, `python -m benchmarks step layers`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from benchmarks import harness

SUITES = {
    "kernels": "the ops alone: lookup, dedupe, segment-sum, apply, against TensorFlow's",
    "layers": "small layers against keras.layers.Embedding; a collection against separate layers",
    "step": "lookup and full step on 1M x 64 rows with 213k Zipf ids, against keras.layers.Embedding",
    "growth": "an unbounded table takes in 5 million keys by training; what that costs readers",
    "ranks": "samples/s and memory of 1, 2 and 4 ranks, against Horovod with replicated tables",
}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help="names, or all")
    parser.add_argument("--threads", type=int, default=2, help="of every variant (default: 2)")
    parser.add_argument("--blocks", type=int, default=7, help="turns of each variant (default: 7)")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--peer-python", help="ranks: interpreter of the replicated jobs, say one with Keras 2")
    parser.add_argument("--json", type=Path, help="file to write (default: build/benchmarks/SUITES.json)")
    arguments = parser.parse_args(argv)
    if not arguments.suites:
        print("\n".join(f"{name:8s} {what}" for name, what in SUITES.items()))
        return 0
    unknown = set(arguments.suites) - {*SUITES, "all"}
    if unknown:
        parser.error(f"no such suite. Expected: all, {', '.join(SUITES)}. Received: {', '.join(sorted(unknown))}")
    chosen = list(SUITES) if "all" in arguments.suites else arguments.suites
    options = harness.Options(arguments.threads, arguments.blocks, arguments.quick, arguments.peer_python)

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    machine = harness.hardware()
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    machine |= {"tensorflow": tf.__version__, "keras": keras.__version__, "threads": str(options.threads)}
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    results: list[harness.Result] = []
    for name in chosen:
        found = importlib.import_module(f"benchmarks.{name}").run(options)
        print(harness.table(found), end="\n\n", flush=True)
        results += found
    path = arguments.json or Path("build/benchmarks") / f"{'-'.join(chosen)}.json"
    harness.save(path, machine, options, results)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
