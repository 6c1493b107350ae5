"""Ready times become buckets: where they are cut, how many there are, when profiles are repeated; plans in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives.local import LocalCollectives
from tf_sparse_ps.schedules import Plan, TimedBuckets
from tf_sparse_ps.schedules.bucket_cost import Cost
from tf_sparse_ps.schedules.bucket_plan import Gradient, sending
from tf_sparse_ps.schedules.bucket_profile import Profile, make_plan, unconfirmed
from tf_sparse_ps.schedules.gradient_set import GradientSet

pytestmark = pytest.mark.quick

MB = 1 << 20


def gradients(*sizes: int) -> list[Gradient]:
    """Returns float32 gradients of these sizes in bytes."""
    return [Gradient(f"weight{i}", (size // 4,), "float32") for i, size in enumerate(sizes)]


def plan_of(
    ready_ms: list[float], sizes: list[int], latency_ms: float, ms_per_mb: float, share: float = 0.0, **options: Any
) -> Plan:
    cost = Cost(latency_ms * 1e-3, ms_per_mb * 1e-3 / MB, share)
    return make_plan(gradients(*sizes), np.array([ready_ms]) * 1e-3, 2, cost, **options)


THREE = [0.0, 1.0, 20.0, 21.0, 40.0, 41.0]  # milliseconds; three clusters


def test_buckets_are_cut_in_the_widest_gaps_and_points_are_their_middles() -> None:
    plan = plan_of(THREE, [MB] * 6, latency_ms=1, ms_per_mb=5)
    assert plan.buckets == ((0, 1), (2, 3), (4, 5))
    assert plan.points_s == pytest.approx((10.5e-3, 30.5e-3))
    assert plan.ready_s == pytest.approx([ready * 1e-3 for ready in THREE])
    assert plan.candidates_s[:3] == pytest.approx((0.072, 0.062, 0.052))


def test_buckets_follow_readiness_not_the_order_of_the_model() -> None:
    plan = plan_of(THREE[::-1], [MB] * 6, latency_ms=1, ms_per_mb=5)
    assert plan.buckets == ((4, 5), (2, 3), (0, 1))


def test_sending_that_takes_the_processors_hides_nothing() -> None:
    three = plan_of(THREE, [MB] * 6, latency_ms=1, ms_per_mb=5, share=0.25)
    assert len(three.buckets) == 3
    # The first two buckets take 11 ms each. A quarter of that time delays the computation.
    assert three.candidates_s[2] == pytest.approx(0.052 + 0.25 * 0.022)
    assert len(plan_of(THREE, [MB] * 6, latency_ms=1, ms_per_mb=5, share=1.0).buckets) == 1


def test_gradients_that_come_evenly_go_one_by_one_where_operations_are_nearly_free() -> None:
    assert len(plan_of([0.0, 10.0, 20.0, 30.0], [MB] * 4, latency_ms=0.001, ms_per_mb=10).buckets) == 4


@pytest.mark.parametrize(
    ("latency_ms", "ms_per_mb", "buckets"),
    [
        (100, 5, 1),  # an operation costs more than sending could hide
        (1, 5, 3),
        (0.001, 10, 3),  # operations are nearly free, but three more end only 2 % earlier
        (0, 0, 1),  # nothing to gain
    ],
)
def test_the_cost_of_an_operation_decides_how_many(latency_ms: float, ms_per_mb: float, buckets: int) -> None:
    plan = plan_of(THREE, [MB] * 6, latency_ms, ms_per_mb)
    assert len(plan.buckets) == buckets
    assert plan.sending_s()[-1][1] <= 1.05 * min(plan.candidates_s)


def test_gradients_that_are_ready_at_once_are_never_cut_apart() -> None:
    assert plan_of([3.0] * 5, [MB] * 5, latency_ms=0, ms_per_mb=100).buckets == ((0, 1, 2, 3, 4),)
    assert plan_of([3.0], [MB], latency_ms=0, ms_per_mb=100).buckets == ((0,),)


def test_a_bucket_begins_when_its_last_gradient_is_ready_and_the_wire_is_free() -> None:
    spans = sending([0.0, 2.0, 3.0], [10, 20], [(0, 1), (2,)], 1.0, 0.5)
    assert spans == [(2.0, 8.0), (8.0, 19.0)]
    assert sending([0.0, 2.0, 30.0], [10, 20], [(0, 1), (2,)], 1.0, 0.5)[1][0] == 30.0


def test_owners_have_about_as_many_bytes() -> None:
    plan = plan_of(THREE, [4 * MB, 4 * MB, MB, MB, 3 * MB, 3 * MB], latency_ms=2, ms_per_mb=2, server=True)
    assert plan.buckets == ((0, 1), (2, 3), (4, 5))
    assert plan.owners == (0, 1, 1)
    assert plan_of(THREE, [MB] * 6, 1, 5).owners == ()


def test_a_profile_is_in_seconds_from_each_steps_first_gradient_without_the_first_step() -> None:
    profile = Profile(2)
    for start, second in ((0, 900), (10_000, 10_500), (70_000, 70_700)):
        profile.add([(1, start), (0, second)])
    profile.add([(1, 80_000)])  # an unfinished step
    assert profile.steps == 2
    np.testing.assert_allclose(profile.times(), [[5e-7, 0], [7e-7, 0]])


def steps(kind: str, count: int, gap: float = 0.02) -> np.ndarray:
    """Returns float64[count, 10] ready times, with a delay of `gap` before gradient 5, a random one, or none."""
    times = np.tile(np.arange(10) * 1e-4, (count, 1))
    for step in range(count):
        place = {"steady": 5, "often": (5, 5, 10)[step % 3], "erratic": 1 + (3 * step) % 9, "calm": 10}[kind]
        times[step, place:] += gap
    return times


def test_a_gap_that_the_steps_show_is_confirmed_and_one_of_the_medians_is_not() -> None:
    assert unconfirmed(steps("steady", 9), 1e-3) == []
    gaps = unconfirmed(steps("erratic", 9), 1e-3)
    assert gaps == [pytest.approx(0.0201)], "the medians have a gap that at most one of nine steps has"
    assert unconfirmed(steps("erratic", 9), 0.03) == [], "a gap below the threshold needs no confirmation"


def clocked(monkeypatch: pytest.MonkeyPatch, times: list[np.ndarray]) -> Plan:
    """Returns the plan of gradients with these ready times, step by step. The plan must use all of them."""
    feed = iter(times)

    def recorded(_: str) -> list[tuple[int, int]]:
        return [(i, int(when * 1e9)) for i, when in enumerate(next(feed))]

    monkeypatch.setattr(_ops, "ready_times", recorded)
    schedule = TimedBuckets(profile_steps=6, gap_threshold=1e-3, max_profiles=3)
    gradient_set = GradientSet(schedule, gradients(*[MB] * 10), [object()] * 10, LocalCollectives(), "test")
    for _ in times:
        assert gradient_set.plan is None
        gradient_set.plan_of_this_step()
    assert gradient_set.plan is not None, "these steps must make a plan"
    return gradient_set.plan


@pytest.mark.parametrize(
    ("kinds", "profiles", "erratic"),
    [
        (["steady"], 1, False),
        (["erratic"] * 3, 3, True),
        (["often", "calm"], 2, False),
        (["often", "steady"], 2, False),
        (["erratic", "calm", "calm"], 3, False),
    ],
)
def test_profiles_are_made_again_while_gaps_are_erratic_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, kinds: list[str], profiles: int, erratic: bool
) -> None:
    warm_up = [np.zeros(10)]
    plan = clocked(monkeypatch, [*warm_up, *(row for kind in kinds for row in steps(kind, 6))])
    assert (plan.profiles, plan.erratic, plan.steps) == (profiles, erratic, 6 * profiles)


def test_a_saved_plan_is_the_same_plan(tmp_path: Path) -> None:
    plan = plan_of(THREE, [4 * MB] * 6, 1, 5, server=True, profiles=2, erratic=True)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert Plan.load(tmp_path / "plan.json").hash == plan.hash
    assert TimedBuckets(plan=tmp_path / "plan.json", server=True) == TimedBuckets(plan=plan, server=True)


def test_the_hash_is_of_what_ranks_do() -> None:
    plan = plan_of(THREE, [MB] * 6, 1, 5)
    later = plan_of([ready * 1.1 for ready in THREE], [MB] * 6, 1, 5)
    assert plan != later
    assert plan.hash == later.hash, "times must not change the hash"
    assert plan.hash != plan_of(THREE, [MB] * 6, 30, 5).hash
    assert plan.hash != plan_of(THREE, [MB] * 6, 1, 5, server=True).hash
    assert repr(plan) != repr(plan_of(THREE, [MB] * 5 + [2 * MB], 1, 5)), "ranks compare plans as text"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "tf_sparse_ps bucket plan 9"}, "format"),
        ({"buckets": [[0, 1], [1, 2, 3, 4, 5]]}, "once"),
        ({"buckets": [[0, 1, 2, 3, 4, 5], []]}, "empty"),
        ({"owners": [0]}, "owner for each bucket"),
        ({"owners": [0, 1, 7]}, "owner for each bucket"),
        ({"points_s": [1.0]}, "points"),
        ({"ready_s": [1.0]}, "time for each gradient"),
        ({"gradients": [{"name": "x"}]}, "shape"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_a_damaged_plan_is_refused_with_its_path(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_of(THREE, [MB] * 6, 1, 5).to_dict() | change))
    with pytest.raises(ValueError, match=words) as error:
        Plan.load(path)
    assert str(path) in str(error.value)
    path.write_text("{")
    with pytest.raises(ValueError, match="cannot be used"):
        Plan.load(path)


def test_a_plan_says_what_differs() -> None:
    plan = plan_of(THREE, [MB] * 6, 1, 5)
    assert plan.differences(gradients(*[MB] * 6), 2) == []
    assert plan.differences(gradients(*[MB] * 6), 4) == ["the plan is for 2 ranks, the job has 4"]
    assert plan.differences(gradients(*[MB] * 5), 2) == ["the plan has 6 gradients, the model 5"]
    (objection,) = plan.differences(gradients(*[MB] * 5, 8), 2)
    assert objection == "gradient 5 is 'weight5' float32[262144] in the plan, 'weight5' float32[2] in the model"


def test_a_plan_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan_of(THREE, [MB] * 6, 1, 5).plot(tmp_path / "plan")
    assert (tmp_path / "plan").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no times"):
        Plan(tuple(gradients(4)), 1, ((0,),)).plot(tmp_path / "other")
