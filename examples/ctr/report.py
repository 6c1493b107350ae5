"""Writes the report of a training: quality, speed, memory and traffic."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import tf_sparse_ps as tsps
from support import launch, memory
from support.memory import readable
from support.progress import Progress

if TYPE_CHECKING:
    from ctr.job import Evaluation
    from tf_sparse_ps.collectives import Collectives


@dataclasses.dataclass(frozen=True)
class Usage:
    """The resources that all ranks of the job used. Memory and disk are those of this machine.

    Attributes:
        tables: the number of tables.
        rows: the number of rows.
        disk_bytes: the size of the tables' files.
        process_pss: the PSS of each rank, in bytes.
        table_pss: the PSS of the tables in each rank, in bytes.
        steps: the number of steps.
        dense_ring_bytes: bytes of dense gradients per step, which the ranks all-reduce; 0 for one rank.
        sparse_ring_bytes: mean bytes of keys and rows per step, which the ranks all-gather; 0 on one machine.
        shared_bytes: mean bytes of keys and rows per step, which the ranks merge in shared memory.
        table_writes: the number of steps that the writer of this machine's tables has published.
        rows_on_disk: the number of rows that are not in memory.
        rows_read: the number of rows that were read from disk.
        rows_read_late: the number of those that a lookup had to wait for.
        disk_waited_s: the mean time that a rank has waited for them.
        caches: the statistics of the device caches, by table. See `cache_figures`.
    """

    tables: int
    rows: int
    disk_bytes: int
    process_pss: list[int]
    table_pss: list[int]
    steps: int
    dense_ring_bytes: int
    sparse_ring_bytes: int
    shared_bytes: int
    table_writes: int
    rows_on_disk: int
    rows_read: int
    rows_read_late: int
    disk_waited_s: float
    caches: dict[str, dict[str, float]]


def measure(ranks: Any, model: Any) -> Usage:
    """Collects the figures of all ranks while all of them have the tables mapped. Call it on every rank.

    Args:
        ranks: the collectives.
        model: the trained model.
    """
    caches = cache_figures(model)  # read first, because opening the tables flushes newer rows
    folder = tsps.job.current().group_path
    ranks.barrier("report.measure")
    node, statistics = tsps.job.current().node, model.optimizer.statistics()
    figures = (memory.process_pss(), memory.mappings_pss(folder), statistics | {"node": node})
    every = ranks.allgather_object(figures, "report.usage")
    tables = [tsps.Table.open(binding.path) for binding in model.embeddings.bindings]
    steps = int(model.optimizer.iterations)

    def total(name: str) -> float:
        return sum(statistics[name] for *_, statistics in every)

    spread = {statistics["node"]: statistics["sharded_rows"] for *_, statistics in every}  # sharded tables
    return Usage(
        tables=len(tables),
        rows=round(sum(spread.values())) or sum(len(table) for table in tables),
        disk_bytes=memory.disk_bytes(folder),
        process_pss=[process for process, *_ in every],
        table_pss=[table for _, table, *_ in every],
        steps=steps,
        dense_ring_bytes=round(total("dense_bytes_per_step")),
        sparse_ring_bytes=round(total("bytes_sent") / steps),
        shared_bytes=round(total("bytes_shared") / steps),
        table_writes=tables[0].step,
        rows_on_disk=sum(table.stats()["rows_on_disk"] for table in tables),
        rows_read=round(total("rows_read")),
        rows_read_late=round(total("rows_read_late")),
        disk_waited_s=total("disk_waited_s") / len(every),
        caches=caches,
    )


def cache_figures(model: Any) -> dict[str, dict[str, float]]:
    """Returns the statistics of the device caches, by table.

    Returns:
        The `cache_statistics` of the embeddings, and the bytes that would be copied without a cache:
        `bytes_down_without`, a row for each unique key of a forward pass, and `bytes_up_without`, a gradient for each
        unique key of a step. Empty: no table has a cache.
    """
    configs = [binding.config for binding in model.embeddings.bindings]
    cached = {config.name: config for config in configs if config.cache is not None}
    if not cached:
        return {}
    figures: dict[str, dict[str, float]] = {}
    for name, statistics in model.embeddings.cache_statistics().items():
        dim, row_type = cached[name].dim, tf.as_dtype(cached[name].dtype)
        figures[name] = statistics | {
            "bytes_down_without": statistics["looked_up"] * dim * row_type.size,
            "bytes_up_without": statistics["keys"] * dim * tf.float32.size,
        }
    return figures


def cache_line(caches: dict[str, dict[str, float]]) -> str:
    """Formats the figures of `cache_figures`, all tables together."""

    def total(name: str) -> float:
        return sum(figures[name] for figures in caches.values())

    def moved(way: str) -> str:
        bytes_moved, without = total(f"bytes_{way}"), total(f"bytes_{way}_without")
        return f"{readable(bytes_moved)} {way}, {bytes_moved / without:.2f} of the bytes without a cache"

    hits = total("hits") / total("keys")
    return f"{len(caches)} tables; {hits:.3f} of the steps' keys were in the cache; {moved('down')}; {moved('up')}"


def write(
    options: argparse.Namespace,
    data_name: str,
    ranks: Collectives,
    curve: Evaluation,
    planted_auc: float | None,
    progress: Progress,
    usage: Usage,
) -> None:
    """Writes report.txt, report.json and, if matplotlib is installed, curves.png. Prints the report."""
    _, auc, log_loss = curve.points[-1]
    options.out.mkdir(parents=True, exist_ok=True)
    picture = options.out / "curves.png"
    drawn = draw(curve.points, progress.losses, planted_auc, picture)
    of_ranks = f"{ranks.size} rank{'s' * (ranks.size > 1)}"
    against = f"   (the generating model: {planted_auc:.4f}, {auc - planted_auc:+.4f})" if planted_auc else ""
    lines = {
        "held-out AUC": f"{auc:.4f}{against}",
        "held-out log loss": f"{log_loss:.4f}",
        "samples/s": f"{progress.samples_per_second:,.0f}   ({progress.train_seconds:.1f} s of training)",
        "engine": launch.engine(ranks),
        "tables": f"{usage.tables}, {usage.rows:,} rows, {readable(usage.disk_bytes)} with slots and index",
        "tables in memory": f"{readable(sum(usage.table_pss))} summed PSS of {of_ranks}; "
        f"{ranks.size} copies would take {readable(ranks.size * usage.disk_bytes)}",
        "processes in memory": f"{readable(sum(usage.process_pss))} summed PSS",
        "dense ring": f"{readable(usage.dense_ring_bytes)} of gradients per step, all ranks",
        "sparse ring": f"{readable(usage.sparse_ring_bytes)} of keys and gradient rows per step, all ranks; "
        f"{readable(usage.shared_bytes)} merged in shared memory",
        "table writes": f"{usage.table_writes / usage.steps:g} per step",
        "disk": f"{usage.rows_on_disk:,} rows; {usage.rows_read:,} read, {usage.rows_read_late:,} of them late; "
        f"{usage.disk_waited_s:.1f} s waited per rank",
        "device cache": cache_line(usage.caches) if usage.caches else "",
        "curves": str(picture) if drawn else "not drawn: matplotlib is not installed",
    }
    text = [f"{options.model} on {data_name}, {of_ranks} x {options.batch} samples, {usage.steps} steps"]
    if options.storage == "memory":
        del lines["disk"]
    if not usage.caches:
        del lines["device cache"]
    text += [f"  {name:21s} {value}" for name, value in lines.items()]
    (options.out / "report.txt").write_text("\n".join(text) + "\n")
    figures = {
        "auc": auc,
        "log_loss": log_loss,
        "planted_auc": planted_auc,
        "samples_per_second": progress.samples_per_second,
        "train_seconds": progress.train_seconds,
        "ranks": ranks.size,
        "engine": ranks.kind if ranks.size > 1 else "none",
        "options": {name: str(value) for name, value in vars(options).items()},
        "curve": curve.points,
        **dataclasses.asdict(usage),
    }
    (options.out / "report.json").write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(text))


def draw(
    points: list[tuple[int, float, float]], losses: list[tuple[int, float]], planted_auc: float | None, path: Path
) -> bool:
    """Draws training loss and held-out AUC over the steps. Returns False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(*zip(*losses, strict=True)) if losses else None
    left.set(title="training log loss (rank 0)", xlabel="step", ylabel="nats")
    steps, aucs, _ = zip(*points, strict=True)
    right.plot(steps, aucs, marker="o", label="trained")
    if planted_auc is not None:
        right.axhline(planted_auc, color="grey", linestyle="--", label="planted model")
    right.set(title="held-out AUC", xlabel="step")
    right.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
