"""Measures all figures of README's table, in one run: `python -m benchmarks.readme --movielens FOLDER`.

The program runs suites and examples one after another, which takes half an hour on two cores. It writes their figures
to docs/readme.json, and README's table from that file. FOLDER contains MovieLens-1M as examples/ncf.py takes it. The
program needs `make horovod-tf215`, and root for the emulated hosts of the suite `delayed`. `--table` only writes
README's table again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import textwrap
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
    """Returns each command, and the JSON file that it writes, by name."""
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
        The figures of each command, by its name, and under "machine" the machine and the installed versions.

    Raises:
        RuntimeError: A command failed. The text ends with its output.
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
    """Formats README's table as Markdown."""

    def median(suite: str, case: str, variant: str) -> float:
        """Returns the median of a variant in the suite's first case that begins with `case`."""
        results = figures[suite]["results"]
        matches = (result for result in results if result["case"].startswith(case) and result["variant"] == variant)
        return float(next(matches)["median"])

    machine, ctr, ncf = figures["machine"], figures["ctr"], figures["ncf"]
    lookup, keras_lookup = median("step", "lookup, ", "ours, hashed"), median("step", "lookup, ", "keras, dense")
    step, keras_step = median("step", "lookup + ", "ours"), median("step", "lookup + ", "keras")
    delayed, synchronous, computing = (
        median("delayed", "dense, ", variant) for variant in ("delayed-1", "synchronous", "computing")
    )
    best = ncf["epochs"][ncf["best_epoch"] - 1]

    def speed_and_memory(case: str, variant: str) -> str:
        rate = median("ranks", f"{case}, samples_per_second", variant)
        memory = median("ranks", f"{case}, pss_mib", variant)
        return f"{round(rate, -3):,.0f} samples/s, {memory / 1024:.1f} GiB"

    rows = [
        ("measurement", "tf_sparse_ps", "compared with", "command"),
        ("---", "---", "---", "---"),
        (
            "lookup, 213k Zipf ids of 1M x 64 rows, hashed keys",
            f"{harness.number(lookup)} ms",
            f"`keras.layers.Embedding`: {harness.number(keras_lookup)} ms (ours / Keras: {lookup / keras_lookup:.2f})",
            "`python -m benchmarks step`",
        ),
        (
            "lookup + backward + Adagrad, same sizes",
            f"{harness.number(step)} ms",
            f"`keras.layers.Embedding`: {harness.number(keras_step)} ms (ours / Keras: {step / keras_step:.2f})",
            "`python -m benchmarks step`",
        ),
        (
            f"DLRM, 6M generated samples, 4 ranks connected by {_ENGINES[ctr['engine']]}",
            f"AUC {ctr['auc']:.4f}",
            f"the model that generated the labels: AUC {ctr['planted_auc']:.4f}",
            f"`make train ENGINE={ctr['engine']}`",
        ),
        (
            f"the {ctr['tables']} tables of this DLRM, {ctr['rows'] / 1e6:.1f}M rows with Adam's slots",
            f"{sum(ctr['table_pss']) / 2**20:.0f} MiB summed PSS",
            f"{ctr['ranks']} copies: {ctr['ranks'] * ctr['disk_bytes'] / 2**30:.1f} GiB",
            "the same",
        ),
        (
            "4 ranks, 1M x 64 rows, 26 ids per sample (TensorFlow 2.15)",
            speed_and_memory("4 ranks", "shared"),
            f"replicas with Horovod and Keras 2: {speed_and_memory('4 ranks', 'replicated')}",
            "`make horovod-tf215`, then `.venv-tf215/bin/python -m benchmarks ranks --blocks 6`",
        ),
        (
            "1 rank, the same model (TensorFlow 2.15)",
            speed_and_memory("1 rank", "shared"),
            f"one rank with Keras 2: {speed_and_memory('1 rank', 'replicated')}",
            "the same",
        ),
        (
            "MLP step, `schedule=DelayedGlobal()`, 2 emulated hosts; communicating takes as long as computing",
            f"{harness.number(delayed)} ms",
            f"synchronous step: {harness.number(synchronous)} ms; computing alone: {harness.number(computing)} ms",
            "`python -m benchmarks delayed --blocks 2`",
        ),
        (
            f"NeuMF-32, MovieLens-1M, 2 ranks, best of {len(ncf['epochs'])} epochs",
            f"HR@10 {best['hr']:.3f}, NDCG@10 {best['ndcg']:.3f}",
            "published: HR@10 0.701, NDCG@10 0.425",
            "`python examples/ncf.py --path FOLDER --ranks 2`",
        ),
    ]
    conditions = (
        f"All in one run on {machine['cores']} cores of an {machine['processor'].split(' with ')[0]} "
        f"({machine['memory']}), with TensorFlow {machine['tensorflow-cpu']}, Keras {machine['keras']} and Horovod "
        f"{machine['horovod']}, except where a row names another version:"
    )
    return "\n".join([textwrap.fill(conditions, 100), "", *(f"| {' | '.join(cells)} |" for cells in rows)])


def with_table(readme: str, measured: str) -> str:
    """Replaces the table in README's text."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md needs {BEGIN}, followed by {END}. Put both around the table")
    return f"{before}{begin}\n{measured}\n{end}{after}"


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--movielens", type=Path, metavar="FOLDER", help="MovieLens-1M, as examples/ncf.py takes it")
    task.add_argument("--table", action="store_true", help=f"only write the table, from {FIGURES.relative_to(ROOT)}")
    arguments = parser.parse_args()
    if not arguments.table:
        if not (KERAS_2.parent / "horovodrun").exists():
            parser.error("TensorFlow 2.15 with Horovod is not installed. Install it: make horovod-tf215")
        if reason := hosts.unavailable():
            parser.error(reason)
        if not arguments.movielens.is_dir():
            parser.error(f"--movielens must be a folder. Received: {arguments.movielens}")
        FIGURES.write_text(json.dumps(measure(arguments.movielens.resolve()), indent=1) + "\n")
    README.write_text(with_table(README.read_text(), table(json.loads(FIGURES.read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
