"""Computes the cost of a step on a cluster by formula: the bytes that a node sends, and the time.

A cluster has H nodes x R ranks, N = H R. Each rank draws n ids per step independently by Zipf's law from V rows of dim
d. U(m) is the expected number of distinct ids among m: the sum over rows of 1 - (1 - p)^m, which is exact. One row of
gradients takes 4 d bytes.

A node sends these bytes per step, and receives as many:

- dense weights, always: Horovod's allreduce of S bytes sends 2 S (N - 1) / N.
- flat: (N - 1) U(n) (8 + 4 d). Every rank's unique keys (int64) and their rows are gathered. Horovod's allgather is a
  ring over all ranks, in which the ranks of a node are neighbours: a node sends (N - 1) / N of everything that is
  gathered, whatever R is.
- hierarchical: (H - 1) K R B. Nodes gather gradients, and each rank gathers its range of the keys. This takes K rounds:
  as many as a rank's gradients need to pass through its part of the window. B is the size of the buffer of one rank and
  round. It contains U(R n) / (K R) keys with counts and rows of float32, bfloat16 or float16, and padding to one of 16
  sizes per power of two. Keys are sorted, and scattered over the V rows. Each of their differences takes as many bits
  as the largest of 128 needs, and so does each count (up to R).
- sharded: nodes own equal shares of the keys. A node pulls the rows of (H - 1) / H U(R n) keys and pushes as many
  gradients. Each of its ranks exchanges its range of the keys with each of the H - 1 other nodes. Each such pair sends
  a buffer with keys, coded as above; one with rows, in the order of their keys; and K' buffers with keys, counts and
  gradients. K' is less than K, because a rank receives a round's gradients once, not from every node. Buffers of 16 KiB
  and more are not padded. Rows and gradients are both of float32, or both of bfloat16.
- replicated: (N - 1) n (4 + 4 d). Horovod's IndexedSlices keep repeated ids, which Keras makes int32.

The formulas leave out headers, acknowledgements and Horovod's negotiation. They also leave out what an idle Horovod
sends: about 0.3 MB/s and node for up to 8 ranks, and more on rank 0's node with many ranks.

The time of a step is the sum of:

- own work of a rank (lookup, model, backward): `rank_ms` of a core;
- merging, `merge_ns` of a core per gathered key. flat: N U(n) keys at the leader. hierarchical: R U(n) keys, and H
  U(R n) keys that arrive; the node's ranks share both. sharded: R U(n) keys, and U(R n) keys that arrive, shared in the
  same way;
- updating at the leader, `update_ns` of a core per distinct key of all ranks: U(N n); sharded: U(N n) / H;
- the exchange: sending the bytes at the given rate, or copying the received bytes, `copy_ns` of a core per byte and
  receiving rank, whichever takes longer. Two peers alone (flat on 2 x 1, hierarchical on 2 nodes) have one connection,
  and Gloo uses its directions alternately (measured: 1.7 to 2 times as long). C such connections in parallel
  (hierarchical: R; sharded, where any two nodes have R: (H - 1) R) leave a direction of the cable idle whenever all of
  them send the other way: 1 / (1 - 2^-C) times as long;
- sharded, before the exchange: the pull. Its bytes take as long as those of any exchange, and each key that a rank
  looks up takes `pull_ns` of a core for the request, the answer and the result;
- hierarchical does its two merges and its exchange in K overlapping rounds: the sum has the longest of the three, and
  a K-th of the two others. The same holds for sharded's merges and push. Nothing else overlaps;
- `latency_us` for every message that waits for the previous one: N - 1 in an allgather over all ranks, K (H - 1) over
  nodes, 2 (N - 1) in an allreduce, 1 in an all-to-all: 2 of the pull, K' of the push. Dense gradients take one
  allreduce, or one for each bucket (`tsps.schedules.TimedBuckets`) or tensor: `operations`, one after another. Nodes
  vote on the steps of hierarchical and sharded, in an allgather of next to nothing over all ranks.

Under `tsps.schedules.DelayedGlobal`, everything but own work overlaps with the own work of the next steps. Merging and
updating need the same cores as own work. A step therefore takes their time, plus own work or exchange and latency,
whichever is longer. DelayedGlobal refuses sharded tables.

Several workers on too few cores take proportionally longer. A worker never uses more cores than it has threads. Nodes
are alike, none is late, and links carry the full rate in both directions at once.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from benchmarks import job_sizes
from tf_sparse_ps.reduction.node_exchange import exchange_window

METHODS = (
    "flat",
    "hierarchical",
    "hierarchical-bfloat16",
    "hierarchical-float16",
    "sharded",
    "sharded-bfloat16",
    "replicated",
    "dense-only",
)
TIMED = METHODS[:6]
_BLOCK = 128  # numbers of a bit block
_HEADER = 40 + 32  # bytes of a buffer of one table before its keys
_UNPADDED_SPLIT = 16 << 10


@dataclasses.dataclass(frozen=True)
class Job:
    """The job that is trained.

    Attributes:
        rows: The number of rows of the table.
        dim: The number of floats per row.
        ids: The number of ids per rank and step.
        dense: The number of floats of all dense weights.
        exponent: The exponent of Zipf's law.
        operations: The number of operations that reduce a step's dense gradients.
    """

    rows: int = job_sizes.ROWS
    dim: int = job_sizes.DIM
    ids: int = job_sizes.BATCH * job_sizes.FIELDS
    dense: int = (job_sizes.DIM + 1) * job_sizes.HIDDEN + job_sizes.HIDDEN + 1
    exponent: float = job_sizes.EXPONENT
    operations: int = 1

    def distinct(self, ranks: float) -> float:
        """Returns the expected number of distinct ids in a step of `ranks` ranks."""
        return _distinct(self.rows, self.exponent, self.ids * ranks)


@functools.lru_cache
def _log_absent(rows: int, exponent: float) -> NDArray[np.float64]:
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return np.log1p(-weights / weights.sum())


@functools.lru_cache(maxsize=1024)
def _distinct(rows: int, exponent: float, draws: float) -> float:
    return float(-np.expm1(draws * _log_absent(rows, exponent)).sum())


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The cluster that trains the job.

    Attributes:
        nodes: The number of machines.
        ranks_per_node: The number of ranks on each machine.
        mbit_per_s: The rate at which a node can send, and receive, in 10^6 bits per second.
        cores: The number of cores per node.
        threads: The number of threads per rank.
        latency_us: The latency of a message.
        emulated: Whether all nodes share the cores of one.
    """

    nodes: int
    ranks_per_node: int
    mbit_per_s: float
    cores: int = 2
    threads: int = 1
    latency_us: float = 50.0
    emulated: bool = False

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return self.nodes * self.ranks_per_node

    def duration(self, core_s: float, workers_per_node: int, threads: int = 0) -> float:
        """Returns the seconds that equal work of each of a node's workers takes.

        Args:
            core_s: The work of each worker, in seconds of one core.
            workers_per_node: The number of workers that work at the same time.
            threads: The number of threads of a worker; 0: as many as a rank has.
        """
        workers = workers_per_node * (self.nodes if self.emulated else 1)
        return core_s * max(1 / (threads or self.threads), workers / self.cores)


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of work on one core, for the job's dim.

    Attributes:
        rank_ms: A rank's own work per step.
        copy_ns: The cost per received byte, the whole way through sockets and buffers.
        merge_ns: The cost per gathered key.
        update_ns: The cost per distinct key.
        pull_ns: The cost per key that a rank looks up in a sharded table.
    """

    rank_ms: float
    copy_ns: float
    merge_ns: float = 91.0  # `python -m benchmarks kernels`: 5.03 ms x 2 threads for 110,294 keys
    update_ns: float = 185.0  # the same: Adagrad, 5.09 ms x 2 threads for 55,147 keys
    pull_ns: float = 112.0  # spans of rank_job on 2 hosts x 1: 0.6, 1.0 and 2.0 ms for 32,004 keys


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The milliseconds of each part of a step."""

    own: float
    merge: float
    update: float
    exchange: float
    latency: float
    pull: float = 0.0

    @property
    def total(self) -> float:
        """The milliseconds of the step."""
        return self.own + self.pull + self.merge + self.update + self.exchange + self.latency

    @property
    def delayed(self) -> float:
        """The milliseconds of the step under `DelayedGlobal`."""
        return self.merge + self.update + max(self.own, self.exchange + self.latency)


