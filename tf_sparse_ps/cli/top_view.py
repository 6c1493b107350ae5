"""Shows the jobs of a machine for `tf-sparse-ps top`: for people, and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

from tf_sparse_ps.cli.display import count, make_facts, make_table, rate, share, size
from tf_sparse_ps.monitoring.readings import RankReading
from tf_sparse_ps.monitoring.watch import FolderView, GroupView

_COLUMNS = ("RANK", "PID", "STATE", "RSS", "PSS", "DOING", "COUNTERS")
_RIGHT = ("RANK", "PID", "RSS", "PSS", "COUNTERS")
_FRESH_S = 1.0  # the age up to which the counters of a rank show that it works


def document(view: FolderView) -> dict[str, Any]:
    """Returns the facts as `schemas/top.json` describes them."""
    return {
        "folder": view.folder,
        "time": _iso(view.time),
        "interval_s": view.interval,
        "free_bytes": view.free,
        "size_bytes": view.size,
        "jobs": [_group_document(group, view.time) for group in view.groups],
    }


def _group_document(group: GroupView, now: float) -> dict[str, Any]:
    reading, rates = group.reading, group.rates
    return {
        "job": reading.job,
        "node": reading.node,
        "path": reading.path,
        "state": reading.state,
        "fault": reading.fault,
        "step": reading.step,
        "rows": None if reading.fault else sum(table.rows for table in reading.tables),
        "bytes": None if reading.fault else sum(table.memory for table in reading.tables),
        "bytes_on_disk": None if reading.fault else sum(table.disk for table in reading.tables),
        "per_second": None if rates is None else rates.per_second(),
        "waits": None if rates is None else rates.waits,
        "ratios": None if group.ratios is None else dataclasses.asdict(group.ratios),
        "ranks": [
            {
                "rank": rank.report.rank,
                "pid": rank.report.pid,
                "state": rank.state,
                "rss": rank.rss,
                "pss": pss,
                "doing": rank.report.activity,
                "counters_age_s": max(now - rank.report.updated, 0.0),
                "counters": rank.report.counters,
            }
            for rank, pss in zip(reading.ranks, group.pss, strict=True)
        ],
    }


def renderables(view: FolderView) -> Iterator[Any]:
    """Yields what rich is to print, in this order."""
    room = "does not exist" if view.free is None else f"{size(view.free)} of {size(view.size)} free"
    yield f"{_iso(view.time)}  {view.folder}  {room}"
    for group in view.groups:
        yield ""
        yield make_facts(_facts(group))
        if group.reading.ranks:
            ranks = zip(group.reading.ranks, group.pss, strict=True)
            yield make_table(_COLUMNS, (_row(rank, pss, view.time) for rank, pss in ranks), right=_RIGHT)
        if any(rank.state == "unknown" for rank in group.reading.ranks):
            yield "The job runs in another PID namespace, so the states of its processes are not known here."
    if not view.groups:
        yield "no jobs with tables"


def _facts(group: GroupView) -> Iterator[tuple[str, str]]:
    reading, rates, ratios = group.reading, group.rates, group.ratios
    name = f"{reading.job}, node {reading.node}: {reading.state}"
    yield "job", name if reading.step is None else f"{name}, step {count(reading.step)}"
    if reading.fault is not None:
        yield "fault", reading.fault
    else:
        memory, disk = (sum(getattr(table, name) for table in reading.tables) for name in ("memory", "disk"))
        rows = sum(table.rows for table in reading.tables)
        on_disk = f", {size(disk)} on disk" if disk else ""
        yield "tables", f"{len(reading.tables)} with {count(rows)} rows; {size(memory)} in memory{on_disk}"
    if rates is not None:
        before_end = "" if reading.state == "running" else "; the last figures before the end"
        samples = "" if rates.samples is None else f"{rate(rates.samples)} samples, "
        yield (
            "per second",
            f"{rate(rates.steps)} steps, {samples}{rate(rates.ids)} ids, {rate(rates.rows_updated)} rows updated"
            f"{before_end}",
        )
        yield (
            "bytes/s",
            f"shared {size(rates.shared)}, sent {size(rates.sent)}, received {size(rates.received)}, from disk "
            f"{size(rates.disk)}",
        )
        yield "waits", ", ".join(f"{cause} {share(part)}" for cause, part in rates.waits.items())
    if ratios is not None:
        yield (
            "ratios",
            f"unique ids {share(ratios.unique)}; hits: device cache {share(ratios.device_cache)}, tier "
            f"{share(ratios.tier)}, lookahead {share(ratios.lookahead)}",
        )


def _row(rank: RankReading, pss: int | None, now: float) -> tuple[str, ...]:
    age = max(now - rank.report.updated, 0.0)
    doing = rank.report.activity or ("training" if age < _FRESH_S else "no lookups")
    return (
        str(rank.report.rank),
        str(rank.report.pid),
        rank.state,
        size(rank.rss),
        size(pss),
        "-" if rank.state == "dead" else doing,
        f"{_age(age)} old",
    )


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{datetime.timedelta(seconds=round(seconds))}"


def _iso(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).isoformat(timespec="seconds")
