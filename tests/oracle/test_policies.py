"""Tests of the oracle's eviction and admission, without starting a job."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("reference", "multirank")]

import tf_sparse_ps as tsps  # noqa: E402
from tests.oracle import data, draw, network, rules  # noqa: E402
from tests.oracle.options import Options, Plan, TableOptions  # noqa: E402
from tests.oracle.policies import UNUSED, Policies  # noqa: E402
from tests.oracle.timeline import steps_of  # noqa: E402
from tf_sparse_ps.training import refusals  # noqa: E402

pytestmark = pytest.mark.timeout(120)
EVICTS = {"eviction": "lru", "unused_steps": 2}
ADMITS = {"count": 2, "expected_keys": 30}


def options_with(**fields: object) -> Options:
    """Returns options of one rank with one table that has these fields."""
    base = draw.plan(7).options
    plain = {"layer": "embedding", "features": 1, "cache": "", "storage": "memory", "placement": "replicated"}
    table = dataclasses.replace(base.tables[0], **plain, **draw.NO_POLICIES)
    own = {name: value for name, value in fields.items() if name in TableOptions.__dataclass_fields__}
    others = {
        "layout": "1",
        "engine": "local",
        "topology": "hierarchical",
        "wire": "float32",
        "schedule": "synchronous",
    }
    of_job = {name: value for name, value in fields.items() if name not in own}
    return dataclasses.replace(
        base, tables=(dataclasses.replace(table, **own),), **({"schedule": "synchronous"} | others | of_job)
    )


def library_refuses(options: Options, tmp_path: Path) -> bool:
    """Returns whether the library refuses a table with these options and this schedule."""
    try:
        config = network.table_config(options, 0, str(tmp_path))
        schedule = tsps.schedules.DelayedGlobal() if options.schedule == "delayed" else tsps.schedules.Synchronous()
        refusals.refuse_tables(schedule, [SimpleNamespace(config=config)])
    except tsps.errors.UnsupportedError:
        return True
    return False


@pytest.mark.parametrize("policies", [{}, EVICTS, ADMITS, EVICTS | ADMITS], ids=["none", "evicts", "admits", "both"])
@pytest.mark.parametrize("cache", ["", "lru", "admission"])
@pytest.mark.parametrize("schedule", ["synchronous", "delayed"])
def test_rules_refuse_the_policies_that_the_library_refuses(
    policies: dict[str, object], cache: str, schedule: str, tmp_path: Path
) -> None:
    options = options_with(cache=cache, schedule=schedule, dtype="float32", rule="sgd", **policies)
    against = [rule for rule in rules.RULES if rule.kind == rules.REFUSED and rule.applies(options)]
    of_policies = [rule for rule in against if "evict" in rule.reason or "admit" in rule.reason]
    assert bool(of_policies) == library_refuses(options, tmp_path)


def plans_with_policies(seeds: range) -> list[Plan]:
    """Returns the plans of these seeds that have a table with a policy."""
    plans = [draw.plan(seed) for seed in seeds]
    return [plan for plan in plans if any(table.has_policies for table in plan.options.tables)]


def test_every_step_of_a_drawn_job_fits_into_the_bounds_of_its_evictions() -> None:
    bounded = 0
    for plan in plans_with_policies(range(40)):
        options = plan.options
        last = max(operation.first + steps_of(operation) for operation in plan.operations if steps_of(operation))
        assert last <= draw.MOST_BATCHES
        for t, table in enumerate(options.tables):
            if table.max_rows:
                bounded += 1
                rows = table.max_rows // options.shards(t)
                assert data.most_keys(options, t, last) + table.kept <= rows
    assert bounded > 5


def test_a_plan_with_policies_is_read_back_from_its_file(tmp_path: Path) -> None:
    plan = plans_with_policies(range(40))[0]
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert Plan.read(tmp_path / "plan.json") == plan


def test_the_planted_fault_lets_rows_stay_one_step_longer() -> None:
    evicted_in = {}
    for fault in ("", UNUSED):
        policies = Policies.of(options_with(**EVICTS), 0, fault)
        policies.step(1, [5], {5: 1})
        evicted_in[fault] = next(step for step in range(2, 9) if policies.step(step, [], {})[1] == [5])
    assert evicted_in == {"": 3, UNUSED: 4}


def test_evicting_at_once_removes_unused_rows_and_then_the_least_used_ones() -> None:
    policies = Policies.of(options_with(eviction="lfu", unused_steps=3, max_rows=2), 0)
    for step, keys in enumerate([[1], [2, 3], [2, 3], [4, 5]], 1):
        policies.wrote(step, keys)
        for key in keys:
            uses = policies.evictions.uses
            uses[key] = (step, uses[key][1] + 256)
    # Key 1 is unused for 3 steps. Of the others, 4 and 5 were trained once.
    assert policies.due(4) == [1, 4, 5]
    assert sorted(policies.evictions.uses) == [2, 3]
    assert policies.due(4) == []


def test_rows_that_are_written_keep_the_use_that_they_have() -> None:
    policies = Policies.of(options_with(**EVICTS), 0)
    policies.step(1, [5], {5: 1})
    policies.wrote(4, [5, 6])
    assert policies.evictions.uses == {5: (1, 256), 6: (4, 0)}
