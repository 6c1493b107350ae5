"""`TableMetrics` writes figures for TensorBoard, and shows the speed in the progress line of `fit`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import event_records
import numpy as np
import pytest
import tensorflow as tf
from models import keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _table, errors, job
from tf_sparse_ps._compat import _keras_fit
from tf_sparse_ps.callbacks import event_files
from tf_sparse_ps.monitoring import rates, row_samples
from tf_sparse_ps.node import rank_counters

pytestmark = pytest.mark.keras2_smoke
BATCH, WIDTH, DIM = 10, 2, 4


def make_model(layer: Any) -> Any:
    model = keras.Sequential(
        [keras.Input([WIDTH], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1, use_bias=False)]
    )
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def evicting() -> Any:
    return tsps.Embedding(None, DIM, table=tsps.TableConfig("words", DIM, eviction=tsps.Eviction(unused_steps=1000)))


def fit(model: Any, steps: int, *callbacks: Any, **options: Any) -> Any:
    """Trains new ids in each step, all of them different."""
    x = np.arange(steps * BATCH * WIDTH).reshape(-1, WIDTH)
    options = {"shuffle": False, "verbose": 0} | options
    return model.fit(x, np.ones([len(x), 1]), batch_size=BATCH, callbacks=list(callbacks), **options)


def samples_trained() -> int:
    (report,) = rank_counters.read(job.current().group_path)
    return report.counters["samples_trained"]


def test_figures_are_those_of_the_table(tmp_path: Path) -> None:
    layer = evicting()
    model = make_model(layer)
    metrics = tsps.callbacks.TableMetrics(tmp_path / "logs", every_steps=10)
    history = fit(model, 25, metrics)
    assert set(history.history) == {"loss"}
    job_run, node_run = (event_records.read(tmp_path / "logs" / run) for run in ("", "node-0"))
    assert set(job_run) == {"job/steps_per_second", "job/samples_per_second"}
    for step in (10, 20):
        assert job_run["job/samples_per_second"][step] == pytest.approx(BATCH * job_run["job/steps_per_second"][step])
    name = layer.bindings[0].path.rpartition("/")[2]
    assert node_run[f"{name}/rows"] == {10: 10 * BATCH * WIDTH, 20: 20 * BATCH * WIDTH}
    for step in (10, 20):
        at = {tag: values[step] for tag, values in node_run.items() if step in values}
        assert 0 < at[f"{name}/index_load"] < 1
        assert at[f"{name}/memory_bytes"] > at[f"{name}/disk_bytes"] == at[f"{name}/evicted"] == 0
        # The last step may still be written, while its rows are not yet counted: one of at least 9 steps.
        assert at["per_step/rows_updated"] == pytest.approx(BATCH * WIDTH, rel=1.001 / 9)
        assert at["per_second/rows_updated"] == pytest.approx(at["per_step/rows_updated"] * at["per_second/steps"])
        assert at["per_second/ids_looked_up"] == pytest.approx(BATCH * WIDTH * at["per_second/steps"])
        assert at["ratios/unique"] == 1.0
        assert {at[f"waits/{cause}"] for cause in ("ranks", "network", "disk")} == {0.0}
    assert "ratios/tier" not in node_run, "nothing was read from disk"
    norms, ages = (node_run[f"{name}/{kind}"][20] for kind in ("row_norm", "row_age_steps"))
    assert norms[:, 2].sum() == ages[:, 2].sum() == 20 * BATCH * WIDTH
    assert (ages[0, 0], ages[-1, 1], ages[0, 2]) == (0, 19, BATCH * WIDTH)
    rows = layer.bindings[0].reader().lookup(np.arange(20 * BATCH * WIDTH))
    assert norms[-1, 1] == pytest.approx(np.linalg.norm(rows, axis=1).max(), rel=1e-5)


def test_a_second_fit_continues_in_the_same_directory(tmp_path: Path) -> None:
    model = make_model(tsps.Embedding(1000, DIM))
    metrics = tsps.callbacks.TableMetrics(str(tmp_path), every_steps=5)
    fit(model, 12, metrics)
    fit(model, 12, metrics, epochs=2)
    steps = event_records.read(tmp_path)["job/steps_per_second"]
    assert list(steps) == [5, 10, 15, 20, 25, 30, 35]
    assert all(value > 0 for value in steps.values())


@pytest.mark.parametrize("how", ["stop", "raise"])
def test_an_early_end_leaves_whole_files_and_a_model_that_trains(how: str, tmp_path: Path) -> None:
    class Ending(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 6 and how == "raise":
                raise KeyboardInterrupt
            self.model.stop_training = batch == 6

    model = make_model(tsps.Embedding(1000, DIM))
    metrics = tsps.callbacks.TableMetrics(tmp_path, every_steps=2)
    if how == "raise":
        with pytest.raises(KeyboardInterrupt):
            fit(model, 20, metrics, Ending())
    else:
        fit(model, 20, metrics, Ending())
    done = 7 if how == "raise" else int(model.optimizer.iterations)
    assert list(event_records.read(tmp_path)["job/steps_per_second"]) == list(range(2, done + 1, 2))
    fit(model, 4, metrics)
    assert max(event_records.read(tmp_path)["job/steps_per_second"]) > done


def test_samples_of_training_are_counted_once(tmp_path: Path) -> None:
    class Evaluating(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                self.model.evaluate(np.zeros([50, WIDTH], np.int64), np.ones([50, 1]), verbose=0)

    model = make_model(tsps.Embedding(1000, DIM))
    fit(model, 1)
    before = samples_trained()
    x = np.zeros([35, WIDTH], np.int64)
    model.fit(x, np.ones([35, 1]), batch_size=8, epochs=3, verbose=0, validation_data=(x[:9], np.ones([9, 1])))
    assert samples_trained() == before + 3 * 35
    fit(model, 6, Evaluating())
    assert samples_trained() == before + 3 * 35 + 6 * BATCH
    model.evaluate(x, np.ones([35, 1]), verbose=0)
    fit(model, 1)
    assert samples_trained() == before + 3 * 35 + 7 * BATCH


def test_an_interrupt_loses_no_samples() -> None:
    class Interrupting(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 6:
                raise KeyboardInterrupt

    model = make_model(tsps.Embedding(1000, DIM))
    fit(model, 1)
    before = samples_trained()
    with pytest.raises(KeyboardInterrupt):
        fit(model, 20, Interrupting())
    assert samples_trained() == before + 7 * BATCH
    fit(model, 2)
    assert samples_trained() == before + 9 * BATCH


def test_a_model_without_tables_has_steps_and_samples_per_second(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(1)])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(1e-9)), "mse")
    fit(model, 12, tsps.callbacks.TableMetrics(tmp_path, every_steps=5))
    found = event_records.read(tmp_path)
    assert list(found["job/steps_per_second"]) == [5, 10]
    for step in (5, 10):
        per_second = found["job/steps_per_second"][step]
        assert per_second > 0
        assert found["job/samples_per_second"][step] == pytest.approx(BATCH * per_second)


def test_a_model_without_an_optimizer_is_refused() -> None:
    metrics = tsps.callbacks.TableMetrics("logs")
    metrics.set_model(keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(1)]))
    with pytest.raises(errors.InvalidArgumentError, match=r"Call compile\(\) of model 'sequential"):
        metrics.on_train_begin()


def test_the_progress_line_shows_the_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tsps.Embedding(1000, DIM))
    seen: list[set[str]] = []

    class Seeing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(set(logs or {}))

        on_epoch_end = on_train_batch_end

    for verbose in (1, 2):
        fit(model, 12, tsps.callbacks.TableMetrics(tmp_path, every_steps=5), Seeing(), verbose=verbose)
        line = re.split(r"[\r\n]", capsys.readouterr().out.strip())[-1]
        found = re.search(r"samples_per_s: ([\d.e+]+) - largest_wait: 0", line)
        assert found is not None, line
        assert float(found[1]) > 0
    assert set().union(*seen) == {"loss"}, "other callbacks do not see the figures"
    fit(model, 3, verbose=1)
    assert "samples_per_s" not in capsys.readouterr().out


def test_rows_are_sampled_from_the_whole_table_at_a_bounded_cost() -> None:
    layer = tsps.Embedding(20_000, DIM)
    layer.build(None)
    layer.set_weights([np.repeat(np.arange(20_000, dtype=np.float32)[:, None], DIM, 1) / 2])
    binding = layer.bindings[0]
    group = _table.Group.open(binding.group.path)
    table = group.find_table(binding.path.rpartition("/")[2])
    random = np.random.default_rng(3)
    some, every = (row_samples.sample(group, table, most, random) for most in (1024, 20_000))
    assert every.ages is some.ages is None
    np.testing.assert_array_equal(np.sort(every.norms), np.arange(20_000))
    assert len(set(some.norms)) == len(some.norms) <= 1024
    assert len(some.norms) > 960, "a block at the end may be shorter"
    counts, _ = np.histogram(some.norms, 4, (0, 20_000))
    assert counts.min() > 0.1 * len(some.norms)
    assert not np.array_equal(row_samples.sample(group, table, 1024, random).norms, some.norms)


def test_models_without_a_loss_count_no_samples() -> None:
    model = make_model(tsps.Embedding(1000, DIM))
    assert _keras_fit.samples_of(model) in (None, 0)
    assert _keras_fit.samples_of(keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])) is None


@pytest.mark.parametrize("every_steps", [0, -1, 1.5, True, None, "10"])
def test_bad_intervals_are_refused(every_steps: Any) -> None:
    with pytest.raises(ValueError, match="every_steps"):
        tsps.callbacks.TableMetrics("logs", every_steps=every_steps)


@pytest.mark.parametrize(
    ("log_dir", "error"), [(None, TypeError), (b"logs", TypeError), (3, TypeError), ("", ValueError)]
)
def test_bad_directories_are_refused(log_dir: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="log_dir"):
        tsps.callbacks.TableMetrics(log_dir)


def test_numpy_integers_are_intervals() -> None:
    tsps.callbacks.TableMetrics("logs", every_steps=np.int64(3))


def test_a_directory_that_cannot_be_written_ends_fit_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    metrics = tsps.callbacks.TableMetrics(tmp_path / "file" / "logs", every_steps=1000)
    with pytest.raises(errors.InvalidArgumentError, match="cannot write to `log_dir`"):
        fit(make_model(evicting()), 3, metrics)


def test_training_continues_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(event_files.EventFiles, "write", fail)
    metrics = tsps.callbacks.TableMetrics(tmp_path, every_steps=2)
    with pytest.warns(UserWarning, match=r"writes no more figures .*No space left on device.* Training continues"):
        history = fit(make_model(evicting()), 10, metrics)
    assert len(history.history["loss"]) == 1


def test_a_loop_after_a_fit_has_no_samples_per_second(tmp_path: Path) -> None:
    model = make_model(evicting())
    fit(model, 3)
    group = job.current().group_path
    before = rank_counters.read(group)
    x, y = np.arange(BATCH * WIDTH).reshape(-1, WIDTH), np.ones([BATCH, 1])
    for _ in range(3):
        model.train_on_batch(x, y)
        time.sleep(0.03)  # counters are shown at most once in 20 ms
    found = rates.between(before, rank_counters.read(group), 1.0, 3)
    assert found is not None
    assert found.samples is None
