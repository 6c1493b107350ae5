"""The report that the suite `buckets` makes of the figures of its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import buckets

PLAN = {"buckets": [[0, 1]], "profiles": 1, "erratic": False, "gradients": [{"shape": [1000]}, {"shape": [10, 50]}]}


def figures() -> dict[str, Any]:
    """Returns figures of two ranks on two hosts, with two blocks of each variant."""

    def block(step: float, sent: float) -> dict[str, float]:
        return {"step_ms": step, "cpu_ms": 2 * step, "sent_kb": sent, "operations": 1, "tensors": 1}

    def rank(slower: float) -> dict[str, Any]:
        blocks = {
            "per-tensor": [block(10, 9), block(20, 9)],
            "per-tensor again": [block(11, 9), block(18, 9)],
            "timed": [block(5 + slower, 7), block(8, 7)],
            "fixed 65536": [block(8, 8), block(16, 8)],
            "fixed 262144": [block(5, 8), block(5, 8)],
        }
        return {"local_rank": 0, "blocks": blocks}

    names = rank(0)["blocks"]
    plans = {name: PLAN if name == "timed" else None for name in names}
    return {"ranks": [rank(0), rank(1)], "plans": plans, "same": {}}


def test_ratios_are_of_the_same_turn_and_of_the_slowest_rank() -> None:
    results = buckets.report("60 layers", buckets.Place(2, 2), figures())
    result_of = {
        (result.variant, result.parameters.get("to", result.parameters["figure"])): result for result in results
    }
    assert result_of["timed", "per-tensor"].median == pytest.approx((6 / 10 + 8 / 20) / 2)
    assert result_of["timed", "fixed 262144"].median == pytest.approx((6 / 5 + 8 / 5) / 2)
    assert result_of["timed", "per-tensor"].parameters["half_spread_of_control"] == pytest.approx((1.1 - 0.9) / 4)
    assert result_of["timed", "cpu_ms"].median == pytest.approx(2 * (5 + 6 + 8 + 8) / 2)


def test_a_size_with_the_plan_of_another_variant_has_its_figures() -> None:
    twins = figures() | {"same": {"fixed 1048576": "timed"}}
    results = buckets.report("60 layers", buckets.Place(2, 2), twins)
    result_of = {(result.variant, result.parameters["figure"]): result for result in results}
    assert result_of["fixed 1048576", "cpu_ms"].median == result_of["timed", "cpu_ms"].median
    # This size is not the best one here.
    assert result_of["timed", "ratio"].parameters["to"] == "fixed 262144"


def test_beyond_the_gradients_is_what_a_ring_does_not_take() -> None:
    jobs = {name: figures() for name in buckets.ALONE}
    result_of = {result.variant: result for result in buckets.report_alone("60 layers", buckets.Place(2, 2), jobs)}
    assert result_of["per-tensor"].median == pytest.approx(9 - 4 * 1500 / 1000)
    assert result_of["timed"].median == pytest.approx(7 - 4 * 1500 / 1000)