def sent_bytes(method: str, job: Job, cluster: Cluster) -> float:
    """Returns the bytes that a node sends per step, on average.

    Args:
        method: One of `METHODS`.
        job: The job that is trained.
        cluster: The cluster that trains it.
    """
    nodes, ranks = cluster.nodes, cluster.ranks
    if nodes == 1:
        return 0.0
    dense = 2 * 4 * job.dense * (ranks - 1) / ranks
    if method == "dense-only":
        return dense
    if method == "flat":
        return dense + (ranks - 1) * job.distinct(1) * (8 + 4 * job.dim)
    if method == "replicated":
        return dense + (ranks - 1) * job.ids * (4 + 4 * job.dim)
    floats = _float_bytes(method)
    if method.startswith("sharded"):
        return dense + pull_bytes(job, cluster, floats) + push_bytes(job, cluster, floats)
    return dense + (nodes - 1) * node_buffers(job, cluster, floats)


def _float_bytes(method: str) -> int:
    kinds = {"hierarchical": 4, "hierarchical-bfloat16": 2, "hierarchical-float16": 2}
    kinds |= {"sharded": 4, "sharded-bfloat16": 2}
    if method not in kinds:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}. Received: {method!r}")
    return kinds[method]


def rounds(job: Job, cluster: Cluster, owners: int = 1) -> int:
    """Returns the number of rounds in which nodes merge gradients.

    Args:
        job: The job that is trained.
        cluster: The cluster that trains it.
        owners: The number of nodes that share the keys; 1: every node has all keys.
    """
    window = exchange_window(cluster.nodes, cluster.ranks_per_node, owners) / cluster.ranks_per_node
    return int(job.distinct(1) * (8 + 4 * job.dim) / window) + 1


