"""The ranks suite: 1, 2 and 4 ranks on this machine, with one shared table or with a replica in every rank.

Every figure comes from its own job, which horovodrun starts. The two kinds of job take turns. The peer is what a user
would have without this library: `keras.layers.Embedding`, gradients that Horovod reduces (sparse ones as
IndexedSlices), and Keras's Adagrad. In Keras 3 that optimizer makes sparse gradients dense. `--peer-python` runs the
peer in another interpreter, for example one with TensorFlow 2.15 and Keras 2, where it does not.

In comparisons with another tree (`--against`), all jobs are ours. With `--engines`, all jobs are ours, too:
`tf-sparse-ps run` starts them, and either TensorFlow or Horovod connects their ranks.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks import harness

_ENGINES = ("horovod", "tensorflow")
# Each job's kind, and whether it lacks the table. A job without its table has only the model's forward and backward
# pass, its all-reduce and its update. The rest of a step is the sparse part.
_JOBS = {
    "replicated": ("replicated", False),
    "shared": ("shared", False),
    "replicated, dense only": ("replicated", True),
    "shared, dense only": ("shared", True),
}


def run(options: harness.Options) -> list[harness.Result]:
    """Measures samples/s, time per step and of its sparse part, and summed memory for each number of ranks."""
    if options.engines:
        return _engines(options)
    results = []
    blocks = 1 if options.quick else max(1, options.blocks // 2)
    names = [name for name, (kind, _) in _JOBS.items() if kind == "shared" or not options.turns]
    peer = "replicated" if "replicated" in names else None
    for ranks in (1, 2) if options.quick else (1, 2, 4):
        jobs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for turn in range(blocks):
            if options.turns:
                options.turns.next()
            for name in names if turn % 2 == 0 else reversed(names):
                jobs[name].append(_job(*_JOBS[name], ranks, options))
        case = f"{ranks} rank{'s' * (ranks > 1)}"
        for figure, unit in (("step_ms", "ms"), ("samples_per_second", "/s"), ("pss_mib", "MiB")):
            blocks_of = {name: [job[figure] for job in figures] for name, figures in jobs.items()}
            results += harness.summarize("ranks", f"{case}, {figure}", blocks_of, peer=peer, unit=unit)
        if options.turns:
            continue  # the difference of two jobs is too uncertain to be divided by
        sparse = {
            name: [
                job["step_ms"] - dense["step_ms"]
                for job, dense in zip(jobs[name], jobs[f"{name}, dense only"], strict=True)
            ]
            for name in ("replicated", "shared")
        }
        results += harness.summarize("ranks", f"{case}, sparse part of a step", sparse, peer=peer, unit="ms")
    return results


def _engines(options: harness.Options) -> list[harness.Result]:
    results = []
    blocks = 1 if options.quick else max(1, options.blocks // 2)
    names = {f"{engine}{', dense only' * dense}": (dense, engine) for dense in (False, True) for engine in _ENGINES}
    for ranks in (2,) if options.quick else (2, 4):
        jobs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for turn in range(blocks):
            for name in list(names) if turn % 2 == 0 else reversed(names):
                dense, engine = names[name]
                jobs[name].append(_job("shared", dense, ranks, options, engine))
        for dense in (False, True):
            chosen = {name: figures for name, figures in jobs.items() if names[name][0] == dense}
            for figure, unit in (("step_ms", "ms"), ("pss_mib", "MiB"), ("first_step_s", "s")):
                blocks_of = {name: [job[figure] for job in figures] for name, figures in chosen.items()}
                results += harness.summarize(
                    "ranks", f"{ranks} ranks, {figure}", blocks_of, peer=next(iter(chosen)), unit=unit
                )
    return results


def _job(
    kind: str, dense_only: bool, ranks: int, options: harness.Options, engine: str | None = None
) -> dict[str, float]:
    python = options.peer_python if kind == "replicated" and options.peer_python else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [python, "-m", "benchmarks.rank_job", "--kind", kind, "--out", str(out)]
        command += ["--dense-only"] if dense_only else []
        command += ["--threads", str(max(1, options.threads // ranks)), *(["--quick"] if options.quick else [])]
        if engine is not None:
            launcher = [python, "-m", "tf_sparse_ps", "run", "-np", str(ranks), "--collectives", engine]
            command = [*launcher, *command, "--began", str(time.time())]
        elif ranks > 1:
            horovodrun = str(Path(python).with_name("horovodrun"))
            command = [horovodrun, "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}", *command]
        figures: dict[str, float] = harness.job_figures(command, out)
        return figures
