"""What a step costs on a cluster, by formula: bytes that a node sends, and time.

Let there be H nodes x R ranks, N = H R, and n ids per rank and step, drawn independently by Zipf's law from V rows of
dim d. U(m), the expected number of distinct ids among m, is the sum over rows of 1 - (1 - p)^m: exact, no fit.
One row of gradients takes 4 d bytes.

Bytes that a node sends per step; it receives as many:

- Horovod's allgather is a ring over all ranks, those of a node side by side: a node sends (N - 1) / N of all that is
  gathered, whatever R is. Its allreduce of S bytes sends 2 S (N - 1) / N. The dense weights (S) go that way always.
- flat: (N - 1) U(n) (8 + 4 d). Every rank's unique keys (int64) with their rows.
- hierarchical: (H - 1) K R B. Nodes gather, each of their ranks its range of the keys, in K rounds, as many as a rank's
  gradients need to pass through its part of the window. B is a buffer of one rank and round: U(R n) / (K R) keys with
  counts and rows of float32, bfloat16 or float16, and padding to one of 16 sizes per power of two. Keys are sorted and
  scattered over the V rows; their differences take as many bits as the largest of 128 needs, and so do the counts (up
  to R).
- sharded: nodes own equal shares of the keys. A node pulls the rows of (H - 1) / H U(R n) keys and pushes as many
  gradients, each of its ranks its range of the keys, to and from each of the H - 1 others on its own. Of each such pair
  a buffer with keys, coded as above; one with rows, whose keys are told by their order; and K' with keys, counts and
  gradients. K' is less than K, because a rank receives a round's gradients once, not from every node. Buffers of 16 KiB
  and more are not padded. Rows and gradients are of float32, or both of bfloat16.
- replicated: (N - 1) n (4 + 4 d). Horovod's IndexedSlices keep repeated ids, which Keras makes int32.

Headers, acknowledgements and Horovod's negotiation are left out; so is what an idle Horovod sends, about 0.3 MB/s and
node for up to 8 ranks, more on rank 0's node with many ranks.

Time of a step is the sum of:

- own work of a rank (lookup, model, backward): `rank_ms` of a core;
- merging, `merge_ns` of a core per gathered key, flat: N U(n) at the leader; hierarchical: R U(n), and H U(R n) that
  arrive, both shared by the node's ranks; sharded: R U(n), and U(R n) that arrive, likewise;
- updating at the leader, `update_ns` of a core per distinct key of all: U(N n), sharded: U(N n) / H;
- the exchange: the bytes sent at the given rate, or copying what is received, `copy_ns` of a core per byte and
  receiving rank, whichever takes longer. Between two peers alone (flat on 2 x 1, hierarchical on 2 nodes) there is one
  connection, whose directions Gloo uses by turns (measured: 1.7 to 2 times as long). C such connections side by side
  (hierarchical: R; sharded, where any two nodes have R: (H - 1) R) leave a direction of the cable idle whenever all of
  them send the other way: 1 / (1 - 2^-C) times as long;
- sharded: before that the pull, whose bytes take as long as those of any exchange, and `pull_ns` of a core per key that
  a rank looks up, to ask, to serve and to take;
- of hierarchical's two merges and its exchange, done in K rounds beside each other, the longest, and a K-th of the
  others; likewise of sharded's merges and push. Nothing else overlaps;
- `latency_us` for every message that waits for the one before: N - 1 in an allgather over all ranks, K (H - 1) over
  nodes, 2 (N - 1) in an allreduce, 1 in an all-to-all: 2 of the pull, K' of the push. Dense gradients take one
  allreduce, or one for each bucket (`tsps.schedules.TimedBuckets`) or tensor: `operations`, one after another. Nodes
  vote on hierarchical's and sharded's steps, in an allgather of next to nothing over all ranks.

Under `tsps.schedules.DelayedGlobal` all but own work runs beside the next steps' own work. Merging and updating need
the same cores: a step takes these, and own work or exchange and latency, whichever are longer. It refuses sharded.

Work of several workers on too few cores takes proportionally longer; a worker never uses more cores than it has
threads. Nodes are alike, none is late, and links carry the full rate in both directions at once.
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
    """What is trained.

    Attributes:
        rows: of the table.
        dim: floats per row.
        ids: per rank and step.
        dense: floats of all dense weights.
        exponent: of Zipf's law.
        operations: in which a step's dense gradients are reduced.
    """

    rows: int = job_sizes.ROWS
    dim: int = job_sizes.DIM
    ids: int = job_sizes.BATCH * job_sizes.FIELDS
    dense: int = (job_sizes.DIM + 1) * job_sizes.HIDDEN + job_sizes.HIDDEN + 1
    exponent: float = job_sizes.EXPONENT
    operations: int = 1

    def distinct(self, ranks: float) -> float:
        """The expected number of distinct ids in a step of so many ranks."""
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
    """Where it is trained.

    Attributes:
        nodes: machines.
        ranks_per_node: on each.
        mbit_per_s: what a node can send, and receive, in 10^6 bits per second.
        cores: per node.
        threads: per rank.
        latency_us: of a message.
        emulated: nodes share the cores of one.
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
        """All ranks."""
        return self.nodes * self.ranks_per_node

    def duration(self, core_s: float, workers_per_node: int, threads: int = 0) -> float:
        """Seconds that equal work of each of a node's workers takes.

        Args:
            core_s: of each worker, in seconds of one core.
            workers_per_node: at the same time.
            threads: of a worker; 0: of a rank.
        """
        workers = workers_per_node * (self.nodes if self.emulated else 1)
        return core_s * max(1 / (threads or self.threads), workers / self.cores)