def node_buffers(job: Job, cluster: Cluster, float_bytes: int) -> int:
    """Returns the bytes of one node's merged gradients as they are sent, for all its ranks and rounds.

    Args:
        job: The job that is trained.
        cluster: The cluster that trains it.
        float_bytes: The number of bytes per element of a row.
    """
    buffers = cluster.ranks_per_node * rounds(job, cluster)
    return buffers * _gradient_buffer(job, cluster, buffers, float_bytes, 1)


def push_bytes(job: Job, cluster: Cluster, float_bytes: int) -> int:
    """Returns the bytes of gradients that a node sends to the owners of their rows; arguments as for `node_buffers`."""
    buffers = cluster.ranks_per_node * rounds(job, cluster, cluster.nodes)
    buffer_bytes = _gradient_buffer(job, cluster, buffers * cluster.nodes, float_bytes, cluster.nodes)
    return (cluster.nodes - 1) * buffers * buffer_bytes


def pull_bytes(job: Job, cluster: Cluster, float_bytes: int) -> int:
    """Returns the bytes of keys that a node asks for, and of rows that it serves; arguments as for `node_buffers`."""
    parts = cluster.ranks_per_node * cluster.nodes
    keys = job.distinct(cluster.ranks_per_node) / parts
    asked = _buffer(keys, key_bits(keys / job.rows) + 8 / _BLOCK, 0, cluster.nodes)
    served = _buffer(keys, 8 / _BLOCK, float_bytes * job.dim, cluster.nodes)
    return (cluster.nodes - 1) * cluster.ranks_per_node * (asked + served)


def _gradient_buffer(job: Job, cluster: Cluster, buffers: int, float_bytes: int, splits: int) -> int:
    """Returns the bytes of one of the equal buffers into which a node's merged gradients are packed."""
    keys = job.distinct(cluster.ranks_per_node) / buffers
    bits = key_bits(keys / job.rows) + (cluster.ranks_per_node - 1).bit_length() + 2 * 8 / _BLOCK
    return _buffer(keys, bits, float_bytes * job.dim, splits)


