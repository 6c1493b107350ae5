"""The jobs suite: the DLRM of `make train` on 1, 2 and 4 ranks of this machine, trained by several frameworks.

With `--peers`, the jobs of TorchRec and Keras take turns with ours. All read the same clicks from files. Tables have at
most a million rows each, because those of the other frameworks have all their rows from the beginning. The optimizer
is Adagrad: FBGEMM, which TorchRec uses, has no Adam for CPUs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from benchmarks import harness, peers
from benchmarks.dlrm import write_clicks

_FIGURES = {"samples_per_second": "/s", "pss_mib": "MiB", "first_step_s": "s", "auc": "AUC"}
_BATCH = 8192  # of all ranks
_ROWS = 1_000_000  # of a table, at most
_OURS = "ours"

# The modules are those of `benchmarks.dlrm`.
_JOBS = (
    peers.Peer(_OURS, None, "ours", (), "tensorflow", _OURS),
    peers.Peer("TorchRec", peers.TORCHREC, "torchrec_job", (), "torchrec", _OURS),
    peers.Peer("Keras 2, Horovod", peers.KERAS_2, "keras_horovod", (), "keras", _OURS),
    peers.Peer("Keras 3, tf.distribute", None, "keras_distribute", (), "keras", _OURS),
)


def run(options: harness.Options) -> list[harness.Result]:
    """Measures samples/s, summed memory, seconds to the end of the first step, and AUC, for each number of ranks."""
    jobs = [job for job in _JOBS if job.installed() and (options.peers or job.name == _OURS)]
    counts = (1, 2) if options.quick else (1, 2, 4)
    turns = 1 if options.quick else max(1, options.blocks // 2)
    figures: dict[tuple[int, str, str], list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=len(jobs) * len(counts) * turns, desc="jobs", unit=" jobs", disable=None) as bar,
    ):
        clicks = Path(folder) / "clicks"
        samples, test_samples, rows = (8, 1, 10_000) if options.quick else (128, 12, _ROWS)
        write_clicks.write(clicks, samples=samples * _BATCH, test_samples=test_samples * _BATCH, rows=rows)
        for turn in range(turns):
            for count in counts:
                for job in jobs if turn % 2 == 0 else reversed(jobs):
                    bar.set_postfix_str(f"{job.name}, {count} ranks")
                    for name, value in _train(job, count, clicks, Path(folder) / "figures.json", options).items():
                        figures.setdefault((count, name, job.name), []).append(value)
                    bar.update()
    results = []
    for count in counts:
        for name, unit in _FIGURES.items():
            blocks = {job.name: figures[count, name, job.name] for job in jobs}
            case = f"{count} rank{'s' * (count > 1)}, {name}"
            results += harness.summarize("jobs", case, blocks, peer=_OURS, unit=unit)
    return results


def _train(job: peers.Peer, ranks: int, clicks: Path, out: Path, options: harness.Options) -> dict[str, float]:
    """Runs a job. Returns its figures."""
    out.unlink(missing_ok=True)
    module = ["-m", "benchmarks.dlrm.job", job.module]
    values = {
        "--clicks": clicks,
        "--batch": _BATCH,
        "--ranks": ranks,
        "--threads": max(1, options.threads // ranks),
        "--out": out,
        "--began": time.time(),
    }
    arguments = module + [str(text) for pair in values.items() for text in pair]
    command = [*_launcher(job, ranks), *arguments]
    figures: dict[str, float] = harness.job_figures(command, out)
    return figures


def _launcher(job: peers.Peer, ranks: int) -> list[str]:
    """Returns the command that starts the ranks of a job, up to and including the interpreter."""
    python = str(job.python)
    if ranks == 1:
        return [python]
    if job.module == "torchrec_job":
        return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    if job.module == "keras_horovod":
        horovodrun = str(job.python.with_name("horovodrun"))
        return [horovodrun, "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}", python]
    collectives = "auto" if job.module == "ours" else "tensorflow"  # "tensorflow" sets TF_CONFIG
    return [sys.executable, "-m", "tf_sparse_ps", "run", "-np", str(ranks), "--collectives", collectives, python]
