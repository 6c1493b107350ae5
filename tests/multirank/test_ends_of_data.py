"""Data whose length Keras does not know ends on one rank before the others; the next epoch begins and stays exact.

At the end of such data, TensorFlow has begun a step, which it then cancels. This step must not have begun an operation
in which ranks meet, and must not have counted.
"""

from __future__ import annotations

import numpy as np
import pytest
from ends_of_data_program import CASES, EPOCHS, STEPS
from launch import TENSORFLOW, launched

NODES = "localhost:1,127.0.0.1:1"
FEW = ["delayed", "constant_ids", "unrolled"]


@pytest.mark.parametrize(
    ("cases", "hosts", "collectives"),
    [
        pytest.param(FEW, NODES, TENSORFLOW, id="few", marks=[pytest.mark.daily, pytest.mark.keras2_smoke]),
        pytest.param(list(CASES), NODES, None, id="all", marks=pytest.mark.nightly),
        pytest.param(list(CASES), "localhost:2", None, id="node", marks=pytest.mark.nightly),
    ],
)
def test_the_end_of_data_changes_nothing(cases: list[str], hosts: str, collectives: str | None) -> None:
    program, environment = "ends_of_data_program.py", {"TFSPS_TIMEOUT_S": "60"}
    with launched(program, ",".join(cases), hosts=hosts, ranks=2, env=environment, collectives=collectives) as job:
        assert job.wait() == 0, job.output[-20000:]
        for case in cases:
            known = dict(np.load(job.folder / f"{case}-known-0.npz"))
            assert known["updates"] == CASES[case].get("updates", EPOCHS * STEPS), case
            assert all(np.isfinite(values).all() for values in known.values()), case
            for rank in range(2):
                for run in ("", "-known"):
                    result = np.load(job.folder / f"{case}{run}-{rank}.npz")
                    assert sorted(result) == sorted(known), case
                    for name, values in known.items():
                        np.testing.assert_array_equal(result[name], values, f"{case}{run}-{rank}: {name}")