def _buffer(keys: float, bits: float, row_bytes: int, splits: int) -> int:
    """Returns the bytes that are sent for keys of `bits` bits each, and their rows."""
    rows_begin = -(-(_HEADER + keys * bits / 8) // 64) * 64
    return padded(math.ceil(rows_begin + keys * row_bytes), splits)


def key_bits(density: float) -> float:
    """Returns the expected bits of a difference of sorted keys. The largest difference of a block decides for all.

    Args:
        density: The share of all ids that are among the keys, at random.
    """
    above = (1 - (1 - (1 - density) ** (2.0**width - 1)) ** _BLOCK for width in range(64))
    return float(sum(above))


def padded(size: int, splits: int = 1) -> int:
    """Returns the size that is sent for `size` bytes: one of 16 sizes per power of two, all multiples of 64.

    Args:
        size: The size in bytes.
        splits: The number of splits of an all-to-all. If there are several, sizes of 16 KiB and more are only rounded
            up to a multiple of 64.
    """
    if splits > 1 and size >= _UNPADDED_SPLIT:
        return -(-size // 64) * 64
    if size <= 1024:
        return max(256, -(-size // 64) * 64)
    step = (1 << (size.bit_length() - 1)) // 16
    return -(-size // step) * step


def step_time(method: str, job: Job, cluster: Cluster, costs: Costs) -> StepTime:
    """Returns the time of a step.

    Args:
        method: One of `TIMED`.
        job: The job that is trained.
        cluster: The cluster that trains it.
        costs: The costs of work on one core.
    """
    if method not in TIMED:
        raise ValueError(f"there is no model of the time of {method!r}. Expected: one of {', '.join(TIMED)}")
    nodes, per_node, ranks = cluster.nodes, cluster.ranks_per_node, cluster.ranks
    own, node, everywhere = job.distinct(1), job.distinct(per_node), job.distinct(ranks)
    messages = 2 * (ranks - 1) * job.operations
    row = 8 + 4 * job.dim
    in_node = cluster.duration(own * costs.merge_ns * 1e-9, per_node) if per_node > 1 else 0.0
    between = 0.0
    sent = copied = sent_bytes(method, job, cluster)
    receivers, updated, merges, pull, pulled = 1, everywhere, 1, 0.0, 0.0
    connections = 1 if ranks == 2 else 0  # between two peers that have only one
    if method == "flat":
        in_node = 0.0
        between = cluster.duration(ranks * own * costs.merge_ns * 1e-9, 1) if ranks > 1 else 0.0
        copied, receivers = (ranks - 1) * own * row, per_node
        messages += ranks - 1
    elif nodes > 1:
        sharded = method.startswith("sharded")
        merges = rounds(job, cluster, nodes if sharded else 1)
        arriving = node if sharded else nodes * node
        between = cluster.duration(arriving / per_node * costs.merge_ns * 1e-9, per_node)
        messages += ranks - 1  # the vote
        if sharded:
            updated = everywhere / nodes
            connections = (nodes - 1) * per_node
            pulled = pull_bytes(job, cluster, _float_bytes(method))
            sent, copied = sent - pulled, sent - pulled
            pull = cluster.duration(own * costs.pull_ns * 1e-9, per_node)
            messages += 2 + merges
        else:
            connections = per_node if nodes == 2 else 0
            messages += (nodes - 1) * merges

    def taken(sent: float, copied: float) -> float:
        """Returns the seconds of an exchange. Horovod copies on its own thread."""
        wire = sent * 8 / (cluster.mbit_per_s * 1e6)
        if connections:
            wire /= 1 - 2.0**-connections
        return max(wire, cluster.duration(copied * costs.copy_ns * 1e-9, receivers, threads=1))

    exchange = taken(sent, copied)
    pull += taken(pulled, pulled)
    if method != "flat":
        hidden = 1 - 1 / merges
        longest = max(in_node, exchange, between)
        in_node, exchange, between = (
            seconds - hidden * (0.0 if seconds == longest else seconds) for seconds in (in_node, exchange, between)
        )
    return StepTime(
        own=1e3 * cluster.duration(costs.rank_ms * 1e-3, per_node),
        merge=1e3 * (in_node + between),
        update=1e3 * cluster.duration(updated * costs.update_ns * 1e-9, 1),
        exchange=1e3 * exchange,
        latency=messages * cluster.latency_us * 1e-3,
        pull=1e3 * pull,
    )


def calibrated(job: Job, measured: dict[int, float], *, cores: int, threads: int) -> Costs:
    """Returns costs that explain the steps of the flat job on one node.

    Args:
        job: The job that was trained.
        measured: Milliseconds per step by number of ranks, for at least two numbers of ranks.
        cores: The number of cores of the node.
        threads: The number of threads of all ranks together. Each rank has at least one.

    Raises:
        ValueError: `measured` has fewer than two numbers of ranks.
    """
    if len(measured) < 2:
        raise ValueError(f"a calibration needs one host with two numbers of ranks. Received: {sorted(measured)}")

    def explained(ranks: int, costs: Costs) -> float:
        cluster = Cluster(1, ranks, 1.0, cores, max(1, threads // ranks))
        return step_time("flat", job, cluster, costs).total

    # The step is linear in the two costs: relative least squares.
    rest = np.array([explained(ranks, Costs(0, 0)) for ranks in measured])
    columns = [np.array([explained(ranks, unit) for ranks in measured]) - rest for unit in (Costs(1, 0), Costs(0, 1))]
    times = np.array(list(measured.values()))
    matrix = np.stack(columns, axis=1) / times[:, None]
    rank_ms, copy_ns = np.linalg.lstsq(matrix, (times - rest) / times, rcond=None)[0]
    return Costs(max(0.0, float(rank_ms)), max(0.0, float(copy_ns)))
