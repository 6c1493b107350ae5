"""A collective whose input TensorFlow knows in advance is run in the graph, once per call, like all others."""

from __future__ import annotations

import json

from launch import launched

CALLS = 3
EXPECTED = {
    "allreduce": [[2.0, 4.0], [4.0, 8.0]],
    "allgather": [[1.0, 2.0, 1.0, 2.0]],
    "broadcast": [[1.0, 2.0]],
}


def test_constants_are_sent_in_the_graph_and_not_before() -> None:
    with launched("constants_program.py", hosts="localhost:2", ranks=2) as job:
        assert job.wait() == 0, job.output[-20000:]
        reports = [json.loads((job.folder / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, report in enumerate(reports):
        alltoall = [[1.0 + rank, 1.0 + rank], [1, 1]]
        assert len(report["results"]) == 4 * 3 * CALLS
        for name, outputs in report["results"].items():
            assert outputs == EXPECTED.get(name.split(".")[0], alltoall), name
        # TensorFlow's collectives send sizes before rows.
        assert len(report["counts"]) >= 4 * 3 * 2
        assert set(report["counts"].values()) == {CALLS}, report["counts"]
