"""If ranks save to one path at once, one does, and the other gets an error. No result is a mixture."""

from __future__ import annotations

from launch import launched

from tf_sparse_ps._compat import _keras

WAYS = ["model.keras", "model.weights.h5", "model.h5", "exported", "saved", "deeper/checkpoint"]
KERAS_2 = ["folder", "weights"]


def test_one_rank_writes_to_a_path_and_a_second_one_is_refused() -> None:
    with launched("saving_program.py", hosts="localhost:2", ranks=2) as job:
        status = job.wait()
        refusals = [line.split(">", 1)[-1] for line in job.output.splitlines() if "is refused" in line]
        for way in WAYS + ([] if _keras.IS_KERAS_3 else KERAS_2):
            assert any(line.endswith(f"{way} is refused") for line in refusals), f"{way}:\n{job.output[-20000:]}"
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == 2
