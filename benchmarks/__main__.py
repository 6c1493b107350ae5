"""Lists and runs the suites: `python -m benchmarks`, `python -m benchmarks step layers`.

`--against TREE` compares the suites with those of another checkout's build: see `benchmarks.against`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks import against, harness, hosts, peers
from benchmarks.cluster import Variant

SUITES = {
    "kernels": "the ops alone (lookup, dedupe, segment-sum, apply), against TensorFlow's",
    "layers": "small layers against keras.layers.Embedding; a collection against separate layers",
    "step": "lookup and full step on 1M x 64 rows with 213k Zipf ids, against keras.layers.Embedding",
    "sizes": "how a step grows with rows, width and ids, against copies of random rows",
    "plan": "what `tf-sparse-ps plan` estimates for six jobs, against what they need",
    "policies": "the step of `step` with eviction and admission, against the same step without",
    "drift": "90 days of changing keys: rows, AUC and time with eviction and admission",
    "growth": "training adds 5 million keys to an unbounded table; the cost for readers",
    "cluster": "time and bytes per step on emulated hosts with slow cables, against Horovod with replicated tables",
    "exchange": "the memory that it takes to reduce gradients of 2 million keys per rank on two nodes",
    "buckets": "dense gradients: TimedBuckets against an operation per gradient, and against buckets of fixed sizes",
    "delayed": "steps that overlap computing and communicating, against each of them alone, on hosts with slow cables",
    "scans": "a process that reads the whole table again and again while two ranks train; the cost for each of them",
    "watching": "`tf-sparse-ps top` and scraped metrics; the cost for the job that they show",
    "cache": "a table with some rows on a device: bytes, step times, and how much of a slow link lookahead hides",
    "tiers": "a table that is larger than its working set, against tables in memory and in a mapped file",
    "serving": "lookups in served tables, against a gather of a dense matrix; opening, and memory of 8 processes",
    "serving_peers": "lookups in a served table, against a gather, older exports and Redis",
    "served_rows": "AUC and HR@10 of models that are served with rows in fewer bytes, against rows of float32",
    "freshness": "the time from a step to a server behind a slow link; bytes, and the cost for training",
    "checkpoints": "saves of 2.6 GB, alone and during training, increments, restores; against copying and reading",
    "rows": "exports to files of rows, and imports of these, against copying the bytes",
    "input": "the share of a step of make train that waits for its batch, by source of the data",
    "jobs": "the DLRM of make train on 1, 2 and 4 ranks: samples/s, memory, seconds to the first step, AUC",
    "ranks": "samples/s and memory of 1, 2 and 4 ranks, against Horovod with replicated tables",
}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help="the names of suites, or all")
    parser.add_argument("--threads", type=int, default=2, help="threads of every variant (default: 2)")
    parser.add_argument("--blocks", type=int, default=7, help="turns of each variant (default: 7)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that the suite runs")
    parser.add_argument(
        "--peer-python", help="the interpreter of the replicated jobs of ranks and cluster, say one with Keras 2"
    )
    parser.add_argument(
        "--engines", action="store_true", help="the suite ranks: compare ranks connected by TensorFlow and by Horovod"
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help="the suite tiers: train one table for 15 minutes; see what grows with time; serving: look up 10M rows",
    )
    parser.add_argument(
        "--movielens", metavar="DIR", help="the suite served_rows: the files of examples/ncf.py, not generated data"
    )
    parser.add_argument("--json", type=Path, help="the file to write (default: build/benchmarks/SUITES.json)")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="TREE",
        help="another checkout, which has been built: compare its tf_sparse_ps with this one's in the same benchmarks; "
        f"for {', '.join(against.SUITES)}",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="the suite step against Keras, FBGEMM and TFRA, layers against Keras, or jobs against TorchRec and Keras; "
        "each peer has its own environment (make bench-peers)",
    )
    defaults = harness.Cluster()
    cluster = parser.add_argument_group("cluster", "options of the suite cluster, which needs root")
    cluster.add_argument(
        "--hosts", type=_numbers, default=defaults.hosts, help="emulated hosts, one case each, say 1,2,4 (default: 2)"
    )
    cluster.add_argument(
        "--ranks-per-host", type=_numbers, default=defaults.ranks_per_host, help="one case each (default: 2)"
    )
    cluster.add_argument("--mbit", type=float, default=defaults.mbit_per_s, help="Mbit/s per host (default: 200)")
    cluster.add_argument("--steps", type=int, default=defaults.steps, help="timed steps of each job (default: 16)")
    cluster.add_argument(
        "--variant",
        action="append",
        metavar="NAME[:OPTION=VALUE,...]",
        help="flat, hierarchical, tensorflow, hierarchical-bfloat16, sharded, sharded-bfloat16, replicated, "
        "dense-only, or any name with options of DistributedOptimizer, say mine:wire=float16; may be repeated; the "
        f"first one is the peer (default: {', '.join(defaults.variants)})",
    )
    arguments = parser.parse_args(argv)
    variants = tuple(arguments.variant or defaults.variants)
    try:
        for variant in variants:
            Variant.parse(variant)
    except ValueError as error:
        parser.error(str(error))
    if not arguments.suites and not arguments.against:
        print("\n".join(f"{name:8s} {description}" for name, description in SUITES.items()))
        return 0
    unknown = set(arguments.suites) - {*SUITES, "all"}
    if unknown:
        parser.error(f"no such suite. Expected: all, {', '.join(SUITES)}. Received: {', '.join(sorted(unknown))}")
    chosen = list(SUITES) if "all" in arguments.suites else arguments.suites
    options = harness.Options(
        arguments.threads,
        arguments.blocks,
        arguments.quick,
        arguments.peer_python,
        arguments.peers,
        arguments.engines,
        arguments.long,
        harness.Cluster(
            arguments.hosts,
            arguments.ranks_per_host,
            arguments.mbit,
            arguments.steps,
            variants,
        ),
        arguments.movielens,
    )

    if arguments.long and (chosen not in (["tiers"], ["serving"]) or arguments.against):
        parser.error("--long goes with the suite tiers alone or serving alone, and not with --against")
    with_peers = (*peers.PEERS, "jobs")
    if arguments.peers and (len(chosen) != 1 or chosen[0] not in with_peers or arguments.against):
        parser.error(f"--peers goes with one of the suites {', '.join(with_peers)}, and not with --against")
    if arguments.peers and chosen[0] in peers.PEERS:
        peers.report(chosen[0], options, arguments.json)
        return 0
    if arguments.against:
        names = ", ".join(against.SUITES)
        if not chosen or set(chosen) - set(against.SUITES):
            parser.error(f"--against needs suites that have turns: {names}. Received: {', '.join(chosen) or 'none'}")
        try:
            trees = against.Tree.at(arguments.against), against.Tree.at(Path(__file__).absolute().parents[1])
        except ValueError as error:
            parser.error(str(error))
        against.report(*trees, chosen, options, arguments.json)
        return 0

    machine = harness.hardware() | harness.prepare(options.threads)
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    results: list[harness.Result] = []
    for name in chosen:
        try:
            measured = importlib.import_module(f"benchmarks.{name}").run(options)
        except hosts.HostsUnavailable as reason:
            if name in arguments.suites:
                parser.exit(1, f"{name}: {reason}\n")
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        print(harness.table(measured), end="\n\n", flush=True)
        results += measured
    path = arguments.json or Path("build/benchmarks") / f"{'-'.join(chosen)}.json"
    harness.save(path, machine, options, results)
    print(path)
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
