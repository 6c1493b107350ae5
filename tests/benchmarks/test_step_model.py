"""The scaling model's formulas, compared with sums done by hand, and its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import harness, scaling_model, step_model
from benchmarks.step_model import Cluster, Costs, Job
from tf_sparse_ps.reduction.node_exchange import exchange_window

# 4 equally frequent ids, 3 per rank: U(3) = 4 (1 - 0.75^3) = 2.3125, U(6) = 4 (1 - 0.75^6) = 3.288...
TINY = Job(rows=4, dim=2, ids=3, dense=10, exponent=0.0)
U1, U2, U4 = 2.3125, 4 * (1 - 0.75**6), 4 * (1 - 0.75**12)


def test_distinct_ids_are_exact() -> None:
    assert TINY.distinct(1) == pytest.approx(U1)
    assert TINY.distinct(2) == pytest.approx(U2)
    skewed = Job(rows=2, ids=2, exponent=1.0)  # probabilities 2/3 and 1/3
    assert skewed.distinct(1) == pytest.approx((1 - 1 / 9) + (1 - 4 / 9))


def test_distinct_ids_are_what_the_benchmarks_draw() -> None:
    job = Job()
    drawn = harness.zipf_ids(job.rows, job.ids, 2, exponent=job.exponent, seed=1)
    assert np.mean([np.unique(ids).size for ids in drawn]) == pytest.approx(job.distinct(1), rel=0.005)


def test_one_node_sends_nothing() -> None:
    for method in step_model.METHODS:
        assert step_model.sent_bytes(method, TINY, Cluster(1, 4, 100.0)) == 0


def test_bytes_of_two_nodes_by_hand() -> None:
    two, four = Cluster(2, 1, 100.0), Cluster(2, 2, 100.0)
    dense = {1: 2 * 40 * 1 / 2, 2: 2 * 40 * 3 / 4}

    def sent(method: str, cluster: Cluster) -> float:
        return step_model.sent_bytes(method, TINY, cluster)

    assert sent("dense-only", two) == dense[1]
    assert sent("flat", two) == pytest.approx(dense[1] + 1 * U1 * (8 + 8))
    assert sent("flat", four) == pytest.approx(dense[2] + 3 * U1 * (8 + 8))
    assert sent("replicated", four) == pytest.approx(dense[2] + 3 * 3 * (4 + 8))
    assert sent("hierarchical", four) == pytest.approx(dense[2] + 2 * 256)  # a padded buffer of each rank
    assert sent("sharded", four) == pytest.approx(dense[2] + 2 * 3 * 256)  # keys, rows and gradients of each rank


def test_hierarchical_buffers_by_hand() -> None:
    job, two = Job(rows=1_000_000, dim=64, ids=100_000, exponent=0.0), Cluster(2, 2, 100.0)
    assert step_model.rounds(job, two) == int(job.distinct(1) * 264 / (exchange_window(2, 2) / 2)) + 1 == 9
    keys = job.distinct(2) / 18
    full = 18 * (64 + keys * ((step_model.key_bits(keys / 1e6) + 1 + 1 / 8) / 8 + 256))
    assert full <= step_model.node_buffers(job, two, 4) < full * 17 / 16
    half = step_model.node_buffers(job, two, 2) / step_model.node_buffers(job, two, 4)
    assert 0.48 < half < 0.54


def test_time_of_many_rounds_is_that_of_what_takes_longest() -> None:
    job, costs = Job(), Costs(rank_ms=1.0, copy_ns=0.0)
    slow, fast = Cluster(3, 2, 100.0, latency_us=1000), Cluster(3, 2, 1e6, latency_us=1000)
    wire = 1e3 * step_model.sent_bytes("hierarchical", job, slow) * 8 / 100e6
    bound_by_wire = step_model.step_time("hierarchical", job, slow, costs)
    assert bound_by_wire.exchange == pytest.approx(wire)
    merging = costs.merge_ns * 1e-6 * (job.distinct(1) + 3 * job.distinct(2) / 2)
    assert bound_by_wire.merge == pytest.approx(merging / step_model.rounds(job, slow))
    assert bound_by_wire.latency == 2 * 5 + 2 * step_model.rounds(job, slow) + 5
    bound_by_merging = step_model.step_time("hierarchical", job, fast, costs)
    assert bound_by_merging.merge > costs.merge_ns * 1e-6 * 3 * job.distinct(2) / 2


def test_key_bits_are_those_of_drawn_keys() -> None:
    keys = np.flatnonzero(np.random.default_rng(0).random(1_000_000) < 0.05)
    blocks = np.diff(keys)[: (keys.size - 1) // 128 * 128].reshape(-1, 128)
    widths = np.floor(np.log2(blocks.max(axis=1))) + 1
    assert step_model.key_bits(0.05) == pytest.approx(widths.mean(), abs=0.05)
    assert step_model.key_bits(1.0) == 1.0


def test_sharded_buffers_by_hand() -> None:
    job, three = Job(rows=1_000_000, dim=64, ids=100_000, dense=0, exponent=0.0), Cluster(3, 2, 100.0)
    assert step_model.rounds(job, three, owners=3) == int(job.distinct(1) * 264 / (exchange_window(3, 2, 3) / 2)) + 1
    keys = job.distinct(2) / 6  # the keys of a rank's range that one of the nodes owns
    bits = step_model.key_bits(keys / 1e6) + 8 / 128
    pulled = 2 * 2 * (keys * (bits + 8 / 128) / 8 + 2 * 72 + keys * 256)
    assert pulled <= step_model.pull_bytes(job, three, 4) < pulled * 1.005 + 2 * 2 * 4 * 64
    rounds = step_model.rounds(job, three, owners=3)
    bits = step_model.key_bits(keys / rounds / 1e6) + 1 + 2 * 8 / 128
    pushed = 2 * 2 * (rounds * 72 + keys * (bits / 8 + 256))
    assert pushed <= step_model.push_bytes(job, three, 4) < pushed + 2 * 2 * rounds * 2 * 64
    parts = step_model.pull_bytes(job, three, 4) + step_model.push_bytes(job, three, 4)
    assert step_model.sent_bytes("sharded", job, three) == parts
    assert 0.50 < step_model.sent_bytes("sharded-bfloat16", job, three) / parts < 0.52


def test_rounds_of_sharded_gradients_do_not_grow_with_the_nodes() -> None:
    job = Job()
    rounds = [step_model.rounds(job, Cluster(nodes, 2, 1e4), owners=nodes) for nodes in (2, 64, 1024)]
    assert rounds == [3, 3, 3]
    assert step_model.rounds(job, Cluster(1024, 2, 1e4)) > 30


def test_time_of_sharded_by_hand() -> None:
    costs = Costs(rank_ms=10.0, copy_ns=0.0, merge_ns=1e6, update_ns=2e6, pull_ns=3e6)
    slow = Cluster(3, 2, mbit_per_s=0.008, cores=2, latency_us=1000)  # 1,000 bytes per second
    everywhere = 4 * (1 - 0.75 ** (3 * 6))
    time = step_model.step_time("sharded", TINY, slow, costs)
    pulled = step_model.pull_bytes(TINY, slow, 4)
    assert pulled == 2 * 2 * (256 + 256)
    turns = 1 - 2.0**-4  # four connections whose directions alternate
    assert time.own == 10
    assert time.pull == pytest.approx(3 * U1 + pulled / turns)
    assert time.exchange == pytest.approx((step_model.sent_bytes("sharded", TINY, slow) - pulled) / turns)
    assert time.merge == pytest.approx(U1 + U2 / 2)
    assert time.update == pytest.approx(2 * everywhere / 3)
    assert time.latency == 2 * 5 + 2 + 1 + 5  # dense ring, pull, push, vote
    assert time.total == pytest.approx(10 + time.pull + time.exchange + time.merge + time.update + time.latency)
    alone = step_model.step_time("sharded", TINY, Cluster(1, 2, 0.008, latency_us=0), costs)
    assert (alone.pull, alone.exchange) == (0, 0)


def test_sharded_is_below_replicas_from_three_nodes_on() -> None:
    job, costs = Job(), scaling_model.COSTS
    for nodes, most_bytes, most_time in ((3, 0.70, 0.92), (4, 0.53, 0.75)):
        where = Cluster(nodes, 2, 200.0, emulated=True)
        sent = [step_model.sent_bytes(method, job, where) for method in ("sharded", "hierarchical")]
        took = [step_model.step_time(method, job, where, costs).total for method in ("sharded", "hierarchical")]
        assert sent[0] / sent[1] < most_bytes
        assert took[0] / took[1] < most_time


@pytest.mark.parametrize(
    ("size", "padded"), [(1, 256), (257, 320), (1024, 1024), (1025, 1088), (4096, 4096), (4097, 4352), (8191, 8192)]
)
def test_padded_sizes(size: int, padded: int) -> None:
    assert step_model.padded(size) == padded
    assert step_model.padded(size, splits=3) == padded


def test_large_splits_are_not_padded() -> None:
    assert step_model.padded(16_383, splits=2) == 16_384
    assert [step_model.padded(20_001, splits=n) for n in (1, 2)] == [20_480, 20_032]


def test_time_by_hand() -> None:
    costs = Costs(rank_ms=10.0, copy_ns=100.0, merge_ns=1e6, update_ns=2e6)

    def time(method: str, cluster: Cluster) -> step_model.StepTime:
        return step_model.step_time(method, TINY, cluster, costs)

    alone = time("flat", Cluster(1, 1, 1.0, latency_us=0))
    assert alone.total == pytest.approx(10 + 2 * U1)
    crowded = time("flat", Cluster(1, 4, 1.0, cores=2, latency_us=0))  # ms of copying: 4 ranks on 2 cores, 3 peers each
    assert crowded.exchange == pytest.approx(4 / 2 * 3 * U1 * 16 * 100e-6)
    assert crowded.total == pytest.approx(20 + 4 * U1 + 2 * U4 + crowded.exchange)
    slow = Cluster(2, 2, mbit_per_s=0.008, cores=2, latency_us=1000)  # 1,000 bytes per second
    apart = time("flat", slow)
    assert apart.exchange == pytest.approx(step_model.sent_bytes("flat", TINY, slow))
    assert apart.latency == 3 * 3
    assert apart.merge == pytest.approx(4 * U1)
    merged = time("hierarchical", slow)
    assert merged.merge == pytest.approx(U1 + 2 * U2 / 2)
    assert merged.latency == 2 * 3 + 1 + 3
    sent = step_model.sent_bytes("hierarchical", TINY, slow)
    assert merged.exchange == pytest.approx(sent * 4 / 3)  # two connections whose directions alternate
    assert merged.update == apart.update == pytest.approx(2 * U4)
    shared = time("flat", Cluster(2, 2, 0.008, cores=2, latency_us=0, emulated=True))  # 4 ranks on the 2 cores
    assert shared.own == pytest.approx(20)
    assert shared.merge == pytest.approx(4 * U1)  # 2 leaders


def test_sharded_bytes_stop_growing_where_hierarchical_ones_do_not() -> None:
    job = Job()
    few, many = Cluster(64, 2, 1e4), Cluster(1024, 2, 1e4)
    ratio = {m: step_model.sent_bytes(m, job, many) / step_model.sent_bytes(m, job, few) for m in scaling_model.METHODS}
    assert ratio["sharded"] < 1.1
    assert ratio["sharded-bfloat16"] < 1.16  # headers of ever smaller buffers
    assert ratio["hierarchical"] == pytest.approx(1023 / 63, rel=0.06)  # padding


def test_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="Received: 'ring'"):
        step_model.sent_bytes("ring", TINY, Cluster(2, 1, 1.0))
    with pytest.raises(ValueError, match="no model of the time of 'replicated'"):
        step_model.step_time("replicated", TINY, Cluster(2, 1, 1.0), Costs(1, 1))


def test_calibration_finds_the_costs_that_made_the_figures() -> None:
    job, costs = Job(), Costs(rank_ms=25.0, copy_ns=1.5)
    measured = {r: step_model.step_time("flat", job, Cluster(1, r, 1.0), costs).total for r in (1, 2, 4)}
    calibrated_costs = step_model.calibrated(job, measured, cores=2, threads=1)
    assert (calibrated_costs.rank_ms, calibrated_costs.copy_ns) == pytest.approx((25.0, 1.5))
    with pytest.raises(ValueError, match="two numbers of ranks"):
        step_model.calibrated(job, {2: 50.0}, cores=2, threads=1)


def results(sent_mb: float, step_ms: float, *, quick: bool = False) -> dict[str, Any]:
    """Returns a file of the suite cluster with one case, 2 hosts x 2 ranks, flat."""
    parameters = {"hosts": 2, "ranks_per_host": 2, "mbit_per_s": 200.0}
    common = {"suite": "cluster", "case": "2 hosts x 2, 200 Mbit/s: x", "variant": "flat"}
    return {
        "hardware": {"cores": "2"},
        "options": {"threads": 2, "quick": quick},
        "results": [
            {**common, "median": sent_mb, "parameters": {**parameters, "figure": "sent"}},
            {**common, "median": step_ms, "parameters": {**parameters, "figure": "step"}},
        ],
    }


def test_check_reports_errors_and_fails_beyond_the_goals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, where = Job(), Cluster(2, 2, 200.0, emulated=True)
    sent = step_model.sent_bytes("flat", job, where) / 1e6
    took = step_model.step_time("flat", job, where, scaling_model.COSTS).total
    path = tmp_path / "r.json"
    path.write_text(json.dumps(results(sent / 1.04, took / 0.8)))
    assert scaling_model.main(["--check", str(path), "--json"]) == 0
    by_figure = {item["figure"]: item["error"] for item in json.loads(capsys.readouterr().out)}
    assert by_figure == pytest.approx({"bytes": 0.04, "ms": -0.2})
    path.write_text(json.dumps(results(sent / 1.06, took)))
    assert scaling_model.main(["--check", str(path)]) == 1
    assert "| 2 hosts x 2, 200 Mbit/s | flat | bytes |" in capsys.readouterr().out


def test_check_refuses_files_that_it_cannot_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    for document, reason in ((results(1, 1, quick=True), "--quick"), ({**results(1, 1), "results": []}, "no figures")):
        path.write_text(json.dumps(document))
        with pytest.raises(SystemExit):
            scaling_model.main(["--check", str(path)])
        assert reason in capsys.readouterr().err


def test_table_says_what_it_assumes_and_the_plot_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert scaling_model.main(["--plot", str(tmp_path / "x" / "curve.png")]) == 0
    printed = capsys.readouterr().out
    assert str(step_model.__doc__) in printed
    assert "| 1,024 |" in printed
    assert (tmp_path / "x" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert scaling_model.main(["--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["points"]) == 11 * 5
    assert scaling_model.main(["--json", "--schedule", "delayed"]) == 0  # delayed refuses sharded tables
    document = json.loads(capsys.readouterr().out)
    assert {point["method"] for point in document["points"]} == {"flat", "hierarchical", "hierarchical-bfloat16"}


def test_a_delayed_step_hides_the_shorter_of_work_and_exchange() -> None:
    four, costs = Cluster(4, 1, 100.0), Costs(rank_ms=5.0, copy_ns=1.0)
    job = Job()
    time = step_model.step_time("flat", job, four, costs)
    assert time.exchange > time.own > 0
    assert time.delayed == pytest.approx(time.total - time.own)
    slow = step_model.step_time("flat", job, four, Costs(rank_ms=1e6, copy_ns=1.0))
    assert slow.delayed == pytest.approx(slow.total - slow.exchange - slow.latency)


def test_more_operations_of_the_dense_ring_take_more_messages() -> None:
    four, costs = Cluster(4, 1, 100.0), Costs(rank_ms=5.0, copy_ns=1.0)
    one_operation, ten_operations = (step_model.step_time("flat", Job(operations=n), four, costs) for n in (1, 10))
    assert ten_operations.latency - one_operation.latency == pytest.approx(9 * 2 * 3 * 0.05)
    assert ten_operations.exchange == one_operation.exchange
