"""The counters of a rank, as other processes read them while it trains, and after it was killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fork_server import run_forked, start_forked
from layer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps import job
from tf_sparse_ps.monitoring import readings
from tf_sparse_ps.monitoring.exporter import JobsCollector
from tf_sparse_ps.node import activity, rank_counters

ROOT = Path(__file__).resolve().parents[2]
BATCH, WIDTH = 50, 3


def make_model(**options: Any) -> Any:
    layer = tsps.Embedding(None, 4, **options)
    model = keras.Sequential(
        [keras.Input([WIDTH], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def fit(model: Any, steps: int, keys: int) -> None:
    ids = np.random.default_rng(0).integers(0, keys, (steps * BATCH, WIDTH))
    model.fit(ids, np.ones(len(ids)), batch_size=BATCH, verbose=0)


def own_report() -> rank_counters.RankReport:
    """Returns the report of this rank, when it has the last lookup."""
    time.sleep(0.03)  # counters are stored once in 20 ms
    make_model()(np.zeros([1, WIDTH], np.int64))
    (report,) = rank_counters.read(job.current().group_path)
    return report


def test_lookups_and_steps_are_counted() -> None:
    model = make_model()
    fit(model, 1, 100)
    before = own_report()
    fit(model, 20, 100)
    model.predict(np.zeros([8, WIDTH], np.int64), verbose=0)
    after = own_report()
    counted = {name: after.counters[name] - before.counters[name] for name in rank_counters.NAMES}
    assert counted["step"] == 20
    assert counted["ids_trained"] == 20 * BATCH * WIDTH
    assert counted["ids_looked_up"] == 20 * BATCH * WIDTH + 8 * WIDTH + WIDTH
    assert counted["lookups"] == 22
    assert 20 * 50 < counted["unique_ids"] <= 20 * 100
    assert counted["rows_written"] == counted["unique_ids"]
    assert after.pid == os.getpid()
    assert (after.rank, after.size, after.local_rank) == (0, 1, 0)
    assert abs(after.updated - time.time()) < 60


def test_caches_and_disks_are_counted(tmp_path: Path) -> None:
    make_model()(np.zeros([1, WIDTH], np.int64))
    before = own_report()
    fit(make_model(cache=tsps.DeviceCache(rows=64)), 10, 100)
    tiered = make_model(storage=tsps.Tiered(tmp_path / "disk", 2 << 20))
    fit(tiered, 40, 200_000)
    binding = tiered.layers[0].bindings[0]
    stats = binding.reader().stats()
    assert stats["rows_on_disk"] > 0
    sizes = {table.name: table for table in readings.read_group(binding.group.path).tables}
    entries = sizes[binding.path.rpartition("/")[2]].index_load * stats["segments"] * 4092
    assert entries == pytest.approx(stats["rows"] - stats["rows_on_disk"]), "rows on disk are not in this index"
    after = own_report()
    counted = {name: after.counters[name] - before.counters[name] for name in rank_counters.NAMES}
    assert counted["cache_lookups"] > counted["cache_misses"] > 0
    assert counted["step"] == 50


def test_activities_are_shown() -> None:
    own_report()
    with activity.doing("restoring a checkpoint"):
        with activity.doing("reading a file"):
            assert own_report().activity == "reading a file"
        assert own_report().activity == "restoring a checkpoint"
    assert own_report().activity == ""


def test_a_forked_child_changes_nothing() -> None:
    own_report()
    child = os.fork()
    if child == 0:
        try:
            activity.begin("the child's")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert own_report().activity == ""


def test_the_counters_of_a_killed_job_stay(tmp_path: Path) -> None:
    memory = Path("/dev/shm") / f"tsps-test-counters-{os.getpid()}"
    memory.mkdir()
    program = """
        import os, signal, time
        import numpy as np
        import tf_sparse_ps as tsps
        from tf_sparse_ps._compat._keras import keras
        model = keras.Sequential([keras.Input([3], dtype="int64"), tsps.Embedding(None, 4), keras.layers.Flatten()])
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
        model.fit(np.arange(90).reshape(30, 3), np.ones([30, 12]), batch_size=1, verbose=0)
        time.sleep(0.03)
        model(np.zeros([1, 3], np.int64))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    try:
        done = run_forked(textwrap.dedent(program), TFSPS_DIR=os.fspath(memory))
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        (group,) = (entry for entry in memory.iterdir() if not entry.name.startswith("."))
        # Without TensorFlow.
        code = (
            f"from tf_sparse_ps.node import rank_counters\n(report,) = rank_counters.read({os.fspath(group)!r})\n"
            "import sys\nassert 'tensorflow' not in sys.modules\nprint(report.counters['step'])"
        )
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert shown.stdout == "30\n", shown.stderr
        (group / ".counters-0001").write_bytes(b"damaged")
        assert [report.rank for report in rank_counters.read(os.fspath(group))] == [0]
    finally:
        for path in sorted(memory.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        memory.rmdir()


def top(folder: Path) -> tuple[dict[str, Any], float]:
    """Returns what a process shows that looks at the job ctr for a moment, and this moment in seconds."""
    command = [sys.executable, "-m", "tf_sparse_ps", "top", "ctr", "--once", "--json", "--every", "1"]
    environment = {**os.environ, "TFSPS_DIR": os.fspath(folder), "PYTHONPATH": os.fspath(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (found,) = document["jobs"]
    return dict(found), document["interval_s"]


def metrics(folder: Path) -> dict[str, float]:
    """Returns the metrics of the job ctr."""
    return {
        sample.name: sample.value
        for metric in JobsCollector(os.fspath(folder)).collect()
        for sample in metric.samples
        if sample.labels.get("job") == "ctr"
    }


@pytest.mark.keras2_smoke
def test_a_job_is_shown_while_it_trains_and_after_it_was_killed() -> None:
    memory = Path(tempfile.mkdtemp(prefix="tsps-test-shown-", dir="/dev/shm"))
    program = """
        import numpy as np
        import tf_sparse_ps as tsps
        from tf_sparse_ps._compat._keras import keras
        model = keras.Sequential([keras.Input([3], dtype="int64"), tsps.Embedding(None, 4), keras.layers.Flatten()])
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
        model.fit(np.arange(90).reshape(30, 3), np.ones([30, 12]), batch_size=3, epochs=1 << 30, verbose=0)
    """
    job = start_forked(textwrap.dedent(program), TFSPS_DIR=os.fspath(memory), TFSPS_JOB="ctr")
    try:
        until = time.monotonic() + 120
        while metrics(memory).get("tsps_samples_trained_total", 0) == 0:
            assert time.monotonic() < until
            assert job.poll() is None
        shown, seconds = top(memory)
        (rank,) = shown["ranks"]
        assert (shown["state"], rank["state"], rank["pid"]) == ("running", "alive", job.pid)
        per_second = shown["per_second"]
        assert per_second["steps"] > 0
        # The samples are counted and all counters are stored at least at the end of each epoch, which has 10 steps, so
        # each of the two readings may miss those of an epoch.
        steps, ids, samples = (seconds * per_second[name] for name in ("steps", "ids_looked_up", "samples"))
        assert ids == pytest.approx(9 * steps, abs=2 * 10 * 9)
        assert samples == pytest.approx(3 * steps, abs=2 * 10 * 3)
        os.kill(job.pid, signal.SIGKILL)
        job.wait(60)
        (last, _), figures = top(memory), metrics(memory)
        (dead,) = last["ranks"]
        assert (last["state"], dead["state"], last["rows"], last["per_second"]) == ("ended", "dead", 90, None)
        assert dead["counters"]["samples_trained"] >= rank["counters"]["samples_trained"] > 0
        assert last["ratios"]["unique"] == 1.0
        assert (figures["tsps_running"], figures["tsps_rank_alive"], figures["tsps_table_rows"]) == (0, 0, 90)
        assert figures["tsps_samples_trained_total"] == dead["counters"]["samples_trained"]
        assert figures["tsps_step"] == last["step"] >= dead["counters"]["step"] > 0
    finally:
        job.kill()
        job.wait(60)
        shutil.rmtree(memory)


@pytest.mark.parametrize("name", rank_counters.NAMES)
def test_every_counter_is_documented(name: str) -> None:
    assert re.search(rf"^\| `{name}` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE), name
