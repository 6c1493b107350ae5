"""Jobs of all kinds are killed several times, in all ways, and equal uninterrupted ones in the end."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import launch
import numpy as np
import pytest
from restart_support import JOB, MEMORY, TWO_MACHINES, Whole, content, fit_options, killed, kills_at_random, must_equal

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]
# In the middle of an epoch after a checkpoint; in a save; in a later epoch.
THREE = (
    {"kill_rank": 1, "kill_at": 6},
    {"kill_rank": 0, "kill_at": 8, "kill_point": "manifest_written"},
    {"kill_rank": 0, "kill_at": 14},
)
ALONE = tuple(kill | {"kill_rank": 0} for kill in THREE)


@pytest.mark.parametrize(
    ("how", "placement", "hosts", "tiered"),
    [
        ("fit", "replicated", None, False),
        ("loop", "sharded", TWO_MACHINES, False),
        ("fit", "sharded", TWO_MACHINES, True),
    ],
    ids=["fit", "sharded", "sharded-tiered"],
)
def test_twenty_kills_at_random(
    tmp_path: Path, shared_memory: str, whole: Whole, how: str, placement: str, hosts: str | None, tiered: bool
) -> None:
    options: dict[str, Any] = {"how": how, "placement": placement, "every": 1}
    disks = [{"tiered": str(tmp_path / name), "memory": MEMORY} if tiered else {} for name in ("whole", "disk")]
    results, output = whole.run(2, hosts=hosts, named=True, **options, **disks[0])
    if tiered:
        on_disk = [int(number) for number in re.findall(r"users has (\d+) rows on disk", output)]
        assert len(on_disk) == 2
        assert min(on_disk) > 10
    broken = fit_options(tmp_path, "broken", background=True, **options, **disks[1])
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    kills = kills_at_random(20, seed=len(how) + tiered, launcher=True, nodes=2 if hosts else 1)
    killed(broken, 2, *kills, hosts=hosts, env=named)
    must_equal(results, broken.results, 2)


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_ten_kills_at_random_with_a_directory_of_each_machine(
    tmp_path: Path, shared_memory: str, whole: Whole, placement: str
) -> None:
    options: dict[str, Any] = {"how": "fit", "placement": placement, "every": 1}
    results, _ = whole.run(2, hosts=TWO_MACHINES, named=True, per_node=True, **options)
    broken = fit_options(tmp_path, "broken", background=True, per_node=True, **options)
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    kills = kills_at_random(10, seed=len(placement), launcher=True, nodes=2, per_node=True)
    killed(broken, 2, *kills, hosts=TWO_MACHINES, env=named)
    must_equal(results, broken.results, 2)


@pytest.mark.parametrize("hosts", [None, TWO_MACHINES], ids=["one-machine", "two-machines"])
@pytest.mark.parametrize("schedule", ["TimedBuckets()", "DelayedGlobal(reproducible=True)"])
def test_three_kills_under_another_schedule(tmp_path: Path, whole: Whole, schedule: str, hosts: str | None) -> None:
    results, _ = whole.run(2, hosts=hosts, schedule=schedule)
    broken = fit_options(tmp_path, "broken", schedule=schedule)
    killed(broken, 2, *THREE, hosts=hosts)
    must_equal(results, broken.results, 2)


@pytest.mark.parametrize("how", ["fit", "loop"])
def test_kills_on_two_machines_of_two_ranks(tmp_path: Path, shared_memory: str, whole: Whole, how: str) -> None:
    hosts = launch.TWO_NODES
    options: dict[str, Any] = {"how": how, "max_rows": None}  # four ranks train more than 280 keys
    results, _ = whole.run(4, hosts=hosts, named=True, **options)
    broken = fit_options(tmp_path, "broken", **options)
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    # A rank, and the leader, of the machine that writes no manifest; in a save; in a restore; the launcher.
    kills = [{"kill_rank": 3, "kill_at": 5}, {"kill_rank": 2, "kill_at": 7}, *THREE[1:]]
    kills += [{"kill_rank": 0, "kill_restore": "rows_restored"}, {"kill_rank": 1, "kill_at": 15}]
    kills[-1]["launcher"] = signal.SIGKILL
    killed(broken, 4, *kills, hosts=hosts, env=named)
    must_equal(results, broken.results, 4, within=1e-6)
    pairs = zip(content(results, 4), content(broken.results, 4), strict=True)
    far = max(np.max(np.abs(a[name] - b[name])) for a, b in pairs for name in a if a[name].dtype.kind == "f")
    print(f"{how} on two machines of two ranks: values differ by at most {far:.3g}")


@pytest.mark.parametrize("how", ["fit", "loop"])
def test_three_kills_of_a_job_with_rows_on_a_device(tmp_path: Path, shared_memory: str, whole: Whole, how: str) -> None:
    results, _ = whole.run(1, named=True, cached=True, how=how)
    broken = fit_options(tmp_path, "broken", cached=True, how=how)
    # No table has the killed run's rows of the device. The checkpoint, which was saved earlier, has its whole step.
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory, "TFSPS_ACCEPT_LOST_ROWS": JOB}
    killed(broken, 1, *ALONE, env=named)
    must_equal(results, broken.results, 1)
