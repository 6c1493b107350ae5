"""Jobs are killed while they publish: every version that is visible is whole, and a restart publishes further ones."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fork_server import run_forked

from tf_sparse_ps.serving import ServingTable, fault_points
from tf_sparse_ps.serving.version import Version, numbered

JOB = """
import os, signal, sys
import numpy as np
sys.path.insert(0, {tests!r})
from served_model import keras, make_model
import tf_sparse_ps as tsps
from tf_sparse_ps.serving import fault_points

left = {passage}
def act(point):
    global left
    left -= point == {point!r}
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
fault_points.set_action(act)

model, layer = make_model()

class Note(keras.callbacks.Callback):
    # Notes the rows before they are published.
    def on_train_batch_end(self, batch, logs=None):
        reader = layer.bindings[0].reader()
        keys = np.sort(reader.keys())
        path = os.path.join({folder!r}, "noted-{run}-" + str(reader.step))
        np.savez(path, keys=keys, rows=reader.lookup(keys))

ids = np.random.default_rng({run}).integers(0, 3000, (12 * 200, 2))
model.fit(ids, np.ones((len(ids), 1), np.float32), batch_size=200, shuffle=False, verbose=0,
          callbacks=[Note(), tsps.callbacks.Export({serve!r}, every_steps=2, keep=3)])
"""


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder for the tables of killed jobs."""
    with tempfile.TemporaryDirectory(prefix="tsps-test-", dir="/dev/shm") as folder:
        yield folder


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.nightly)])
@pytest.mark.daily_cases(1)
def test_visible_versions_are_whole(tmp_path: Path, memory: str, kills: int) -> None:
    serve, draw, killed, checked = tmp_path / "serve", random.Random(5), 0, set()
    points = [*fault_points.EXPORT_POINTS, *fault_points.BASE_POINTS, *fault_points.REMOVAL_POINTS]
    run_of: dict[int, int] = {}
    run = 0
    while killed < kills:
        run += 1
        code = JOB.format(
            tests=os.fspath(Path(__file__).parent),
            point=draw.choice(points),
            passage=draw.randint(1, 6),
            folder=os.fspath(tmp_path),
            serve=os.fspath(serve),
            run=run,
        )
        done = run_forked(code, TFSPS_DIR=memory)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
        killed += done.returncode != 0
        for number, folder in numbered(serve):
            run_of.setdefault(number, run)
            if number in checked:
                continue
            checked.add(number)
            step = Version(folder).manifest.step
            table = ServingTable.open(folder, verify=True)
            with np.load(tmp_path / f"noted-{run_of[number]}-{step}.npz") as noted:
                found = np.sort(np.concatenate(list(table.key_parts())))
                np.testing.assert_array_equal(found, noted["keys"])
                np.testing.assert_array_equal(table.lookup(noted["keys"]), noted["rows"])
            del table
    assert checked
