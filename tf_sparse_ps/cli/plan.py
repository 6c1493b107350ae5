"""`tf-sparse-ps plan`: what a job needs, before its first run. A model's own program imports TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import click

from tf_sparse_ps import plan as plan_lib
from tf_sparse_ps.cli import machine_checks
from tf_sparse_ps.cli.command import PATH, Command, json_option, make_model
from tf_sparse_ps.cli.display import count, print_facts, print_json, print_table, size
from tf_sparse_ps.config import Sharded, Tiered
from tf_sparse_ps.errors import AccessError, InvalidArgumentError, NoSpaceError
from tf_sparse_ps.node import job_folder
from tf_sparse_ps.plan import model_tables, samples
from tf_sparse_ps.plan.planner import Choice, Plan

_FIELDS = ("storage", "placement", "dtype", "cache")


@click.command(cls=Command)
@click.argument("source", metavar="CONFIG.json|MODULE:FUNCTION")
@click.option(
    "--config",
    "config_path",
    type=PATH,
    metavar="CONFIG.json",
    help="For a model: the job, and rows, ids_per_sample and zipf of its tables by name.",
)
@click.option(
    "--sample",
    "sample_words",
    multiple=True,
    metavar="[TABLE=]FILE",
    help="Ids (npz, npy, csv, txt) in the order of training, from which to measure how often ids repeat.",
)
@json_option
def command(source: str, config_path: Path | None, sample_words: tuple[str, ...], as_json: bool) -> int:
    """Plans a job before its first run: memory, storage, placement and types of its tables, and its step time.

    The source is a configuration, or a function that returns a Keras model, such as train:make_model. The costs of a
    step are measured on this machine, in at most two seconds. The exit status is 1 if the job does not fit.
    """
    document, where = _document(source, config_path)
    config = plan_lib.parse(document, _machine(), where)
    skews, sampled = _skews(config, sample_words)
    costs = config.costs or plan_lib.measure(_folder())
    config = _with_disk_rate(config)
    plan = plan_lib.Planner(config, skews, costs).plan()
    facts = _facts(plan, config, skews, sampled, costs)
    if as_json:
        print_json(facts)
    else:
        _print(plan, config, facts)
    return 1 if plan.problems else 0


def _folder() -> str:
    return os.path.abspath(job_folder.default())


def _machine() -> dict[str, int]:
    """Returns what this machine has left, as the defaults of a configuration."""
    memory = machine_checks.memory().facts
    limits = [int(memory["available"]), *([memory["cgroup_headroom"]] if memory["cgroup_headroom"] is not None else [])]
    return {
        "memory": min(limits),
        "shared_memory": int(machine_checks.room(_folder()).facts["free"]),
        "cores": len(os.sched_getaffinity(0)),
    }


def _document(source: str, config_path: Path | None) -> tuple[Any, str]:
    """Returns the configuration as a JSON document, and its name."""
    if ":" not in source:
        if config_path is not None:
            raise click.UsageError("--config is for a model: MODULE:FUNCTION", ctx=click.get_current_context())
        return _read(Path(source)), source
    document = _read(config_path) if config_path is not None else {}
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"{config_path} must have a JSON object. Received: {document!r}")
    more = {}
    for table in document.get("tables", []):
        if (
            not isinstance(table, dict)
            or set(table) - {"name", "rows", "ids_per_sample", "zipf"}
            or "name" not in table
        ):
            raise InvalidArgumentError(
                f"{config_path}: a table of a model has only the fields name, rows, ids_per_sample and zipf here. "
                f"Received: {table!r}"
            )
        more[table["name"]] = table
    tables = model_tables.tables(make_model(source, "the model"))
    unknown = set(more) - {table["name"] for table in tables}
    if unknown:
        names = ", ".join(table["name"] for table in tables)
        raise InvalidArgumentError(f"{config_path}: the model has no table {sorted(unknown)[0]!r}. It has: {names}")
    merged = [{**table, **more.get(table["name"], {})} for table in tables]
    return {"batch_size": 1024, **document, "tables": merged}, source


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is not JSON: {error}") from error


def _skews(config: plan_lib.PlanConfig, words: tuple[str, ...]) -> tuple[dict[str, plan_lib.Skew], dict[str, int]]:
    """Returns the skew of each table, and the number of ids of those that have a sample."""
    names = [table.name for table in config.tables]
    found: dict[str, Any] = {}
    for word in words:
        table, _, file = word.rpartition("=")
        features = samples.read(Path(file))
        if table:
            if len(features) != 1 or table not in names:
                raise InvalidArgumentError(
                    f"--sample TABLE=FILE needs a table of the job ({', '.join(names)}), and a file of one feature. "
                    f"Received: {word!r}"
                )
            features = dict.fromkeys([table], next(iter(features.values())))
        found.update(samples.of_tables(features, names, file))
    skews: dict[str, plan_lib.Skew] = {}
    for each in config.tables:
        ids = found.get(each.name)
        skews[each.name] = (
            plan_lib.Zipf(each.rows, each.zipf) if ids is None else plan_lib.Sampled(ids, each.rows, each.zipf)
        )
    return skews, {name: len(ids) for name, ids in found.items()}


def _with_disk_rate(config: plan_lib.PlanConfig) -> plan_lib.PlanConfig:
    """Measures the disk, if its folder is on this machine."""
    disk = config.disk
    if disk is None or disk.reads_per_second is not None or not os.path.isdir(disk.path):
        return config
    try:
        rate = plan_lib.measure_disk(os.path.abspath(disk.path), _folder())
    except (AccessError, NoSpaceError, OSError) as error:
        click.echo(f"The speed of the disk is unknown, because it cannot be measured: {error}", err=True)
        return config
    return dataclasses.replace(config, disk=dataclasses.replace(disk, reads_per_second=rate))


# --- output ---


def _chosen(choice: Choice) -> dict[str, Any]:
    config = choice.table.config
    storage, placement, cache = config.storage, config.placement, config.cache
    return {
        "storage": storage.get_config() if isinstance(storage, Tiered) else storage,
        "placement": "sharded" if isinstance(placement, Sharded) else placement,
        "dtype": config.dtype,
        "cache": None if cache is None else cache.get_config(),
    }


def _facts(
    plan: Plan,
    config: plan_lib.PlanConfig,
    skews: dict[str, plan_lib.Skew],
    sampled: dict[str, int],
    costs: plan_lib.Costs,
) -> dict[str, Any]:
    """Returns the JSON document."""
    tables = []
    for choice in plan.choices:
        table, parts, step = choice.table, choice.size, choice.step
        bytes_of = {
            name: getattr(parts, name) for name in ("rows", "slots", "index", "metadata", "tier", "slack", "undo")
        }
        n = table.ids_per_sample * config.batch_size
        tables.append(
            {
                "name": table.name,
                "rows": table.rows,
                "dim": table.config.dim,
                "optimizer": None if table.config.optimizer is None else table.config.optimizer.kind,
                **_chosen(choice),
                "reasons": dict(choice.reasons),
                "bytes": {**bytes_of, "buffers": parts.buffers, "memory": parts.memory, "disk": parts.disk},
                "rows_in_memory": parts.rows_in_memory,
                "rows_on_disk": parts.rows_on_disk,
                "hit_rate": choice.hit_rate,
                "skew": {
                    "sampled_ids": sampled.get(table.name),
                    "zipf": None if table.name in sampled else table.zipf,
                    "unique_share": min(1.0, skews[table.name].distinct(n) / n),
                },
                "step": {
                    "ids": step.ids,
                    "distinct": step.distinct,
                    "updated": step.updated,
                    "sent_bytes": step.sent_bytes,
                    "disk_bytes": step.disk_bytes,
                    "lookup_ms": step.lookup_ms,
                    "merge_ms": step.merge_ms,
                    "update_ms": step.update_ms,
                },
            }
        )
    sums, step_time = plan.sums, plan.step
    return {
        "fits": not plan.problems,
        "tables": tables,
        "machine": {
            **dataclasses.asdict(sums),
            "needed": sums.memory,
            "memory": config.memory,
            "shared_needed": sums.shared,
            "shared_memory": config.shared_memory,
            "disk_needed": plan.disk,
            "disk": None if config.disk is None else config.disk.bytes,
        },
        "step": {
            **dataclasses.asdict(step_time),
            "total": step_time.total,
            "sent_bytes": sum(choice.step.sent_bytes for choice in plan.choices),
            "disk_bytes": sum(choice.step.disk_bytes for choice in plan.choices),
        },
        "problems": [{"what": what, "missing_bytes": missing} for what, missing in plan.problems],
        "remedies": list(plan.remedies),
        "costs": dataclasses.asdict(costs),
    }


def _print(plan: Plan, config: plan_lib.PlanConfig, facts: dict[str, Any]) -> None:
    columns = (
        "TABLE",
        "ROWS",
        "STORAGE",
        "PLACEMENT",
        "DTYPE",
        "ROWS+SLOTS",
        "INDEX",
        "OTHER",
        "SLACK",
        "MEMORY",
        "DISK",
    )
    rows = []
    for choice, table in zip(plan.choices, facts["tables"], strict=True):
        parts, tiered = choice.size, isinstance(choice.table.config.storage, Tiered)
        rows.append(
            (
                table["name"],
                count(table["rows"]),
                f"tiered {size(table['storage']['memory'])}" if tiered else "memory",
                table["placement"],
                table["dtype"],
                size(parts.rows + parts.slots),
                size(parts.index),
                size(parts.metadata + parts.tier + parts.undo + parts.buffers),
                size(parts.slack),
                size(parts.memory),
                size(parts.disk),
            )
        )
    print_table(columns, rows, right=[columns[1], *columns[5:]])
    for table in facts["tables"]:
        for name, reason in table["reasons"].items():
            if reason != "It is as given.":
                click.echo(f"{table['name']}, {name}: {reason}")
    sums, step = plan.sums, plan.step
    sources = [
        "a sample" if table["skew"]["zipf"] is None else f"Zipf({table['skew']['zipf']:g})" for table in facts["tables"]
    ]
    print_facts(
        [
            (
                "memory per machine",
                f"{size(sums.memory)} of {size(config.memory)}: tables {size(sums.tables)}, exchange "
                f"{size(sums.exchange)}, buffers {size(sums.buffers)}, processes {size(sums.processes)}",
            ),
            ("shared memory", f"{size(sums.shared)} of {size(config.shared_memory)}"),
            ("disk", f"{size(plan.disk)} of {size(None if config.disk is None else config.disk.bytes)}"),
            ("network", f"{size(facts['step']['sent_bytes'])} sent per step and machine"),
            ("read from disk", f"{size(facts['step']['disk_bytes'])} per step and machine"),
            (
                "tables' part of a step",
                f"{step.total:.1f} ms: lookup {step.lookup:.1f}, merge {step.merge:.1f}, update {step.update:.1f}, "
                f"exchange {step.exchange:.1f}, latency {step.latency:.1f}, disk "
                + ("unknown" if step.disk is None else f"{step.disk:.1f}"),
            ),
            ("ids are those of", ", ".join(dict.fromkeys(sources))),
        ]
    )
    for what, missing in plan.problems:
        click.echo(f"The job does not fit: {size(missing)} of {what} are missing on each machine.")
    for remedy in plan.remedies:
        click.echo(f"- {remedy}")
