"""Measures everything that README's table shows, in one go: `python -m benchmarks.readme --movielens FOLDER`.

Runs the suites and examples one after another, half an hour on two cores, writes their figures to docs/readme.json,
and README's table from that file. FOLDER has MovieLens-1M as examples/ncf.py takes it. Needs `make horovod-tf215`, and
root for the emulated hosts of the suite `delayed`. `--table` only writes README's table again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import harness, hosts

ROOT = Path(__file__).absolute().parents[1]
README = ROOT / "README.md"
FIGURES = ROOT / "docs" / "readme.json"
KERAS_2 = ROOT / ".venv-tf215" / "bin" / "python"
_ENGINES = {"horovod": "Horovod", "tensorflow": "TensorFlow's collectives"}
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"


def commands(movielens: Path, scratch: Path) -> dict[str, tuple[list[str], Path]]:
    """What is run, by name: a command, and the JSON file that it writes."""
    python = sys.executable

    def suite(name: str, interpreter: str, *arguments: str) -> tuple[list[str], Path]:
        out = scratch / f"{name}.json"
        return [interpreter, "-m", "benchmarks", name, *arguments, "--json", str(out)], out

    def example(name: str, *arguments: str) -> tuple[list[str], Path]:
        out = scratch / name
        return [python, f"examples/{name}.py", *arguments, "--out", str(out)], out / "report.json"

    return {
        "step": suite("step", python),
        "ctr": example("train_ctr", "--ranks", "4"),
        "ranks": suite("ranks", str(KERAS_2), "--blocks", "6"),
        "delayed": suite("delayed", python, "--blocks", "2"),
        "ncf": example("ncf", "--path", str(movielens), "--ranks", "2"),
    }


def measure(movielens: Path) -> dict[str, Any]:
    """Runs all commands.

    Returns:
        What each wrote, by its name, and under "machine" what it was measured on.

    Raises:
        RuntimeError: of a command that failed, with the end of what it printed.
    """
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow-cpu", "keras", "horovod")}
    figures: dict[str, Any] = {"machine": harness.hardware() | versions}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # horovodrun
    with tempfile.TemporaryDirectory(prefix="tfsps-readme-") as scratch:
        work = commands(movielens, Path(scratch))
        for name, (command, out) in (bar := tqdm(work.items(), desc="readme", unit=" commands", disable=None)):
            bar.set_postfix_str(name)
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
            figures[name] = json.loads(out.read_text())
    for example in ("ctr", "ncf"):
        del figures[example]["options"]  # paths of the machine
    return figures


def table(figures: Mapping[str, Any]) -> str:
    """README's table, Markdown."""

    def median(suite: str, case: str, variant: str) -> float:
        """Of the suite's first case that begins so."""
        of = (one for one in figures[suite]["results"] if one["case"].startswith(case) and one["variant"] == variant)
        return float(next(of)["median"])

    machine, ctr, ncf = figures["machine"], figures["ctr"], figures["ncf"]
    lookup, keras_lookup = median("step", "lookup, ", "ours, hashed"), median("step", "lookup, ", "keras, dense")
    step, keras_step = median("step", "lookup + ", "ours"), median("step", "lookup + ", "keras")
    delayed, synchronous, computing = (
        median("delayed", "dense, ", variant) for variant in ("delayed-1", "synchronous", "computing")
    )
    best = ncf["epochs"][ncf["best_epoch"] - 1]

    def of_ranks(case: str, variant: str) -> str:
        rate = median("ranks", f"{case}, samples_per_second", variant)
        memory = median("ranks", f"{case}, pss_mib", variant)
        return f"{round(rate, -3):,.0f} samples/s, {memory / 1024:.1f} GiB"

    rows = [
        ("what", "ours", "peer, same run", "command"),
        ("---", "---", "---", "---"),
        (
            "lookup, 213k Zipf ids of 1M x 64 rows, hashed keys",
            f"{harness.number(lookup)} ms",
            f"{harness.number(keras_lookup)} ms `keras.layers.Embedding` ({lookup / keras_lookup:.2f})",
            "`python -m benchmarks step`",
        ),
        (
            "lookup + backward + Adagrad, the same",
            f"{harness.number(step)} ms",
            f"{harness.number(keras_step)} ms `keras.layers.Embedding` ({step / keras_step:.2f})",
            "`python -m benchmarks step`",
        ),
        (
            f"DLRM, 6M generated samples, 4 ranks connected by {_ENGINES[ctr['engine']]}",
            f"AUC {ctr['auc']:.4f}",
            f"{ctr['planted_auc']:.4f}, the planted model's own",
            f"`make train ENGINE={ctr['engine']}`",
        ),
        (
            f"its tables: {ctr['tables']}, {ctr['rows'] / 1e6:.1f}M rows with Adam's slots",
            f"{sum(ctr['table_pss']) / 2**20:.0f} MiB summed PSS",
            f"{ctr['ranks'] * ctr['disk_bytes'] / 2**30:.1f} GiB in {ctr['ranks']} copies",
            "the same",
        ),
        (
            "4 ranks, 1M x 64, 26 ids per sample, TensorFlow 2.15",
            of_ranks("4 ranks", "shared"),
            f"{of_ranks('4 ranks', 'replicated')}: replicas, Horovod, Keras 2",
            "`make horovod-tf215`, then `.venv-tf215/bin/python -m benchmarks ranks --blocks 6`",
        ),
        ("the same, 1 rank", of_ranks("1 rank", "shared"), of_ranks("1 rank", "replicated"), "the same"),
        (
            "MLP on 2 emulated hosts, cables as slow as computing, `schedule=DelayedGlobal()`",
            f"{harness.number(delayed)} ms",
            f"{harness.number(synchronous)} ms synchronous; computing alone {harness.number(computing)}",
            "`python -m benchmarks delayed --blocks 2`",
        ),
        (
            f"NeuMF-32, MovieLens-1M, 2 ranks, best of {len(ncf['epochs'])} epochs",
            f"HR@10 {best['hr']:.3f}, NDCG@10 {best['ndcg']:.3f}",
            ".701, .425 published",
            "`python examples/ncf.py --path FOLDER --ranks 2`",
        ),
    ]
    where = (
        f"On {machine['cores']} cores of an {machine['processor'].split(' with ')[0]}, {machine['memory']}, TensorFlow "
        f"{machine['tensorflow-cpu']}, Keras {machine['keras']}, Horovod {machine['horovod']}, all in one run:"
    )
    return "\n".join([where, "", *(f"| {' | '.join(cells)} |" for cells in rows)])


def with_table(readme: str, measured: str) -> str:
    """README with another table."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no {BEGIN} with an {END} behind it")
    return f"{before}{begin}\n{measured}\n{end}{after}"


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--movielens", type=Path, metavar="FOLDER", help="MovieLens-1M, as examples/ncf.py takes it")
    what.add_argument("--table", action="store_true", help=f"only README's table, from {FIGURES.relative_to(ROOT)}")
    arguments = parser.parse_args()
    if not arguments.table:
        if not (KERAS_2.parent / "horovodrun").exists():
            parser.error("TensorFlow 2.15 with Horovod is not installed: make horovod-tf215")
        if reason := hosts.unavailable():
            parser.error(reason)
        if not arguments.movielens.is_dir():
            parser.error(f"--movielens is no folder. Received: {arguments.movielens}")
        FIGURES.write_text(json.dumps(measure(arguments.movielens.resolve()), indent=1) + "\n")
    README.write_text(with_table(README.read_text(), table(json.loads(FIGURES.read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