@dataclasses.dataclass(frozen=True)
class Costs:
    """What work takes on one core, for the job's dim.

    Attributes:
        rank_ms: a rank's own work per step.
        copy_ns: per received byte, the whole way through sockets and buffers.
        merge_ns: per gathered key.
        update_ns: per distinct key.
        pull_ns: per key that a rank looks up in a sharded table.
    """

    rank_ms: float
    copy_ns: float
    merge_ns: float = 91.0  # `python -m benchmarks kernels`: 5.03 ms x 2 threads for 110,294 keys
    update_ns: float = 185.0  # the same: Adagrad, 5.09 ms x 2 threads for 55,147 keys
    pull_ns: float = 112.0  # spans of rank_job on 2 hosts x 1: 0.6, 1.0 and 2.0 ms for 32,004 keys


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Milliseconds of a step, by what they go to."""

    own: float
    merge: float
    update: float
    exchange: float
    latency: float
    pull: float = 0.0

    @property
    def total(self) -> float:
        """Of the step."""
        return self.own + self.pull + self.merge + self.update + self.exchange + self.latency

    @property
    def delayed(self) -> float:
        """Of the step under `DelayedGlobal`."""
        return self.merge + self.update + max(self.own, self.exchange + self.latency)


def sent_bytes(method: str, job: Job, cluster: Cluster) -> float:
    """Bytes that a node sends per step, on average.

    Args:
        method: one of `METHODS`.
        job: what is trained.
        cluster: where.
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
    """In how many rounds gradients are merged between nodes.

    Args:
        job: what is trained.
        cluster: where.
        owners: nodes that have a share of the keys each; 1: all have all.
    """
    window = exchange_window(cluster.nodes, cluster.ranks_per_node, owners) / cluster.ranks_per_node
    return int(job.distinct(1) * (8 + 4 * job.dim) / window) + 1


def node_buffers(job: Job, cluster: Cluster, float_bytes: int) -> int:
    """Bytes of one node's merged gradients as they are sent, those of all its ranks and rounds.

    Args:
        job: what is trained.
        cluster: where.
        float_bytes: per element of a row.
    """
    buffers = cluster.ranks_per_node * rounds(job, cluster)
    return buffers * _gradient_buffer(job, cluster, buffers, float_bytes, 1)


def push_bytes(job: Job, cluster: Cluster, float_bytes: int) -> int:
    """Bytes of gradients that a node sends to the owners of their rows; arguments as of `node_buffers`."""
    buffers = cluster.ranks_per_node * rounds(job, cluster, cluster.nodes)
    one = _gradient_buffer(job, cluster, buffers * cluster.nodes, float_bytes, cluster.nodes)
    return (cluster.nodes - 1) * buffers * one


def pull_bytes(job: Job, cluster: Cluster, float_bytes: int) -> int:
    """Bytes of keys that a node asks for, and of rows that it serves; arguments as of `node_buffers`."""
    parts = cluster.ranks_per_node * cluster.nodes
    keys = job.distinct(cluster.ranks_per_node) / parts
    asked = _buffer(keys, key_bits(keys / job.rows) + 8 / _BLOCK, 0, cluster.nodes)
    served = _buffer(keys, 8 / _BLOCK, float_bytes * job.dim, cluster.nodes)
    return (cluster.nodes - 1) * cluster.ranks_per_node * (asked + served)


def _gradient_buffer(job: Job, cluster: Cluster, buffers: int, float_bytes: int, splits: int) -> int:
    """Bytes of one of the equal buffers into which a node's merged gradients are packed."""
    keys = job.distinct(cluster.ranks_per_node) / buffers
    bits = key_bits(keys / job.rows) + (cluster.ranks_per_node - 1).bit_length() + 2 * 8 / _BLOCK
    return _buffer(keys, bits, float_bytes * job.dim, splits)


def _buffer(keys: float, bits: float, row_bytes: int, splits: int) -> int:
    """Bytes that are sent for keys of so many bits, and their rows."""
    rows_begin = -(-(_HEADER + keys * bits / 8) // 64) * 64
    return padded(math.ceil(rows_begin + keys * row_bytes), splits)


def key_bits(density: float) -> float:
    """Expected bits of a difference of sorted keys, when a block's largest decides for all of it.

    Args:
        density: share of all ids that are among the keys, at random.
    """
    above = (1 - (1 - (1 - density) ** (2.0**width - 1)) ** _BLOCK for width in range(64))
    return float(sum(above))


def padded(size: int, splits: int = 1) -> int:
    """The size that is sent for so many bytes: 16 sizes from a power of two to the next, multiples of 64.

    Args:
        size: in bytes.
        splits: of an all-to-all; of several, those of 16 KiB and more are multiples of 64, no more.
    """
    if splits > 1 and size >= _UNPADDED_SPLIT:
        return -(-size // 64) * 64
    if size <= 1024:
        return max(256, -(-size // 64) * 64)
    step = (1 << (size.bit_length() - 1)) // 16
    return -(-size // step) * step


def step_time(method: str, job: Job, cluster: Cluster, costs: Costs) -> StepTime:
    """The time of a step.

    Args:
        method: one of `TIMED`.
        job: what is trained.
        cluster: where.
        costs: of work on one core.
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
    connections = 1 if ranks == 2 else 0  # between two peers that have but one
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
        """Seconds of an exchange; Horovod copies on a thread of its own."""
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
            one - hidden * (0.0 if one == longest else one) for one in (in_node, exchange, between)
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
    """Costs that explain the flat job's steps on one node.

    Args:
        job: what was trained.
        measured: number of ranks to milliseconds per step; two numbers at least.
        cores: of the node.
        threads: of all ranks together; each has at least one.

    Raises:
        ValueError: fewer than two numbers of ranks.
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
