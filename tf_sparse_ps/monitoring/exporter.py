"""Serves what jobs of this machine count to Prometheus. Needs the package prometheus_client.

The pages of counters are read at each scrape. Nothing is counted between two scrapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tf_sparse_ps.errors import AccessError
from tf_sparse_ps.monitoring import readings, watch
from tf_sparse_ps.monitoring.metric_names import COUNTERS, GAUGES
from tf_sparse_ps.monitoring.readings import GroupReading, RankReading

_OF_RANKS = ("job", "node", "rank")


class JobsCollector(Collector):
    """Reads the groups of a folder at each scrape."""

    def __init__(self, folder: str, chosen: Callable[[str], bool] = lambda _: True) -> None:
        """Takes the folder of tables, and a function that says whether the group of a path is exported."""
        self._folder, self._chosen = folder, chosen

    def describe(self) -> list[Metric]:
        """Returns the metrics without values."""
        return [*_counters().values(), *_gauges().values()]

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics. If the folder cannot be read any more, they have no values."""
        counters, gauges = _counters(), _gauges()
        with contextlib.suppress(AccessError, OSError):
            for reading in readings.read_folder(self._folder):
                if self._chosen(reading.path):
                    _add_group(gauges, reading)
                    for rank in reading.ranks:
                        _add_rank(counters, gauges, reading, rank)
        free, size = watch.room(self._folder)
        if free is not None and size is not None:
            gauges["tsps_folder_free_bytes"].add_metric([self._folder], free)
            gauges["tsps_folder_size_bytes"].add_metric([self._folder], size)
        yield from counters.values()
        yield from gauges.values()


@contextlib.contextmanager
def serving(
    folder: str, port: int, address: str = "127.0.0.1", chosen: Callable[[str], bool] = lambda _: True
) -> Iterator[int]:
    """Serves metrics over HTTP, in a thread, as long as it is open.

    Args:
      folder: The folder of tables.
      port: The port; 0: any free one.
      address: The address of this machine at which it is served.
      chosen: Says whether the group of a path is exported.

    Yields:
      The port.

    Raises:
      OSError: The address cannot be used. The message says which one.
    """
    registry = CollectorRegistry()
    registry.register(JobsCollector(folder, chosen))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        text = f"cannot serve metrics at {address}:{port}: {error.strerror or error}. Choose another port or address"
        raise OSError(text) from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _counters() -> dict[str, CounterMetricFamily]:
    return {
        name: CounterMetricFamily(counter.name, f"The counter {name} of docs/metrics.md.", labels=_OF_RANKS)
        for name, counter in COUNTERS.items()
    }


def _gauges() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, text, labels=labels) for name, (labels, text) in GAUGES.items()}


def _add_group(gauges: dict[str, GaugeMetricFamily], reading: GroupReading) -> None:
    labels = [reading.job, str(reading.node)]
    states = [rank.state for rank in reading.ranks]
    if reading.step is not None:
        gauges["tsps_step"].add_metric(labels, reading.step)
    gauges["tsps_running"].add_metric(labels, reading.state == "running")
    gauges["tsps_damaged"].add_metric(labels, reading.state == "damaged")
    gauges["tsps_ranks"].add_metric(labels, len(states))
    gauges["tsps_ranks_alive"].add_metric(labels, states.count("alive"))
    gauges["tsps_ranks_unknown"].add_metric(labels, states.count("unknown"))
    for table in reading.tables:
        gauges["tsps_table_rows"].add_metric([*labels, table.name], table.rows)
        gauges["tsps_table_memory_bytes"].add_metric([*labels, table.name], table.memory)
        gauges["tsps_table_index_load"].add_metric([*labels, table.name], table.index_load)
        gauges["tsps_table_disk_bytes"].add_metric([*labels, table.name], table.disk)


def _add_rank(
    counters: dict[str, CounterMetricFamily],
    gauges: dict[str, GaugeMetricFamily],
    reading: GroupReading,
    rank: RankReading,
) -> None:
    labels = [reading.job, str(reading.node), str(rank.report.rank)]
    for name, counter in COUNTERS.items():
        if name in rank.report.counters:  # an older library has fewer
            counters[name].add_metric(labels, rank.report.counters[name] * counter.factor)
    gauges["tsps_rank_alive"].add_metric(labels, rank.state == "alive")
    gauges["tsps_rank_updated_timestamp_seconds"].add_metric(labels, rank.report.updated)
    if rank.rss is not None:
        gauges["tsps_rank_resident_bytes"].add_metric(labels, rank.rss)
